/* Graphs: what streams are asked while they are captured, in the order of the calls, and done again
   at each launch. A node is added after those that it depends on, so this is an order of all. */

#include "client.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ILLEGAL_STATE = 401, CAPTURE_UNSUPPORTED = 900 };

struct node {
    struct node *next;
    const struct node *origin; /* of a copy: what it is one of */
    CUresult (*again)(const void *what);
    size_t size;
    uint64_t what[];
};
struct graph {
    struct node *first, **end;
};
/* The streams that are captured, and the events that were recorded on them; and each graph, to which
   nodes are added as if it were such a stream. */
static struct member {
    struct member *next;
    uint64_t handle;
    struct graph *graph;
} *members;
static pthread_mutex_t graphs = PTHREAD_MUTEX_INITIALIZER;

static struct graph *graph_of(uint64_t handle) {
    struct graph *found = NULL;
    pthread_mutex_lock(&graphs);
    for (struct member *each = members; handle && each && !found; each = each->next)
        if (each->handle == handle) found = each->graph;
    pthread_mutex_unlock(&graphs);
    return found;
}

static void join(uint64_t handle, struct graph *graph) {
    struct member *made = malloc(sizeof *made);
    if (!made) abort();
    pthread_mutex_lock(&graphs);
    *made = (struct member){members, handle, graph};
    members = made;
    pthread_mutex_unlock(&graphs);
}

/* Forget a handle, or (0) all of a graph. */
static void leave(uint64_t handle, struct graph *graph) {
    pthread_mutex_lock(&graphs);
    for (struct member **at = &members; *at;) {
        struct member *each = *at;
        if (handle ? each->handle == handle : each->graph == graph) {
            *at = each->next;
            free(each);
        } else at = &each->next;
    }
    pthread_mutex_unlock(&graphs);
}

static void append(struct graph *graph, const struct node *origin,
                   CUresult (*again)(const void *), const void *what, size_t size) {
    struct node *node = malloc(sizeof *node + size);
    if (!node) abort();
    *node = (struct node){NULL, origin, again, size};
    memcpy(node->what, what, size);
    pthread_mutex_lock(&graphs);
    *graph->end = node;
    graph->end = &node->next;
    pthread_mutex_unlock(&graphs);
}

int captured(void *stream, CUresult (*again)(const void *), const void *what, size_t size) {
    struct graph *graph = graph_of((uint64_t)stream);
    if (graph) append(graph, NULL, again, what, size);
    return graph != NULL;
}

EXPORT CUresult cuGraphCreate(struct graph **graph, unsigned flags) {
    if (!graph) return INVALID_VALUE;
    struct graph *made = *graph = calloc(1, sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    made->end = &made->first;
    join((uint64_t)made, made);
    return SUCCESS;
}

static CUresult replay(const void *what) {
    const struct graph *graph = *(struct graph *const *)what;
    CUresult status = SUCCESS;
    for (struct node *node = graph->first; node && status == SUCCESS; node = node->next)
        status = node->again(node->what);
    return status;
}

/* The nodes of a graph that ends, with the graphs in them. */
static void empty(struct graph *graph) {
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->again == replay) empty(*(struct graph **)node->what), free(*(void **)node->what);
        free(node);
    }
    graph->first = NULL, graph->end = &graph->first;
}

static void copy_nodes(struct graph *to, const struct graph *from);
static void append_graph(struct graph *to, const struct node *origin, const struct graph *graph) {
    struct graph *inner = malloc(sizeof *inner);
    if (!inner) abort();
    inner->first = NULL, inner->end = &inner->first;
    copy_nodes(inner, graph);
    append(to, origin, replay, &inner, sizeof inner);
}
static void copy_nodes(struct graph *to, const struct graph *from) {
    for (const struct node *node = from->first; node; node = node->next)
        if (node->again == replay) append_graph(to, node, *(struct graph *const *)node->what);
        else append(to, node, node->again, node->what, node->size);
}

EXPORT CUresult cuGraphClone(struct graph **made, struct graph *graph) {
    if (!graph) return INVALID_VALUE;
    CUresult status = cuGraphCreate(made, 0);
    if (status == SUCCESS) copy_nodes(*made, graph);
    return status;
}

EXPORT CUresult cuStreamBeginCaptureToGraph(uint64_t stream, struct graph *graph, void *after,
                                            void *edges, size_t count, unsigned mode) {
    if (!stream) return CAPTURE_UNSUPPORTED;
    if (graph_of(stream)) return ILLEGAL_STATE;
    if (!graph) return INVALID_VALUE;
    join(stream, graph);
    return SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(uint64_t stream, unsigned mode) {
    if (!stream) return CAPTURE_UNSUPPORTED;
    if (graph_of(stream)) return ILLEGAL_STATE;
    struct graph *made;
    CUresult status = cuGraphCreate(&made, 0);
    return status ? status : cuStreamBeginCaptureToGraph(stream, made, NULL, NULL, 0, mode);
}

EXPORT CUresult cuStreamEndCapture(uint64_t stream, struct graph **graph) {
    *graph = graph_of(stream);
    if (!*graph) return ILLEGAL_STATE;
    leave(0, *graph);
    join((uint64_t)*graph, *graph);
    return SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(uint64_t stream, int *status) {
    *status = graph_of(stream) != NULL; /* ..._STATUS_ACTIVE */
    return SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v2(uint64_t stream, int *status, uint64_t *id,
                                          struct graph **graph, void ***nodes, size_t *count) {
    struct graph *found = graph_of(stream);
    *status = found != NULL;
    if (id) *id = (uint64_t)found;
    if (graph) *graph = found;
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    return SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v3(uint64_t stream, int *status, uint64_t *id,
                                          struct graph **graph, void ***nodes, void **edges,
                                          size_t *count) {
    if (edges) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
EXPORT CUresult cuStreamGetCaptureInfo(uint64_t stream, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

/* A stream that waits for a captured one is captured, too; one that is captured waits for nothing. */
EXPORT CUresult cuEventRecord(uint64_t event, uint64_t stream) {
    struct graph *graph = graph_of(stream);
    leave(event, NULL);
    if (!graph) return _cuEventRecord(event, stream);
    join(event, graph);
    return SUCCESS;
}
EXPORT CUresult cuEventRecordWithFlags(uint64_t event, uint64_t stream, unsigned flags) {
    return cuEventRecord(event, stream);
}
EXPORT CUresult cuStreamWaitEvent(uint64_t stream, uint64_t event, unsigned flags) {
    struct graph *graph = graph_of(event);
    if (graph && !graph_of(stream)) join(stream, graph);
    return connected();
}
EXPORT CUresult cuStreamSynchronize(uint64_t stream) {
    return graph_of(stream) ? CAPTURE_UNSUPPORTED : connected();
}
EXPORT CUresult cuStreamQuery(uint64_t stream) { return cuStreamSynchronize(stream); }

EXPORT CUresult cuGraphDestroy(struct graph *graph) {
    if (!graph) return INVALID_VALUE;
    leave(0, graph);
    empty(graph);
    free(graph);
    return SUCCESS;
}
EXPORT CUresult cuGraphExecDestroy(struct graph *graph) { return cuGraphDestroy(graph); }
EXPORT CUresult cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph,
                                            uint64_t flags) {
    return cuGraphClone(made, graph);
}
EXPORT CUresult cuGraphInstantiateWithParams(struct graph **made, struct graph *graph, void *how) {
    return cuGraphInstantiateWithFlags(made, graph, 0);
}
EXPORT CUresult cuGraphInstantiate_v2(struct graph **made, struct graph *graph, void **failed,
                                      char *log, size_t size) {
    return cuGraphInstantiateWithFlags(made, graph, 0);
}
EXPORT CUresult cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
    size_t most = nodes ? *count : 0;
    *count = 0;
    for (struct node *node = graph->first; node; node = node->next, ++*count)
        if (*count < most) nodes[*count] = node;
    return SUCCESS;
}

EXPORT CUresult cuGraphLaunch(struct graph *graph, void *stream) {
    if (!graph) return INVALID_VALUE;
    struct graph *into = graph_of((uint64_t)stream);
    if (into) append_graph(into, NULL, graph);
    return into ? SUCCESS : replay(&graph);
}
EXPORT CUresult cuGraphUpload(struct graph *graph, void *stream) { return SUCCESS; }
