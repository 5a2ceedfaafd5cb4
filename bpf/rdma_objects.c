// Which process, in which cgroup, holds how many queue pairs, completion queues and memory regions on each device?
//
// Every driver's objects pass the kernel's own resource tracking (ib_core, the source of `rdma resource show`):
// rdma_restrack_add when an object exists; rdma_restrack_del when it ends, also when it dies with its process (newer
// kernels end queue pairs and completion queues in two steps: rdma_restrack_begin_del, then ..._commit_del or
// ..._abort_del). So a few entry probes cover all drivers, and no return probe can be missed. Not seen: objects made
// through mlx5 DEVX.
//
// Struct offsets come in as macros, read from the running kernel's BTF: including kernel headers makes the compile
// ten times slower, and the headers of a module built elsewhere would be the wrong ones.
// Cost: one create or destroy pays three hash updates and a few atomic additions; nothing runs in between.

#include <uapi/linux/ptrace.h>
#include "rdma_holders.h"

#define QP_STATE_MASK 1  // IB_QP_STATE, an ABI since 2.6
#define QP_STATE_RTS 3   // IB_QPS_RTS, likewise
// Implicit on-demand regions span the whole address space: a region, but no bytes of their own.
#define IMPLICIT_BYTES (1ULL << 62)

struct modify_call {
    u64 object;
};

BPF_HASH(objects, u64, struct object_owner, MAX_OBJECTS);
BPF_HASH(holders, struct holder_key, struct holder_counts, MAX_HOLDERS);
BPF_HASH(devices, u64, struct device_facts, 1024);
BPF_HASH(modifying, u64, struct modify_call, 4096);
BPF_ARRAY(losses, u64, LOSSES);

static __always_inline void count_loss(int which) {
    u64 *total = losses.lookup(&which);
    if (total) lock_xadd(total, 1);
}

#define READ(into, from) bpf_probe_read_kernel(&(into), sizeof(into), (void *)(from))

static __always_inline struct holder_counts *counts_of(struct holder_key *holder) {
    struct holder_counts *counts = holders.lookup(holder);
    if (counts) return counts;
    struct holder_counts fresh = {};
    if (holder->pid) bpf_get_current_comm(&fresh.comm, sizeof(fresh.comm));
    holders.insert(holder, &fresh);  // lost a race: the other CPU's entry is as good
    counts = holders.lookup(holder);
    if (!counts) count_loss(LOST_HOLDERS_FULL);
    return counts;
}

static __always_inline void remember_device(u64 device) {
    // Every time, not once: a device can be renamed, and another one can come to the same address.
    struct device_facts facts = {};
    READ(facts.driver, device + DEVICE_DRIVER);
    READ(facts.name, device + DEVICE_NAME);
    devices.update(&device, &facts);
    if (!devices.lookup(&device)) count_loss(LOST_DEVICES_FULL);
}

int on_object_begin(struct pt_regs *ctx) {
    u64 tracked = PT_REGS_PARM1(ctx);
    u32 kind = 0;
    u8 of_user = 0;
    u64 device = 0;
    struct object_owner owner = {};
    READ(kind, tracked + TRACKED_KIND);
    READ(of_user, tracked + TRACKED_USER);
    if (kind == KIND_QP) {
        READ(device, tracked - QP_TRACKED + QP_DEVICE);
    } else if (kind == KIND_CQ) {
        READ(device, tracked - CQ_TRACKED + CQ_DEVICE);
    } else if (kind == KIND_MR) {
        READ(device, tracked - MR_TRACKED + MR_DEVICE);
        READ(owner.bytes, tracked - MR_TRACKED + MR_LENGTH);
        if (owner.bytes >= IMPLICIT_BYTES) owner.bytes = 0;
    } else {
        return 0;
    }
    owner.kind = kind;
    owner.holder.device = device;
    if (of_user) {
        owner.holder.pid = bpf_get_current_pid_tgid() >> 32;
        owner.holder.cgroup_id = bpf_get_current_cgroup_id();
    }
    remember_device(device);
    objects.update(&tracked, &owner);
    if (!objects.lookup(&tracked)) count_loss(LOST_OBJECTS_FULL);

    struct holder_counts *counts = counts_of(&owner.holder);
    if (!counts) return 0;
    if (kind == KIND_QP) {
        lock_xadd(&counts->qp_created, 1);
    } else if (kind == KIND_CQ) {
        lock_xadd(&counts->cq_created, 1);
    } else {
        lock_xadd(&counts->mr_registered, 1);
        lock_xadd(&counts->mr_registered_bytes, owner.bytes);
    }
    return 0;
}

static __always_inline int end_object(u64 tracked, int was_tracked) {
    struct object_owner *found = objects.lookup(&tracked);
    if (!found) {
        u32 kind = 0;
        READ(kind, tracked + TRACKED_KIND);
        if (was_tracked && (kind == KIND_QP || kind == KIND_CQ || kind == KIND_MR)) count_loss(SEEN_END_WITHOUT_BEGIN);
        return 0;
    }
    struct object_owner owner = *found;
    objects.delete(&tracked);
    struct holder_counts *counts = counts_of(&owner.holder);
    if (!counts) return 0;
    if (owner.kind == KIND_QP) {
        lock_xadd(&counts->qp_destroyed, 1);
    } else if (owner.kind == KIND_CQ) {
        lock_xadd(&counts->cq_destroyed, 1);
    } else {
        lock_xadd(&counts->mr_deregistered, 1);
        lock_xadd(&counts->mr_deregistered_bytes, owner.bytes);
    }
    return 0;
}

// rdma_restrack_del is also called for objects that were never added; those are not `valid`.
int on_object_end(struct pt_regs *ctx) {
    u64 tracked = PT_REGS_PARM1(ctx);
    u8 valid = 0;
    READ(valid, tracked + TRACKED_VALID);
    return end_object(tracked, valid);
}

int on_object_end_committed(struct pt_regs *ctx) {
    return end_object(PT_REGS_PARM1(ctx), 1);
}

int on_modify_qp(struct pt_regs *ctx) {
    u64 attributes = PT_REGS_PARM2(ctx);
    u32 state = 0;
    if (!((u32)PT_REGS_PARM3(ctx) & QP_STATE_MASK)) return 0;
    READ(state, attributes + ATTRIBUTES_STATE);
    if (state != QP_STATE_RTS) return 0;
    u64 task = bpf_get_current_pid_tgid();
    struct modify_call call = {.object = PT_REGS_PARM1(ctx) + QP_TRACKED};
    modifying.update(&task, &call);
    return 0;
}

int on_modified_qp(struct pt_regs *ctx) {
    u64 task = bpf_get_current_pid_tgid();
    struct modify_call *call = modifying.lookup(&task);
    if (!call) return 0;
    u64 tracked = call->object;
    modifying.delete(&task);
    if ((int)PT_REGS_RC(ctx) != 0) return 0;
    struct object_owner *owner = objects.lookup(&tracked);
    if (!owner || owner->reached_rts) return 0;
    owner->reached_rts = 1;
    struct holder_counts *counts = counts_of(&owner->holder);
    if (counts) lock_xadd(&counts->qp_rts, 1);
    return 0;
}
