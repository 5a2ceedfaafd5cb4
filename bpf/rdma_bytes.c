// How many bytes did each holder's queue pairs put on the wire, where the driver has a function that every packet passes?
//
// rxe: rxe_xmit_packet(qp, pkt, skb) hands each request, response, acknowledgement and retransmission to the network.
// skb->len is there the IP packet: IP, UDP, InfiniBand headers, payload, padding and ICRC, without the 14 bytes of
// Ethernet header that the netdev's counters add. It runs in softirq: the holder is the one who created the queue pair.
//
// Compiled behind rdma_objects.c, whose maps it uses.

int on_rxe_packet(struct pt_regs *ctx) {
    u64 tracked = PT_REGS_PARM1(ctx) + RXE_QP_IBQP + QP_TRACKED;
    u64 packet = PT_REGS_PARM3(ctx);
    struct object_owner *owner = objects.lookup(&tracked);
    if (!owner) return 0;
    struct holder_counts *counts = holders.lookup(&owner->holder);
    if (!counts) return 0;
    u32 length = 0;
    READ(length, packet + SKB_LEN);
    lock_xadd(&counts->sent_packets, 1);
    lock_xadd(&counts->sent_bytes, length);
    return 0;
}
