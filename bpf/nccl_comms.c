// Which NCCL communicators are born and die, in which process, with which rank, size and unique id?
//
// One event per call, queued at its return, when the new communicator's pointer is known. These calls are rare (some
// tens per job), so their cost does not matter. Inside a group a birth is only asked for when the call returns.

enum comm_function {
  INIT_RANK = 1,
  INIT_RANK_CONFIG,
  INIT_RANK_SCALABLE,
  INIT_ALL,
  SPLIT,
  SHRINK,
  GROW,
  FINALIZE,
  DESTROY,
  ABORT,
};

#define UNIQUE_ID_BYTES 128
#define UNKNOWN_NUMBER (-0x7fffffff - 1)
#define DEVICES_AT_MOST 16

struct comm_event {
  u64 entered_ns;
  u64 returned_ns;
  u64 comm;
  u64 parent;
  u64 cgroup_id;
  u32 function;
  u32 tgid;
  s32 rank;
  s32 nranks;
  s32 color;
  s32 order_key;
  s32 result;
  u32 has_unique_id;
  u8 unique_id[UNIQUE_ID_BYTES];
};

struct open_comm {
  u64 sp;
  u64 out;  // where the function stores the new communicator, 0 for deaths
  struct comm_event event;
};

BPF_HASH(nccl_open_comms, struct thread_key, struct open_comm, 4096);
BPF_QUEUE(nccl_comm_events, struct comm_event, 4096);

static __always_inline int open_event(struct pt_regs *ctx, struct open_comm *open, u32 function) {
  u64 pid_tgid = bpf_get_current_pid_tgid();
  struct thread_key thread = {.pid_tgid = pid_tgid, .function = function};
  struct open_comm *same = nccl_open_comms.lookup(&thread);
  open->sp = PT_REGS_SP(ctx);
  if (same && same->sp == open->sp)
    return 0;
  open->event.entered_ns = wall_ns();
  open->event.cgroup_id = bpf_get_current_cgroup_id();
  open->event.function = function;
  open->event.tgid = pid_tgid >> 32;
  if (nccl_open_comms.update(&thread, open))
    lost(LOST_EVENTS, 1);
  return 0;
}

static __always_inline void copy_unique_id(struct open_comm *open, u64 address) {
  if (address && !bpf_probe_read_user(open->event.unique_id, UNIQUE_ID_BYTES, (void *)address))
    open->event.has_unique_id = 1;
}

#define NEW_EVENT                                \
  struct open_comm open = {};                    \
  open.event.rank = UNKNOWN_NUMBER;              \
  open.event.nranks = UNKNOWN_NUMBER;            \
  open.event.color = UNKNOWN_NUMBER;             \
  open.event.order_key = UNKNOWN_NUMBER;

// The unique id is passed by value: its 128 bytes lie on the stack, where the first stack argument would be.
static __always_inline int enter_init(struct pt_regs *ctx, u32 function) {
  NEW_EVENT
  open.out = PT_REGS_PARM1(ctx);
  open.event.nranks = PT_REGS_PARM2(ctx);
  open.event.rank = PT_REGS_PARM3(ctx);
  copy_unique_id(&open, PT_REGS_SP(ctx) + 8);
  return open_event(ctx, &open, function);
}

int enter_init_rank(struct pt_regs *ctx) { return enter_init(ctx, INIT_RANK); }
int enter_init_rank_config(struct pt_regs *ctx) { return enter_init(ctx, INIT_RANK_CONFIG); }

// With several ids NCCL's own hash is that of the first.
int enter_init_rank_scalable(struct pt_regs *ctx) {
  NEW_EVENT
  open.out = PT_REGS_PARM1(ctx);
  open.event.nranks = PT_REGS_PARM2(ctx);
  open.event.rank = PT_REGS_PARM3(ctx);
  copy_unique_id(&open, PT_REGS_PARM5(ctx));
  return open_event(ctx, &open, INIT_RANK_SCALABLE);
}

int enter_init_all(struct pt_regs *ctx) {
  NEW_EVENT
  open.out = PT_REGS_PARM1(ctx);
  open.event.nranks = PT_REGS_PARM2(ctx);
  return open_event(ctx, &open, INIT_ALL);
}

// A child's rank and size are decided while the call runs: only its parent, color and key are told here.
int enter_split(struct pt_regs *ctx) {
  NEW_EVENT
  open.event.parent = PT_REGS_PARM1(ctx);
  open.event.color = PT_REGS_PARM2(ctx);
  open.event.order_key = PT_REGS_PARM3(ctx);
  open.out = PT_REGS_PARM4(ctx);
  return open_event(ctx, &open, SPLIT);
}

int enter_shrink(struct pt_regs *ctx) {
  NEW_EVENT
  open.event.parent = PT_REGS_PARM1(ctx);
  open.out = PT_REGS_PARM4(ctx);
  return open_event(ctx, &open, SHRINK);
}

// Ranks that were there before pass -1 as their rank, and no id.
int enter_grow(struct pt_regs *ctx) {
  NEW_EVENT
  open.event.parent = PT_REGS_PARM1(ctx);
  open.event.nranks = PT_REGS_PARM2(ctx);
  copy_unique_id(&open, PT_REGS_PARM3(ctx));
  if ((s32)PT_REGS_PARM4(ctx) >= 0)
    open.event.rank = PT_REGS_PARM4(ctx);
  open.out = PT_REGS_PARM5(ctx);
  return open_event(ctx, &open, GROW);
}

static __always_inline int enter_death(struct pt_regs *ctx, u32 function) {
  NEW_EVENT
  open.event.comm = PT_REGS_PARM1(ctx);
  return open_event(ctx, &open, function);
}

int enter_finalize(struct pt_regs *ctx) { return enter_death(ctx, FINALIZE); }
int enter_destroy(struct pt_regs *ctx) { return enter_death(ctx, DESTROY); }
int enter_abort(struct pt_regs *ctx) { return enter_death(ctx, ABORT); }

static __always_inline void queue_event(struct comm_event *event) {
  if (nccl_comm_events.push(event, 0))
    lost(LOST_EVENTS, 1);
}

static __always_inline struct open_comm *returned(struct pt_regs *ctx, struct thread_key *thread) {
  thread->pid_tgid = bpf_get_current_pid_tgid();
  struct open_comm *open = nccl_open_comms.lookup(thread);
  if (!open)
    return 0;
  open->event.result = PT_REGS_RC(ctx);
  open->event.returned_ns = wall_ns();
  return open;
}

static __always_inline int leave_comm(struct pt_regs *ctx, u32 function) {
  struct thread_key thread = {.function = function};
  struct open_comm *open = returned(ctx, &thread);
  if (!open)
    return 0;
  if (open->out && (open->event.result == 0 || open->event.result == NCCL_IN_PROGRESS))
    bpf_probe_read_user(&open->event.comm, sizeof(u64), (void *)open->out);
  // A communicator's numbers start again with the next one at this address.
  if (!open->event.result && (function == DESTROY || function == ABORT)) {
    struct communicator_key key = {.comm = open->event.comm, .tgid = open->event.tgid};
    nccl_sequences.delete(&key);
  }
  queue_event(&open->event);
  nccl_open_comms.delete(&thread);
  return 0;
}

int leave_init_rank(struct pt_regs *ctx) { return leave_comm(ctx, INIT_RANK); }
int leave_init_rank_config(struct pt_regs *ctx) { return leave_comm(ctx, INIT_RANK_CONFIG); }
int leave_init_rank_scalable(struct pt_regs *ctx) { return leave_comm(ctx, INIT_RANK_SCALABLE); }
int leave_split(struct pt_regs *ctx) { return leave_comm(ctx, SPLIT); }
int leave_shrink(struct pt_regs *ctx) { return leave_comm(ctx, SHRINK); }
int leave_grow(struct pt_regs *ctx) { return leave_comm(ctx, GROW); }
int leave_finalize(struct pt_regs *ctx) { return leave_comm(ctx, FINALIZE); }
int leave_destroy(struct pt_regs *ctx) { return leave_comm(ctx, DESTROY); }
int leave_abort(struct pt_regs *ctx) { return leave_comm(ctx, ABORT); }

// One process, one communicator per device: one event each, up to a bound; a failure is one event.
int leave_init_all(struct pt_regs *ctx) {
  struct thread_key thread = {.function = INIT_ALL};
  struct open_comm *open = returned(ctx, &thread);
  if (!open)
    return 0;
  s32 devices = open->event.nranks;
  if (open->event.result != 0 && open->event.result != NCCL_IN_PROGRESS) {
    queue_event(&open->event);
    devices = 0;
  }
  if (devices > DEVICES_AT_MOST)
    lost(LOST_EVENTS, devices - DEVICES_AT_MOST);
#pragma unroll
  for (int rank = 0; rank < DEVICES_AT_MOST; rank++) {
    if (rank < devices) {
      open->event.rank = rank;
      bpf_probe_read_user(&open->event.comm, sizeof(u64), (void *)(open->out + 8 * rank));
      queue_event(&open->event);
    }
  }
  nccl_open_comms.delete(&thread);
  return 0;
}
