"""Samples the guest's ports on the wall clock's 100 ms grid and writes each flush as one JSON line.

sample.py OUT STOP: until the file STOP exists. The last line tells the CPU time of one tick.
"""

import json
import sys
import time
from pathlib import Path

from producers.ports.sampler import PortSampler

TICK_NS = 100_000_000
TICKS_PER_FLUSH = 5


def main() -> None:
    out, stop = Path(sys.argv[1]), Path(sys.argv[2])
    sampler = PortSampler()
    ticks, spent_ns = 0, 0
    with out.open("w", buffering=1) as lines:
        flushed = time.time_ns() // TICK_NS
        while not stop.exists():
            tick = time.time_ns() // TICK_NS + 1
            time.sleep(max(tick * TICK_NS - time.time_ns(), 0) / 1e9)
            begun_ns = time.process_time_ns()
            sampler.sample(tick)
            spent_ns += time.process_time_ns() - begun_ns
            ticks += 1
            if tick - flushed >= TICKS_PER_FLUSH:
                flushed = tick
                flush = sampler.flush(tick)
                line = {
                    "first_tick": flush.first_tick,
                    "ports": [[p.device, p.netdev, p.state, p.capacity_mbps, p.capacity_source] for p in flush.ports],
                    "rows": [
                        [int(port), flush.names[name], values.tolist()]
                        for port, name, values in zip(flush.entity, flush.name, flush.values, strict=True)
                    ],
                    "resets": [[reset.port, reset.name] for reset in flush.resets],
                    "gaps": [[gap.source, gap.what, gap.reason] for gap in flush.gaps],
                }
                lines.write(json.dumps(line) + "\n")
        lines.write(json.dumps({"ticks": ticks, "us_per_tick": spent_ns // ticks // 1000}) + "\n")


if __name__ == "__main__":
    main()
