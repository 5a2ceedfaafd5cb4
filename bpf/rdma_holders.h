// What the RDMA probes share: who holds an object, and the counters of one holder on one device.
// Python reads these structs by name; tests/producers/kernel/test_rdma_decode.py checks that both sides list the same fields.

#ifndef FABRIC_RDMA_HOLDERS_H
#define FABRIC_RDMA_HOLDERS_H

// A process in one cgroup on one device. In-kernel users (NVMe-oF, SMC, management QPs) are pid 0 in cgroup 0.
struct holder_key {
    u64 cgroup_id;
    u64 device;  // address of the kernel's ib_device; its name is in `devices`
    u32 pid;     // thread group, as the init namespace sees it
    u32 pad;
};

// What ended comes before what began: a copy is made from low to high addresses while other CPUs add, and in this
// order it can never show more ended than begun. Everything only grows.
struct holder_counts {
    u64 qp_destroyed;
    u64 qp_created;
    u64 qp_rts;
    u64 cq_destroyed;
    u64 cq_created;
    u64 mr_deregistered;
    u64 mr_registered;
    u64 mr_deregistered_bytes;
    u64 mr_registered_bytes;
    u64 sent_packets;
    u64 sent_bytes;
    char comm[16];
};

// The holder of one object, remembered from its creation until its end: it may be destroyed by another task (the
// cleanup of a killed process), and its packets leave in softirq, where the current task is somebody else.
struct object_owner {
    struct holder_key holder;
    u64 bytes;
    u32 kind;
    u32 reached_rts;
};

struct device_facts {
    u32 driver;  // enum rdma_driver_id
    u32 pad;
    char name[64];  // IB_DEVICE_NAME_MAX
};

enum loss {
    LOST_OBJECTS_FULL,   // created objects that found `objects` full: counted as created, their end is not seen
    LOST_HOLDERS_FULL,   // events of holders that found `holders` full
    LOST_DEVICES_FULL,   // devices that found `devices` full
    SEEN_END_WITHOUT_BEGIN,  // objects that ended but began before the probes were attached: no loss, but said
    LOSSES,
};

#endif
