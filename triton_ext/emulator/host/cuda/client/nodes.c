/* Graphs that are built node by node: each node is asked of the graph as of a stream that is
   captured. */

#include "client.h"
#include <string.h>

enum { UPDATE_FAILURE = 910 };
enum { KERNEL, MEMCPY, MEMSET, HOST_CALL, CHILD, NOTHING }; /* CUgraphNodeType */

/* The node that a call has added, if it was done. */
static CUresult added(CUresult status, struct node **node, struct graph *graph,
                      struct node **end) {
    if (status != SUCCESS || graph->end == end) return status ? status : INVALID_VALUE;
    *node = (struct node *)((char *)graph->end - offsetof(struct node, next));
    return SUCCESS;
}
#define ADD(call)                                      \
    if (!node || !graph) return INVALID_VALUE;         \
    struct node **end = graph->end;                    \
    return added(call, node, graph, end)

struct kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    uint64_t function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    uint64_t kernel;
    void *context;
};
static CUresult kernel_into(struct graph *graph, const struct kernel_node *given) {
    if (!given) return INVALID_VALUE;
    struct launch what = {.shared = given->shared};
    memcpy(what.grid, given->grid, sizeof what.grid);
    memcpy(what.block, given->block, sizeof what.block);
    return launch(given->function ? given->function : given->kernel, &what, graph,
                  given->parameters, given->extra);
}
EXPORT CUresult cuGraphAddKernelNode_v2(struct node **node, struct graph *graph,
                                        struct node **after, size_t count,
                                        const struct kernel_node *given) {
    ADD(kernel_into(graph, given));
}

/* What later releases add to a node of a kernel; of the others there is nothing to heed here. */
EXPORT CUresult cuGraphKernelNodeSetAttribute(struct node *node, unsigned attribute,
                                              const uint32_t *value) {
    if (!node || !value || node->again != launched) return INVALID_VALUE;
    struct launch *what = &((struct call *)node->what)->launch;
    if (attribute == CLUSTER_DIMENSION) memcpy(what->cluster, value, sizeof what->cluster);
    if (attribute == COOPERATIVE) what->cooperative = *value;
    return SUCCESS;
}

EXPORT CUresult cuGraphAddMemcpyNode(struct node **node, struct graph *graph, struct node **after,
                                     size_t count, const struct space *copy, void *context) {
    ADD(copy ? cuMemcpy3DAsync_v2(copy, graph) : INVALID_VALUE);
}

struct memset_node { /* CUDA_MEMSET_NODE_PARAMS */
    uint64_t to;
    size_t pitch;
    unsigned value, bytes;
    size_t width, height;
};
static CUresult memset_into(struct graph *graph, const struct memset_node *given) {
    if (!given) return INVALID_VALUE;
    size_t pitch = given->height > 1 ? given->pitch : 0;
    return fill(graph, given->to, pitch, given->value, given->bytes, given->width, given->height);
}
EXPORT CUresult cuGraphAddMemsetNode(struct node **node, struct graph *graph, struct node **after,
                                     size_t count, const struct memset_node *given,
                                     void *context) {
    ADD(memset_into(graph, given));
}

EXPORT CUresult cuGraphAddHostNode(struct node **node, struct graph *graph, struct node **after,
                                   size_t count, const struct host *host) {
    ADD(host ? cuLaunchHostFunc(graph, host->function, host->data) : INVALID_VALUE);
}

static CUresult nothing(const void *what) { return SUCCESS; }
EXPORT CUresult cuGraphAddEmptyNode(struct node **node, struct graph *graph, struct node **after,
                                    size_t count) {
    ADD(captured(graph, nothing, "", 0) ? SUCCESS : INVALID_VALUE);
}

EXPORT CUresult cuGraphAddChildGraphNode(struct node **node, struct graph *graph,
                                         struct node **after, size_t count, struct graph *child) {
    ADD(child ? cuGraphLaunch(child, graph) : INVALID_VALUE);
}
EXPORT CUresult cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **graph) {
    if (!node || node->again != replay) return INVALID_VALUE;
    *graph = *(struct graph **)node->what;
    return SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(struct node *node, int *type) {
    if (!node || !type) return INVALID_VALUE;
    *type = node->again == launched     ? KERNEL
            : node->again == moved      ? MEMCPY
            : node->again == fill_again ? MEMSET
            : node->again == called     ? HOST_CALL
            : node->again == replay     ? CHILD
                                        : NOTHING;
    return SUCCESS;
}

struct node_parameters { /* CUgraphNodeParams */
    int type, reserved[3];
    union {
        struct kernel_node kernel;
        struct {
            int flags, reserved;
            void *context;
            struct space copy;
        } memcpy;
        struct memset_node memset;
        struct host host;
        struct graph *child;
        long long words[29];
    };
};
static CUresult into(struct graph *graph, const struct node_parameters *given) {
    if (given->type == KERNEL) return kernel_into(graph, &given->kernel);
    if (given->type == MEMCPY) return cuMemcpy3DAsync_v2(&given->memcpy.copy, graph);
    if (given->type == MEMSET) return memset_into(graph, &given->memset);
    if (given->type == HOST_CALL)
        return cuLaunchHostFunc(graph, given->host.function, given->host.data);
    if (given->type == CHILD) return given->child ? cuGraphLaunch(given->child, graph) : INVALID_VALUE;
    if (given->type == NOTHING) return captured(graph, nothing, "", 0) ? SUCCESS : INVALID_VALUE;
    complain("cuGraphAddNode", "of nodes there are kernels, copies, fills, calls of the host and graphs");
    return NOT_SUPPORTED;
}
EXPORT CUresult cuGraphAddNode_v2(struct node **node, struct graph *graph, struct node **after,
                                  void *edges, size_t count, const struct node_parameters *given) {
    ADD(given ? into(graph, given) : INVALID_VALUE);
}
EXPORT CUresult cuGraphAddNode(struct node **node, struct graph *graph, struct node **after,
                               size_t count, const struct node_parameters *given) {
    return cuGraphAddNode_v2(node, graph, after, NULL, count, given);
}

/* In place of what was made of a node, put the only one of another graph, which ends. */
static CUresult replaced(CUresult status, struct graph *made, struct node *node,
                         struct graph *by) {
    struct node **at = &made->first, *found = by->first;
    while (*at && (*at)->origin != node) at = &(*at)->next;
    if (status == SUCCESS && (!*at || !found || (*at)->again != found->again))
        status = INVALID_VALUE;
    if (status == SUCCESS) {
        struct node *old = *at;
        by->first = old;
        found->origin = node, found->next = old->next, *at = found;
        if (!found->next) made->end = &found->next;
        old->next = NULL;
    }
    cuGraphDestroy(by);
    return status;
}
#define REPLACE(call)                                        \
    struct graph *by;                                        \
    if (!made || cuGraphCreate(&by, 0)) return INVALID_VALUE; \
    return replaced(call, made, node, by)

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(struct graph *made, struct node *node,
                                                  const struct kernel_node *given) {
    REPLACE(kernel_into(by, given));
}
EXPORT CUresult cuGraphExecMemcpyNodeSetParams(struct graph *made, struct node *node,
                                               const struct space *copy, void *context) {
    REPLACE(copy ? cuMemcpy3DAsync_v2(copy, by) : INVALID_VALUE);
}
EXPORT CUresult cuGraphExecMemsetNodeSetParams(struct graph *made, struct node *node,
                                               const struct memset_node *given, void *context) {
    REPLACE(memset_into(by, given));
}
EXPORT CUresult cuGraphExecChildGraphNodeSetParams(struct graph *made, struct node *node,
                                                   struct graph *child) {
    REPLACE(child ? cuGraphLaunch(child, by) : INVALID_VALUE);
}

EXPORT CUresult cuGraphExecNodeSetParams(struct graph *made, struct node *node,
                                         const struct node_parameters *given) {
    REPLACE(given ? into(by, given) : INVALID_VALUE);
}

struct update { /* CUgraphExecUpdateResultInfo */
    int result;
    struct node *node, *from;
};
EXPORT CUresult cuGraphExecUpdate_v2(struct graph *made, struct graph *graph,
                                     struct update *update) {
    if (!made || !graph || !update) return INVALID_VALUE;
    struct node *old = made->first, *new = graph->first;
    while (old && new && old->again == new->again) old = old->next, new = new->next;
    *update = (struct update){old || new ? 2 : 0, new, old}; /* ..._ERROR_TOPOLOGY_CHANGED */
    if (old || new) return UPDATE_FAILURE;
    empty(made);
    copy_nodes(made, graph);
    return SUCCESS;
}
