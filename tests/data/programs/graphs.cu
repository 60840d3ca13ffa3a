// A graph: captured on two streams, and launched three times.
#include <cstdio>
__global__ void add(int *x, int n) { x[threadIdx.x] += n; }
int main() {
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
