/* Graphs of the runtime library: what a stream captures, and what is built node by node. Handles are
   the driver's. */

CUresult cuGraphCreate(void *graph, unsigned flags);
CUresult cuGraphClone(void *made, void *graph);
CUresult cuStreamBeginCaptureToGraph(uint64_t stream, void *graph, void *after, void *edges,
                                     size_t count, unsigned mode);
CUresult cuGraphAddKernelNode_v2(void *node, void *graph, void *after, size_t count,
                                 const void *given);
CUresult cuGraphAddMemcpyNode(void *node, void *graph, void *after, size_t count,
                              const struct space *copy, void *context);
CUresult cuGraphAddMemsetNode(void *node, void *graph, void *after, size_t count,
                              const void *given, void *context);
CUresult cuGraphAddHostNode(void *node, void *graph, void *after, size_t count, const void *host);
CUresult cuGraphAddEmptyNode(void *node, void *graph, void *after, size_t count);
CUresult cuGraphAddChildGraphNode(void *node, void *graph, void *after, size_t count, void *child);
CUresult cuGraphChildGraphNodeGetGraph(void *node, void *graph);
CUresult cuGraphNodeGetType(void *node, int *type);
CUresult cuGraphExecKernelNodeSetParams_v2(void *made, void *node, const void *given);
CUresult cuGraphExecMemcpyNodeSetParams(void *made, void *node, const struct space *copy,
                                        void *context);
CUresult cuGraphExecMemsetNodeSetParams(void *made, void *node, const void *given, void *context);
CUresult cuGraphExecChildGraphNodeSetParams(void *made, void *node, void *child);
CUresult cuGraphExecUpdate_v2(void *made, void *graph, void *update);

RUNTIME(cudaStreamBeginCapture, (uint64_t stream, unsigned mode), cuStreamBeginCapture_v2(stream, mode))
RUNTIME(cudaStreamEndCapture, (uint64_t stream, void *graph), cuStreamEndCapture(stream, graph))
RUNTIME(cudaGraphInstantiate, (void *made, void *graph, uint64_t flags),
        cuGraphInstantiateWithFlags(made, graph, flags))
RUNTIME(cudaGraphInstantiateWithFlags, (void *made, void *graph, uint64_t flags),
        cuGraphInstantiateWithFlags(made, graph, flags))
RUNTIME(cudaGraphInstantiateWithParams, (void *made, void *graph, void *how),
        cuGraphInstantiateWithFlags(made, graph, 0))
RUNTIME(cudaGraphLaunch, (void *graph, void *stream), cuGraphLaunch(graph, stream))
RUNTIME(cudaGraphUpload, (void *graph, void *stream), SUCCESS)
RUNTIME(cudaGraphDestroy, (void *graph), cuGraphDestroy(graph))
RUNTIME(cudaGraphExecDestroy, (void *graph), cuGraphDestroy(graph))
RUNTIME(cudaGraphGetNodes, (void *graph, void *nodes, size_t *count),
        cuGraphGetNodes(graph, nodes, count))
RUNTIME(cudaGraphCreate, (void *graph, unsigned flags), cuGraphCreate(graph, flags))
RUNTIME(cudaGraphClone, (void *made, void *graph), cuGraphClone(made, graph))
RUNTIME(cudaStreamBeginCaptureToGraph, (uint64_t stream, void *graph, void *after, void *edges,
                                        size_t count, unsigned mode),
        cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode))

/* The driver's parameters of a node. */
struct runtime_kernel_node { /* cudaKernelNodeParams */
    const void *function;
    struct dim3 grid, block;
    unsigned shared;
    void **parameters, **extra;
};
struct driver_kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    uint64_t function;
    struct dim3 grid, block;
    unsigned shared;
    void **parameters, **extra;
    uint64_t kernel;
    void *context;
};
static CUresult kernel_node_of(struct driver_kernel_node *made,
                               const struct runtime_kernel_node *given) {
    if (!given) return INVALID_VALUE;
    *made = (struct driver_kernel_node){.grid = given->grid, .block = given->block,
                                        .shared = given->shared, .parameters = given->parameters,
                                        .extra = given->extra};
    return kernel_of(&made->function, given->function);
}
static struct space row_of(uint64_t to, uint64_t from, size_t size) {
    return (struct space){.from_type = UNIFIED, .from_device = from, .from_pitch = size,
                          .to_type = UNIFIED, .to_device = to, .to_pitch = size,
                          .width = size, .height = 1, .depth = 1};
}

/* What adds a node to a graph has these parameters first. */
#define NODE void *node, void *graph, void *after, size_t count
#define AT node, graph, after, count
static CUresult add_kernel(NODE, const struct runtime_kernel_node *given) {
    struct driver_kernel_node made;
    CUresult status = kernel_node_of(&made, given);
    return status ? status : cuGraphAddKernelNode_v2(AT, &made);
}
static CUresult set_kernel(void *made, void *node, const struct runtime_kernel_node *given) {
    struct driver_kernel_node kernel;
    CUresult status = kernel_node_of(&kernel, given);
    return status ? status : cuGraphExecKernelNodeSetParams_v2(made, node, &kernel);
}
static CUresult add_copy(NODE, struct space copy) {
    return cuGraphAddMemcpyNode(AT, &copy, NULL);
}
static CUresult set_copy(void *made, void *node, struct space copy) {
    return cuGraphExecMemcpyNodeSetParams(made, node, &copy, NULL);
}
RUNTIME(cudaGraphAddKernelNode, (NODE, const struct runtime_kernel_node *given),
        add_kernel(AT, given))
RUNTIME(cudaGraphAddMemcpyNode, (NODE, const struct volume *copy),
        copy ? add_copy(AT, space_of(copy)) : INVALID_VALUE)
RUNTIME(cudaGraphAddMemcpyNode1D, (NODE, uint64_t to, uint64_t from, size_t size, int kind),
        add_copy(AT, row_of(to, from, size)))
RUNTIME(cudaGraphAddMemsetNode, (NODE, const void *given), cuGraphAddMemsetNode(AT, given, NULL))
RUNTIME(cudaGraphAddHostNode, (NODE, const void *host), cuGraphAddHostNode(AT, host))
RUNTIME(cudaGraphAddEmptyNode, (NODE), cuGraphAddEmptyNode(AT))
RUNTIME(cudaGraphAddChildGraphNode, (NODE, void *child), cuGraphAddChildGraphNode(AT, child))
RUNTIME(cudaGraphChildGraphNodeGetGraph, (void *node, void *graph),
        cuGraphChildGraphNodeGetGraph(node, graph))
RUNTIME(cudaGraphNodeGetType, (void *node, int *type), cuGraphNodeGetType(node, type))
RUNTIME(cudaGraphExecKernelNodeSetParams,
        (void *made, void *node, const struct runtime_kernel_node *given),
        set_kernel(made, node, given))
RUNTIME(cudaGraphExecMemcpyNodeSetParams, (void *made, void *node, const struct volume *copy),
        copy ? set_copy(made, node, space_of(copy)) : INVALID_VALUE)
RUNTIME(cudaGraphExecMemcpyNodeSetParams1D,
        (void *made, void *node, uint64_t to, uint64_t from, size_t size, int kind),
        set_copy(made, node, row_of(to, from, size)))
RUNTIME(cudaGraphExecMemsetNodeSetParams, (void *made, void *node, const void *given),
        cuGraphExecMemsetNodeSetParams(made, node, given, NULL))
RUNTIME(cudaGraphExecChildGraphNodeSetParams, (void *made, void *node, void *child),
        cuGraphExecChildGraphNodeSetParams(made, node, child))
RUNTIME(cudaGraphExecUpdate, (void *made, void *graph, void *update),
        cuGraphExecUpdate_v2(made, graph, update))
