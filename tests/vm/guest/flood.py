#!/usr/bin/python3
"""A pod that fills the port: queue pairs with deep queues of RC writes from rxe0 to rxe1, paced, asleep between looks.

`ib_write_bw` polls a processor away; on emulated ones that starves the agent, so that contention for the port could not
be told from contention for the CPU. This one looks every few milliseconds, ends after `--seconds`, and waits until all
has arrived.
"""

import argparse
import time

import pyverbs.enums as e
from pyverbs.wr import SGE, SendWR
from victim import End

MESSAGE_BYTES = 64 * 1024
DEPTH = 16  # Messages in flight per queue pair
LOOK_S = 0.01
DRAIN_S = 30


def main() -> None:
    arguments = parse()
    pairs = [(End("rxe0", DEPTH, MESSAGE_BYTES), End("rxe1", 1, MESSAGE_BYTES)) for _ in range(arguments.queue_pairs)]
    for near, far in pairs:
        far.connect(near)
        near.connect(far)
    flying = [0] * len(pairs)
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic()) < began + arguments.seconds:
        may_send = int((now - began) * arguments.bytes_per_second) // MESSAGE_BYTES - sent
        for index, (near, far) in enumerate(pairs):
            flying[index] -= completed(near)
            room = min(DEPTH - flying[index], -(-may_send // (len(pairs) - index)))
            for _ in range(room):
                post(near, far)
            flying[index] += max(room, 0)
            sent += max(room, 0)
            may_send -= max(room, 0)
        time.sleep(LOOK_S)
    while any(flying) and time.monotonic() < began + arguments.seconds + DRAIN_S:
        flying = [count - completed(near) for count, (near, _) in zip(flying, pairs, strict=True)]
        time.sleep(LOOK_S)
    print(f"{sent} messages of {MESSAGE_BYTES} bytes on {len(pairs)} queue pairs", flush=True)


def post(near: End, far: End) -> None:
    entry = SGE(near.region.buf, MESSAGE_BYTES, near.region.lkey)
    request = SendWR(wr_id=0, sg=[entry], num_sge=1, opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED)
    request.set_wr_rdma(far.region.rkey, far.region.buf)
    near.pair.post_send(request)


def completed(near: End) -> int:
    """How many writes have arrived since the last look."""
    count, completions = near.queue.poll(DEPTH)
    for completion in completions:
        if completion.status != e.IBV_WC_SUCCESS:
            raise SystemExit(f"a write failed with status {completion.status}")
    return int(count)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue-pairs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--bytes-per-second", type=float, default=5e6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
