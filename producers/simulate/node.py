"""One simulated node's flushes: what the model did, as port counters, holders and NCCL calls."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from producers.encode import Flush, Holding, NcclFlush, nccl_throughput, nic_counters
from producers.ports.flush import PortInfo, PortsFlush
from producers.simulate.engine import RECEIVED_SHARE, TICK_S, Call, PodKey
from producers.simulate.pods import exists
from producers.simulate.scenario import Job, Load, Scenario, container_id, pod_uid
from streams.contract import features
from streams.contract.calls import COLUMNS, Column, Op, Timing
from streams.contract.header import About, DeviceAbout, Rung
from streams.contract.inputs import (
    CommEvent,
    CommEventKind,
    Communicator,
    Holder,
    NcclThroughput,
    NicCounters,
    Process,
)

MTU_BYTES = 4096
HEADERS = 1.02  # RoCE's headers on the wire, beside the payload that holders see
WORD_BYTES = 4  # unit of port_xmit_data
ACTIVE, LINK_UP = 4, 5
BFLOAT16, FLOAT32 = 9, 7
PROCESS_ID_BASE = 40_000
QUIET_COUNTERS = (
    "eth/rx_prio3_pause_duration",
    "eth/tx_prio3_pause_duration",
    "hw/local_ack_timeout_err",
    "hw/np_cnp_sent",
    "hw/np_ecn_marked_roce_packets",
    "hw/out_of_buffer",
    "hw/out_of_sequence",
    "hw/packet_seq_err",
    "hw/rnr_nak_retry_err",
    "hw/rp_cnp_handled",
    "ib/link_downed",
    "ib/port_rcv_errors",
    "ib/port_xmit_discards",
    "ib/symbol_error",
)
LIMITS = {"max_qp": 131_072, "max_cq": 16_777_216, "max_mr": 16_777_216}


class SimulatedNode:
    """Builds the records of one node; ticks are counted from the scenario's start."""

    def __init__(self, scenario: Scenario, node: str, *, seed: int) -> None:
        self._scenario = scenario
        self._node = node
        self._jobs = [job for job in scenario.jobs if node in job.nodes]
        self._loads = [load for load in scenario.loads if load.node == node]
        self._seed = seed
        self._totals: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def about(self) -> About:
        """What a real agent says once: here, that nothing is real."""
        return About(
            agent="fabric-sentinel simulator",
            kernel="simulated",
            libnccl=["simulated"],
            devices=[
                DeviceAbout(device=port.device, driver="mlx5_ib", firmware="simulated", limits=LIMITS)
                for port in self._scenario.ports
            ],
        )

    def records(
        self, flush: Flush, *, start_tick: int, sent: Sequence[Mapping[PodKey, float]], calls: Mapping[str, list[Call]]
    ) -> tuple[NicCounters, NcclThroughput]:
        """Both records of a flush; `sent` is one mapping per tick, `calls` is keyed by the job's key."""
        first = flush.first_tick - start_tick
        holdings = [*self._job_holdings(first, flush.ticks, sent), *self._load_holdings(first, flush.ticks, sent)]
        return (
            nic_counters(
                flush,
                ports=self._ports(flush, holdings),
                holdings=holdings,
                bytes_rung=Rung.PROCESS_BYTES,
            ),
            nccl_throughput(flush, calls=self._nccl(first, flush.ticks, calls)),
        )

    def _job_holdings(self, first: int, ticks: int, sent: Sequence[Mapping[PodKey, float]]) -> list[Holding]:
        holdings = []
        for job in self._jobs:
            for pod in job.pod_names(self._node):
                pairs = job.queue_pairs // job.pods_per_node
                objects = _objects(first, ticks, pairs, pairs, 256 * 2**20, lambda _tick: True)
                moved = self._bytes(job.namespace, pod, job.device, sent, received=1.0)
                holdings.append(
                    Holding(holder=_holder(job.namespace, pod, "python"), device=job.device, values=objects | moved)
                )
        return holdings

    def _load_holdings(self, first: int, ticks: int, sent: Sequence[Mapping[PodKey, float]]) -> list[Holding]:
        holdings = []
        for load in self._loads:
            if not any(exists(load, tick) for tick in range(first, first + ticks)):
                continue
            objects = _objects(
                first, ticks, load.queue_pairs, load.memory_regions, load.region_bytes, _holds_objects(load)
            )
            moved = self._bytes(load.namespace, load.name, load.device, sent, received=RECEIVED_SHARE)
            holder = _holder(load.namespace, load.name, "transfer")
            holdings.append(Holding(holder=holder, device=load.device, values=objects | moved))
        return holdings

    def _bytes(
        self, namespace: str, pod: str, device: str, sent: Sequence[Mapping[PodKey, float]], *, received: float
    ) -> dict[str, NDArray[np.int64]]:
        per_tick = [tick.get((self._node, f"{namespace}/{pod}", device), 0.0) for tick in sent]
        tx = self._whole(("tx", namespace, pod, device), per_tick)
        rx = self._whole(("rx", namespace, pod, device), [one * received for one in per_tick])
        return {
            features.TX_BYTES: tx,
            features.RX_BYTES: rx,
            features.TX_PACKETS: -(-tx // MTU_BYTES),
            features.RX_PACKETS: -(-rx // MTU_BYTES),
        }

    def _whole(self, name: tuple[str, ...], per_tick: Sequence[float]) -> NDArray[np.int64]:
        """Whole numbers per tick whose sum never drifts from the model's."""
        whole = np.zeros(len(per_tick), np.int64)
        for place, amount in enumerate(per_tick):
            before = int(self._totals[name])
            self._totals[name] += amount
            whole[place] = int(self._totals[name]) - before
        return whole

    def _ports(self, flush: Flush, holdings: Sequence[Holding]) -> PortsFlush:
        names = ("ib/port_rcv_data", "ib/port_rcv_packets", "ib/port_xmit_data", "ib/port_xmit_packets")
        all_names = (*names, "port/phys_state", "port/state", *QUIET_COUNTERS)
        rows: list[tuple[int, int, NDArray[np.int64]]] = []
        for place, port in enumerate(self._scenario.ports):
            there = [holding.values for holding in holdings if holding.device == port.device]
            none = np.zeros(flush.ticks, np.int64)
            tx = sum((values[features.TX_BYTES] for values in there), none)
            rx = sum((values[features.RX_BYTES] for values in there), none)
            columns = (
                _words(rx),
                -(-rx // MTU_BYTES),
                _words(tx),
                -(-tx // MTU_BYTES),
                np.full(flush.ticks, LINK_UP, np.int64),
                np.full(flush.ticks, ACTIVE, np.int64),
                *(none for _ in QUIET_COUNTERS),
            )
            rows += [(place, index, column) for index, column in enumerate(columns)]
        return PortsFlush(
            first_tick=flush.first_tick,
            ports=tuple(
                PortInfo(
                    device=port.device,
                    port=1,
                    netdev=port.netdev,
                    link_layer="Ethernet",
                    state="ACTIVE",
                    phys_state="LinkUp",
                    rate_mbps=port.rate_mbps,
                    capacity_mbps=port.rate_mbps,
                    capacity_source="rate",
                )
                for port in self._scenario.ports
            ),
            names=all_names,
            entity=np.array([place for place, _, _ in rows], np.int32),
            name=np.array([index for _, index, _ in rows], np.int32),
            values=np.stack([column for _, _, column in rows]),
            resets=(),
            spans=(),
            gaps=(),
        )

    def _nccl(self, first: int, ticks: int, calls: Mapping[str, list[Call]]) -> NcclFlush:
        processes: list[Process] = []
        communicators: list[Communicator] = []
        rows: list[list[int]] = []
        for job in self._jobs:
            mine = _ranks_of(job, self._node)
            place = {rank: len(communicators) + index for index, rank in enumerate(mine)}
            for rank in mine:
                communicators.append(
                    Communicator(process=len(processes), comm=self._comm(job), rank=rank, nranks=job.ranks)
                )
                processes.append(_process(job, self._node, rank, pid=PROCESS_ID_BASE + len(processes)))
            rows += [_row(job, call, place[call.rank], first) for call in calls[job.key] if call.rank in place]
        births = [
            CommEvent(kind=CommEventKind.BORN, communicator=index, us=1000 + 10 * index)
            for index in range(len(communicators) if first == 0 else 0)
        ]
        matrix = np.array(rows, np.int64).reshape(-1, COLUMNS)
        assert not len(matrix) or int(matrix[:, Column.TICK_OFFSET].max()) < ticks  # noqa: S101
        return NcclFlush(processes=processes, communicators=communicators, rows=matrix, events=births)

    def _comm(self, job: Job) -> str:
        return "0x" + hashlib.sha256(f"{self._seed}/{job.key}".encode()).hexdigest()[:16]


def _ranks_of(job: Job, node: str) -> range:
    per_node = job.pods_per_node * job.gpus_per_pod
    begin = job.nodes.index(node) * per_node
    return range(begin, begin + per_node)


def _process(job: Job, node: str, rank: int, *, pid: int) -> Process:
    pod = job.pod_names(node)[(rank - _ranks_of(job, node)[0]) // job.gpus_per_pod]
    return Process(
        pid=pid,
        comm="python",
        pod_uid=pod_uid(job.namespace, pod),
        container_id=container_id(job.namespace, pod),
    )


def _row(job: Job, call: Call, communicator: int, first_tick: int) -> list[int]:
    """One call as a row; ring all-reduce sends 2(n-1)/n of its buffer, which gives the buffer's size."""
    dtype, width = (BFLOAT16, 2) if call.gradients else (FLOAT32, 4)
    count = round(job.bytes_per_iteration * job.ranks / (2 * (job.ranks - 1)) / width) if call.gradients else 1
    at_us = int(call.at_s * 1e6)
    tick = at_us // 100_000
    took_us = 0 if call.duration_s is None else max(1, round(call.duration_s * 1e6))
    row = [0] * COLUMNS
    row[Column.TICK_OFFSET] = tick - first_tick
    row[Column.COMMUNICATOR] = communicator
    row[Column.OP] = Op.ALL_REDUCE
    row[Column.DTYPE] = dtype
    row[Column.COUNT] = count
    row[Column.BYTES] = count * width
    row[Column.CALLS] = 1
    row[Column.FIRST_SEQ] = row[Column.LAST_SEQ] = call.seq
    row[Column.FIRST_US] = row[Column.LAST_US] = at_us - first_tick * 100_000
    row[Column.TIMED] = int(call.duration_s is not None)
    row[Column.MIN_US] = row[Column.SUM_US] = row[Column.MAX_US] = took_us
    row[Column.TIMING] = Timing.SIMULATED
    return row


def _holder(namespace: str, pod: str, comm: str) -> Holder:
    return Holder(pod_uid=pod_uid(namespace, pod), container_id=container_id(namespace, pod), comm=comm)


def _holds_objects(load: Load) -> Callable[[int], bool]:
    """Whether a load's queue pairs and regions exist in a tick."""
    if not load.closes_when_idle:
        return lambda tick: exists(load, tick)
    return lambda tick: any(during.holds(tick * TICK_S) for during in load.active)


def _objects(
    first: int, ticks: int, pairs: int, regions: int, region_bytes: int, holds: Callable[[int], bool]
) -> dict[str, NDArray[np.int64]]:
    live = np.array([tick >= 0 and holds(tick) for tick in range(first - 1, first + ticks)], np.int64)
    made, ended = np.maximum(np.diff(live), 0), np.maximum(-np.diff(live), 0)
    now = live[1:]
    return {
        features.QP_CREATED: made * pairs,
        features.QP_RTS: made * pairs,
        features.QP_DESTROYED: ended * pairs,
        features.QP_LIVE: now * pairs,
        features.MR_REGISTERED: made * regions,
        features.MR_DEREGISTERED: ended * regions,
        features.MR_LIVE: now * regions,
        features.MR_LIVE_BYTES: now * regions * region_bytes,
        features.CQ_CREATED: made,
        features.CQ_DESTROYED: ended,
        features.CQ_LIVE: now,
    }


def _words(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(size_bytes * HEADERS / WORD_BYTES, np.int64)
