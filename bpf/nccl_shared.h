// What the NCCL probe files share: the wall clock, loss counters, arguments, and the sequence of calls per communicator.
// User space joins this file and the probe files into one source: bcc rewrites map accesses in the main file only.
#include <uapi/linux/ptrace.h>

#if !defined(__x86_64__)
#error "the argument map of the NCCL probes is written for x86-64"
#endif

#define TICK_NS 100000000ULL
#define NCCL_IN_PROGRESS 7  // ncclInProgress: a non-blocking communicator is still at work, nothing has failed

// User space keeps this at wall clock minus CLOCK_MONOTONIC, so that ticks are cut here, on the wall clock's grid.
BPF_ARRAY(nccl_wall_offset_ns, s64, 1);

static __always_inline u64 wall_ns(void) {
  int zero = 0;
  s64 *offset = nccl_wall_offset_ns.lookup(&zero);
  return bpf_ktime_get_ns() + (offset ? *offset : 0);
}

// Maps are bounded and refuse rather than evict; every refusal is counted here, one slot per CPU, so nothing is lost
// without a number.
enum loss { LOST_CALLS, LOST_RETURNS, LOST_SEQUENCES, LOST_EVENTS, LOSSES };
BPF_PERCPU_ARRAY(nccl_lost, u64, LOSSES);

static __always_inline void lost(int what, u64 how_many) {
  u64 *counter = nccl_lost.lookup(&what);
  if (counter)
    *counter += how_many;
}

// The n-th argument (from 0) that did not fit into registers; right only at a function's first instruction.
static __always_inline u64 stack_argument(struct pt_regs *ctx, int n) {
  u64 value = 0;
  bpf_probe_read_user(&value, sizeof(value), (void *)(PT_REGS_SP(ctx) + 8 * (n + 1)));
  return value;
}

// One call in flight on one thread. Its stack pointer tells a second firing of the same call (two probes can sit on
// one real file: containers of one image, each with its own overlay) from the next call.
struct thread_key {
  u64 pid_tgid;
  u64 function;
};

struct communicator_key {
  u64 comm;
  u32 tgid;
  u32 unused;
};

BPF_HASH(nccl_sequences, struct communicator_key, u64, 16384);
