/* Graphs: what streams are asked while they are captured, in the order of the calls, and done again
   at each launch. */

#include "client.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ILLEGAL_STATE = 401, CAPTURE_UNSUPPORTED = 900 };

struct node {
    struct node *next;
    CUresult (*again)(const void *what);
    uint64_t what[];
};
struct graph {
    struct node *first, **end;
    int holders; /* the program, and what was made of it to be launched */
};
/* The streams that are captured, and the events that were recorded on them. */
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

int captured(void *stream, CUresult (*again)(const void *), const void *what, size_t size) {
    struct graph *graph = graph_of((uint64_t)stream);
    if (!graph) return 0;
    struct node *node = malloc(sizeof *node + size);
    if (!node) abort();
    node->next = NULL, node->again = again;
    memcpy(node->what, what, size);
    pthread_mutex_lock(&graphs);
    *graph->end = node;
    graph->end = &node->next;
    pthread_mutex_unlock(&graphs);
    return 1;
}

EXPORT CUresult cuStreamBeginCapture_v2(uint64_t stream, unsigned mode) {
    if (!stream) return CAPTURE_UNSUPPORTED;
    if (graph_of(stream)) return ILLEGAL_STATE;
    struct graph *made = calloc(1, sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    made->end = &made->first, made->holders = 1;
    join(stream, made);
    return SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(uint64_t stream, struct graph **graph) {
    *graph = graph_of(stream);
    if (!*graph) return ILLEGAL_STATE;
    leave(0, *graph);
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
    if (--graph->holders) return SUCCESS;
    for (struct node *node = graph->first, *next; node; node = next) next = node->next, free(node);
    free(graph);
    return SUCCESS;
}
EXPORT CUresult cuGraphExecDestroy(struct graph *graph) { return cuGraphDestroy(graph); }
EXPORT CUresult cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph,
                                            uint64_t flags) {
    if (!made || !graph) return INVALID_VALUE;
    graph->holders++;
    *made = graph;
    return SUCCESS;
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

static CUresult replay(const void *what) {
    const struct graph *graph = *(struct graph *const *)what;
    CUresult status = SUCCESS;
    for (struct node *node = graph->first; node && status == SUCCESS; node = node->next)
        status = node->again(node->what);
    return status;
}
EXPORT CUresult cuGraphLaunch(struct graph *graph, void *stream) {
    if (!graph) return INVALID_VALUE;
    return captured(stream, replay, &graph, sizeof graph) ? SUCCESS : replay(&graph);
}
EXPORT CUresult cuGraphUpload(struct graph *graph, void *stream) { return SUCCESS; }
