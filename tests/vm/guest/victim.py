#!/usr/bin/python3
"""A training job in miniature: each step moves its bytes over RDMA, calls the real libnccl once, then computes.

Moves `--bytes` per step as RC writes from rxe0 to rxe1, calls ncclAllReduce (which fails without a GPU, and is meant
to), sleeps `--compute-ms`, and logs each step as a JSON line: number, start and end in epoch seconds, bytes, how long
the move took. While the file `--slow-while` exists, each step sleeps `--slow-ms` more: a job that slows itself.
The first line says what the job holds: queue pairs, regions and completion queues per device.
"""

import argparse
import ctypes
import json
import os
import signal
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

GID_INDEX = 1  # the RoCE v2 address of the veth's IPv4
FLOAT32, SUM = 7, 0  # ncclFloat32, ncclSum
POLL_S = 0.0005
STALL_S = 60
# 4.096 us * 2^18 = 1 s: a timeout shorter than the queue of a congested link resends what is only late.
TIMEOUT, RETRIES = 18, 7


class End:
    """One end of the connection: a device with its protection domain, completion queue, queue pair and region."""

    def __init__(self, device: str, depth: int, region_bytes: int) -> None:
        self.device = device
        self.context = Context(name=device)
        self.domain = PD(self.context)
        self.queue = CQ(self.context, 2 * depth)
        capabilities = QPCap(max_send_wr=depth, max_recv_wr=1)
        attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=capabilities)
        self.pair = QP(self.domain, attributes)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.region = MR(self.domain, region_bytes, access)
        self.region_bytes = region_bytes

    def connect(self, other: "End") -> None:
        """Bring the queue pair to ready-to-send, towards the other end."""
        route = GlobalRoute(dgid=other.context.query_gid(1, GID_INDEX), sgid_index=GID_INDEX)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.pair.to_init(attributes)
        attributes.dest_qp_num = other.pair.qp_num
        attributes.path_mtu = e.IBV_MTU_4096
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.pair.to_rtr(attributes)
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = TIMEOUT, RETRIES, RETRIES
        self.pair.to_rts(attributes)

    def holds(self) -> dict[str, int | str]:
        return {
            "device": self.device,
            "qp_created": 1,
            "qp_rts": 1,
            "cq_created": 1,
            "mr_registered": 1,
            "mr_live_bytes": self.region_bytes,
        }


def main() -> None:
    arguments = parse()
    all_reduce = load_nccl(arguments.nccl)
    near = End("rxe0", arguments.depth, arguments.message)
    far = End("rxe1", 1, arguments.message)
    far.connect(near)
    near.connect(far)
    stop = Stop()
    say(
        pid=os.getpid(),
        cgroup_id=own_cgroup().stat().st_ino,
        holds=[near.holds(), far.holds()],
        arguments=vars(arguments),
    )
    step = 0
    while not stop.asked:
        start_s = time.time()
        move(near, far, arguments.bytes, arguments.message, arguments.depth)
        moved_s = time.time()
        all_reduce()
        time.sleep(arguments.compute_ms / 1e3)
        if arguments.slow_while and Path(arguments.slow_while).exists():
            time.sleep(arguments.slow_ms / 1e3)
        say(
            step=step,
            start_s=start_s,
            end_s=time.time(),
            moved_ms=round((moved_s - start_s) * 1e3, 2),
            bytes=arguments.bytes,
        )
        step += 1


def move(near: End, far: End, total_bytes: int, message_bytes: int, depth: int) -> None:
    """Write `total_bytes` to the other end with at most `depth` messages in flight; return when all have arrived."""
    posted = completed = 0
    messages = total_bytes // message_bytes
    deadline = time.monotonic() + STALL_S
    while completed < messages:
        while posted < messages and posted - completed < depth:
            entry = SGE(near.region.buf, message_bytes, near.region.lkey)
            request = SendWR(
                wr_id=posted, sg=[entry], num_sge=1, opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED
            )
            request.set_wr_rdma(far.region.rkey, far.region.buf)
            near.pair.post_send(request)
            posted += 1
        count, completions = near.queue.poll(depth)
        for completion in completions:
            if completion.status != e.IBV_WC_SUCCESS:
                raise SystemExit(f"a write failed with status {completion.status}")
        completed += count
        if not count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{completed} of {messages} writes arrived within {STALL_S} s")
            time.sleep(POLL_S)


def load_nccl(path: str):
    """The real ncclAllReduce, called with no communicator: an error is what a machine without a GPU answers."""
    call = ctypes.CDLL(path).ncclAllReduce
    call.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_int, ctypes.c_int] + [ctypes.c_void_p] * 2
    return lambda: call(None, None, 1 << 20, FLOAT32, SUM, None, None)


class Stop:
    """Ends the job between two steps, so that the log never holds half a step."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def own_cgroup() -> Path:
    return Path("/sys/fs/cgroup" + Path("/proc/self/cgroup").read_text().strip().removeprefix("0::"))


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl", required=True, help="path of libnccl.so.2")
    parser.add_argument("--bytes", type=int, default=512 * 1024)
    parser.add_argument("--message", type=int, default=16 * 1024)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--compute-ms", type=float, default=400)
    parser.add_argument("--slow-while")
    parser.add_argument("--slow-ms", type=float, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    main()
