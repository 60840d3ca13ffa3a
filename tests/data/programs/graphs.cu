// Graphs: one is captured on two streams, and launched three times; one is built of nodes.
#include <cstdio>
__global__ void add(int *x, int n) { x[threadIdx.x] += n; }
// A fill, a kernel, a copy, a call of the host; then the kernel adds more, and goes elsewhere.
void build() {
    int *x, out[32], n = 5, more = 7;
    cudaMalloc(&x, 128);
    cudaGraph_t graph, clone; cudaGraphExec_t exec;
    cudaGraphNode_t fill, kernel, copy, call;
    printf("%s ", cudaGetErrorName(cudaGraphCreate(&graph, 0)));
    cudaMemsetParams set = {x, 0, 1, 4, 32, 1};
    cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &set);
    void *first[] = {&x, &n}, *second[] = {&x, &more};
    cudaKernelNodeParams launch = {(void *)add, dim3(1), dim3(32), 0, first, nullptr};
    cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch);
    cudaMemcpy3DParms back = {};
    back.srcPtr = make_cudaPitchedPtr(x, 128, 32, 1);
    back.dstPtr = make_cudaPitchedPtr(out, 128, 32, 1);
    back.extent = make_cudaExtent(128, 1, 1), back.kind = cudaMemcpyDeviceToHost;
    cudaGraphAddMemcpyNode(&copy, graph, &kernel, 1, &back);
    cudaHostNodeParams host = {[](void *out) { printf("%d ", ((int *)out)[3]); }, out};
    cudaGraphAddHostNode(&call, graph, &copy, 1, &host);
    cudaGraphNodeType type;
    cudaGraphNodeGetType(copy, &type);
    cudaGraphClone(&clone, graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, 0);
    launch.kernelParams = second;
    cudaGraphExecKernelNodeSetParams(exec, kernel, &launch);
    cudaGraphExecMemcpyNodeSetParams1D(exec, copy, out + 3, x, 4, cudaMemcpyDeviceToHost);
    cudaGraphLaunch(exec, 0);
    cudaGraphExecUpdateResultInfo update;
    printf("%d %s ", type, cudaGetErrorName(cudaGraphExecUpdate(exec, clone, &update)));
    cudaGraphLaunch(exec, 0);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
}

int main() {
    build();
    int *x, host[32] = {0}, out[32];
    cudaMalloc(&x, 128);
    cudaStream_t stream, side;
    cudaStreamCreate(&stream); cudaStreamCreate(&side);
    cudaEvent_t forked, joined;
    cudaEventCreate(&forked); cudaEventCreate(&joined);
    cudaGraph_t graph; cudaGraphExec_t exec;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    cudaMemcpyAsync(x, host, 128, cudaMemcpyHostToDevice, stream);
    add<<<1, 32, 0, stream>>>(x, 2);
    cudaEventRecord(forked, stream);
    cudaStreamWaitEvent(side, forked, 0);
    add<<<1, 32, 0, side>>>(x, 40);
    cudaEventRecord(joined, side);
    cudaStreamWaitEvent(stream, joined, 0);
    printf("%s\n", cudaGetErrorName(cudaStreamSynchronize(stream)));
    cudaMemcpyAsync(out, x, 128, cudaMemcpyDeviceToHost, stream);
    cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(side, &status);
    printf("%s %d\n", cudaGetErrorName(cudaStreamEndCapture(stream, &graph)), status);
    size_t count; cudaGraphGetNodes(graph, nullptr, &count);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    out[3] = 0;
    for (int i = 0; i < 3; i++) { host[3] = i; cudaGraphLaunch(exec, stream); cudaStreamSynchronize(stream); printf("%d ", out[3]); }
    cudaGraphExecDestroy(exec);
    printf("%zu %s\n", count, cudaGetErrorName(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal)));
}
