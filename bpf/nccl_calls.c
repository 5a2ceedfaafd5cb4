// Which process calls which NCCL operation on which communicator, with how many elements, when, and how many fail?
//
// One entry per (tick, process, communicator, operation, type, count): counted in the kernel, read in batches by
// producers/kernel/nccl.py. Times are enqueue times: what the host asked for, never how long the GPU took.
// `failed` counts returns that are neither ncclSuccess nor ncclInProgress, in the tick of the return.
// Operation numbers are those of streams/contract/calls.py.
//
// Cost per call (bench/uprobe_cost.py: libnccl 2.32.3, kernel 6.18, one of two busy cores, medians of 7 x 100,000):
//   no probe                           91 ns
//   empty program at entry           +468 ns
//   empty program, entry and return  +791 ns
//   these programs at entry          +588 ns
//   these programs, entry and return +1028 ns    what the agent attaches
// A training step makes some tens to hundreds of calls: 0.1 ms of host time per step at most.

struct call_key {
  u64 tick;
  u64 comm;
  u64 count;
  u32 tgid;
  u32 op;
  u32 dtype;
  u32 unused;
};

struct call_value {
  u64 calls;
  u64 failed;
  u64 first_seq;
  u64 last_seq;
  u64 first_ns;
  u64 last_ns;
  u64 cgroup_id;
};

struct open_call {
  u64 sp;
  struct call_key key;
};

BPF_HASH(nccl_calls, struct call_key, struct call_value, 16384);
BPF_HASH(nccl_open_calls, struct thread_key, struct open_call, 8192);

// From 1, per (process, communicator). NCCL allows one caller at a time per communicator; two threads that break
// that may read the same number, and no call is lost by it.
static __always_inline u64 next_sequence(u32 tgid, u64 comm) {
  struct communicator_key key = {.comm = comm, .tgid = tgid};
  u64 zero = 0;
  u64 *sequence = nccl_sequences.lookup_or_try_init(&key, &zero);
  if (!sequence) {
    lost(LOST_SEQUENCES, 1);
    return 0;
  }
  __sync_fetch_and_add(sequence, 1);
  return *sequence;
}

static __always_inline struct call_value *value_of(struct call_key *key, u64 now_ns) {
  struct call_value fresh = {};
  key->tick = now_ns / TICK_NS;
  struct call_value *value = nccl_calls.lookup_or_try_init(key, &fresh);
  if (!value) {
    lost(LOST_CALLS, 1);
    return 0;
  }
  if (!value->first_ns) {
    value->first_ns = now_ns;
    value->cgroup_id = bpf_get_current_cgroup_id();
  }
  value->last_ns = now_ns;
  return value;
}

static __always_inline int enter(struct pt_regs *ctx, u32 op, u64 count, u32 dtype, u64 comm) {
  u64 pid_tgid = bpf_get_current_pid_tgid();
  struct thread_key thread = {.pid_tgid = pid_tgid, .function = op};
  struct open_call *open = nccl_open_calls.lookup(&thread);
  if (open && open->sp == PT_REGS_SP(ctx))
    return 0;

  struct open_call call = {.sp = PT_REGS_SP(ctx)};
  call.key.tgid = pid_tgid >> 32;
  call.key.comm = comm;
  call.key.count = count;
  call.key.op = op;
  call.key.dtype = dtype;
  if (nccl_open_calls.update(&thread, &call))
    lost(LOST_RETURNS, 1);

  u64 sequence = next_sequence(call.key.tgid, comm);
  struct call_value *value = value_of(&call.key, wall_ns());
  if (!value)
    return 0;
  __sync_fetch_and_add(&value->calls, 1);
  if (!value->first_seq)
    value->first_seq = sequence;
  value->last_seq = sequence;
  return 0;
}

static __always_inline int leave(struct pt_regs *ctx, u32 op) {
  struct thread_key thread = {.pid_tgid = bpf_get_current_pid_tgid(), .function = op};
  struct open_call *open = nccl_open_calls.lookup(&thread);
  if (!open)
    return 0;
  u32 result = PT_REGS_RC(ctx);
  if (result != 0 && result != NCCL_IN_PROGRESS) {
    struct call_key key = open->key;
    struct call_value *value = value_of(&key, wall_ns());
    if (value)
      __sync_fetch_and_add(&value->failed, 1);
  }
  nccl_open_calls.delete(&thread);
  return 0;
}

#define NO_TYPE 0xffffffff

#define OPERATION(name, op, count, dtype, comm)                                                 \
  int enter_##name(struct pt_regs *ctx) { return enter(ctx, op, count, (u32)(dtype), comm); }   \
  int leave_##name(struct pt_regs *ctx) { return leave(ctx, op); }

#define ARG1 PT_REGS_PARM1(ctx)
#define ARG2 PT_REGS_PARM2(ctx)
#define ARG3 PT_REGS_PARM3(ctx)
#define ARG4 PT_REGS_PARM4(ctx)
#define ARG5 PT_REGS_PARM5(ctx)
#define ARG6 PT_REGS_PARM6(ctx)

//        name            op  count  type     communicator
OPERATION(all_reduce,     1,  ARG3,  ARG4,    ARG6)
OPERATION(all_gather,     2,  ARG3,  ARG4,    ARG5)
OPERATION(reduce_scatter, 3,  ARG3,  ARG4,    ARG6)
OPERATION(broadcast,      4,  ARG3,  ARG4,    ARG6)
OPERATION(bcast,          4,  ARG2,  ARG3,    ARG5)
OPERATION(reduce,         5,  ARG3,  ARG4,    stack_argument(ctx, 0))
OPERATION(send,           6,  ARG2,  ARG3,    ARG5)
OPERATION(recv,           7,  ARG2,  ARG3,    ARG5)
OPERATION(all_to_all,     8,  ARG3,  ARG4,    ARG5)
OPERATION(gather,         9,  ARG3,  ARG4,    ARG6)
OPERATION(scatter,        10, ARG3,  ARG4,    ARG6)
OPERATION(put_signal,     11, ARG2,  ARG3,    stack_argument(ctx, 3))
OPERATION(signal,         12, 0,     NO_TYPE, ARG5)
OPERATION(wait_signal,    13, 0,     NO_TYPE, ARG3)
