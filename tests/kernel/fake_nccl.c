// A library with NCCL's names and signatures whose calls succeed: without a GPU the real one makes no communicator.

#include <stddef.h>

typedef struct { char internal[128]; } unique_id;

static char communicators[64];
static int made;

static int make(void **comm) {
  *comm = &communicators[made++ % 64];
  return 0;
}

int ncclCommInitRank(void **comm, int nranks, unique_id id, int rank) { return make(comm); }
int ncclCommInitRankConfig(void **comm, int nranks, unique_id id, int rank, void *config) { make(comm); return 7; }
int ncclCommInitRankScalable(void **comm, int nranks, int rank, int ids, unique_id *id, void *config) { return make(comm); }
int ncclCommInitAll(void **comm, int devices, const int *list) {
  for (int i = 0; i < devices; i++)
    make(&comm[i]);
  return 0;
}
int ncclCommSplit(void *comm, int color, int key, void **child, void *config) { return make(child); }
int ncclCommShrink(void *comm, int *ranks, int count, void **child, void *config, int flags) { return make(child); }
int ncclCommGrow(void *comm, int nranks, const unique_id *id, int rank, void **child, void *config) { return make(child); }
int ncclCommFinalize(void *comm) { return 0; }
int ncclCommDestroy(void *comm) { return comm ? 0 : 4; }
int ncclCommAbort(void *comm) { return 0; }

// Returns what the caller passes as the operation, so that a test can choose the result.
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream) { return op; }
