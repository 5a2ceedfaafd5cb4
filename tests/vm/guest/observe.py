#!/usr/bin/python3
"""Run the RDMA probes alone and write each sample as a JSON line, until a file appears.

observe.py REPOSITORY SAMPLES UNTIL [HERTZ]; the first line of SAMPLES tells the gaps and what the self check found.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

DEADLINE_S = 600


def main() -> None:
    repository, samples, until = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    hertz = float(sys.argv[4]) if len(sys.argv) > 4 else 2.0
    sys.path.insert(0, str(repository))
    from producers.kernel.rdma import RdmaObjects  # noqa: PLC0415  (the repository is an argument)

    started = time.monotonic()
    probes = RdmaObjects(bpf_dir=repository / "bpf")
    loaded = time.monotonic()
    with samples.open("w") as out:
        check = probes.self_check("rxe0")
        say(
            out,
            gaps=[dataclasses.asdict(gap) for gap in probes.gaps],
            self_check=None if check is None else check.reason,
            load_s=round(loaded - started, 2),
            check_s=round(time.monotonic() - loaded, 2),
        )
        deadline = started + DEADLINE_S
        last = False
        while not last and time.monotonic() < deadline:
            last = until.exists()
            before = time.monotonic()
            holders = probes.sample()
            took_ms = (time.monotonic() - before) * 1e3
            say(
                out,
                at_s=time.time(),
                took_ms=round(took_ms, 2),
                lost=probes.lost,
                older=probes.ended_without_beginning,
                holders=[dataclasses.asdict(holder) for holder in holders],
            )
            time.sleep(max(0.0, 1 / hertz - (time.monotonic() - before)))
    probes.close()


def say(out, **record) -> None:
    out.write(json.dumps(record) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
