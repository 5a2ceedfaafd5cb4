#!/usr/bin/python3
"""Create and destroy RDMA objects as told, and say exactly how many: the truth that the probes are held against.

Prints one JSON line when everything is as ordered (objects still live), waits until `--until FILE` exists, then ends by
cleaning up (`clean`), by leaving it all to the kernel (`exit`), or by killing itself (`kill`).
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr

DEADLINE_S = 300


def main() -> None:
    arguments = parse()
    context = Context(name=arguments.device)
    domain = PD(context)
    cqs = [CQ(context, 16) for _ in range(1 + arguments.extra_cqs)]
    truth = {"qp_created": 0, "qp_destroyed": 0, "mr_registered": 0, "mr_deregistered": 0, "mr_registered_bytes": 0}

    def new_qp() -> QP:
        truth["qp_created"] += 1
        capabilities = QPCap(max_send_wr=4, max_recv_wr=4)
        return QP(domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cqs[0], rcq=cqs[0], cap=capabilities))

    def new_mr(size_bytes: int) -> MR:
        truth["mr_registered"] += 1
        truth["mr_registered_bytes"] += size_bytes
        return MR(domain, size_bytes, e.IBV_ACCESS_LOCAL_WRITE)

    for turn in range(arguments.rounds):
        qps = [new_qp() for _ in range(arguments.qps)]
        mrs = [new_mr(4096 * (1 + i) + turn) for i in range(arguments.mrs)]
        for qp in qps:
            qp.close()
            truth["qp_destroyed"] += 1
        for mr in mrs:
            mr.close()
            truth["mr_deregistered"] += 1
    live_qps = [new_qp() for _ in range(arguments.qps)]
    live_bytes = [8192 * (1 + i) + 123 for i in range(arguments.mrs)]
    live_mrs = [new_mr(size) for size in live_bytes]
    truth |= {
        "pid": os.getpid(),
        "device": arguments.device,
        "cgroup_id": own_cgroup().stat().st_ino,
        "qp_live": len(live_qps),
        "mr_live": len(live_mrs),
        "mr_live_bytes": sum(live_bytes),
        "cq_created": len(cqs),
        "cq_destroyed": 0,
        "cq_live": len(cqs),
    }
    print(json.dumps(truth), flush=True)
    wait_for(arguments.until)
    end(arguments.end, live_qps, live_mrs)


def own_cgroup() -> Path:
    return Path("/sys/fs/cgroup" + Path("/proc/self/cgroup").read_text().strip().removeprefix("0::"))


def wait_for(path: str | None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while path and not Path(path).exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within {DEADLINE_S} s")
        time.sleep(0.05)


def end(how: str, qps: list[QP], mrs: list[MR]) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    for thing in [*qps, *mrs]:
        thing.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--qps", type=int, default=8)
    parser.add_argument("--mrs", type=int, default=8)
    parser.add_argument("--extra-cqs", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--until")
    parser.add_argument("--end", choices=["clean", "exit", "kill"], default="clean")
    return parser.parse_args()


if __name__ == "__main__":
    main()
