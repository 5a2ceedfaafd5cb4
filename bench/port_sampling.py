"""Measures what sampling ports costs: 8 ports x 40 counters on tmpfs, in CPU microseconds and system calls a tick."""

import argparse
import json
import tempfile
import time
from pathlib import Path

from producers.ports.sampler import PortSampler

PORTS = 8
TICKS_PER_FLUSH = 5
TICKS_PER_SECOND = 10
QUEUE_COUNTERS = ("rx_write_requests", "rx_read_requests", "out_of_buffer", "out_of_sequence", "duplicate_request")
PMA_COUNTERS = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(sysfs: Path, counters: int) -> None:
    """Make `PORTS` ports of `counters` counters each, half of them hw_counters."""
    for device in range(PORTS):
        folder = sysfs / "class" / "infiniband" / f"mlx5_{device}" / "ports" / "1"
        for name, text in (("rate", "400 Gb/sec (4X NDR)"), ("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")):
            write(folder / name, text + "\n")
        write(folder / "link_layer", "InfiniBand\n")
        half = counters // 2
        for group, known in (("counters", PMA_COUNTERS), ("hw_counters", QUEUE_COUNTERS)):
            names = [*known, *(f"other_{number}" for number in range(half - len(known)))]
            for name in names:
                write(folder / group / name, "230442669431839\n" if group == "counters" else "3809045607\n")


def read_calls() -> int:
    """Read system calls of this process so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscr"])


def measure(sysfs: Path, ticks: int) -> dict[str, float]:
    """CPU per tick with its flushes and rescans, and the read calls of one tick without them."""
    sampler = PortSampler(sysfs=sysfs)
    sampler.sample(0)
    before = read_calls()
    looking = read_calls() - before  # what one look at /proc costs by itself
    before = read_calls()
    sampler.sample(1)
    calls = read_calls() - before - looking
    begun_ns, sampling_ns = time.process_time_ns(), 0
    for tick in range(2, ticks + 2):
        sample_ns = time.process_time_ns()
        sampler.sample(tick)
        sampling_ns += time.process_time_ns() - sample_ns
        if tick % TICKS_PER_FLUSH == 0:
            sampler.flush(tick)
    total_us = (time.process_time_ns() - begun_ns) / 1000 / ticks
    sampler.close()
    return {
        "sample_us_per_tick": round(sampling_ns / 1000 / ticks, 1),
        "all_us_per_tick": round(total_us, 1),
        "read_calls_per_tick": calls,
        "percent_of_a_core": round(total_us * TICKS_PER_SECOND / 10_000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=600)
    parser.add_argument("--counters", type=int, default=40)
    options = parser.parse_args()
    shm = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        build(Path(folder), options.counters)
        print(json.dumps(measure(Path(folder), options.ticks)))


if __name__ == "__main__":
    main()
