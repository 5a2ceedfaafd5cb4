"""What a person and a script read of an incident."""

import io
import json

import msgspec
import pytest

from fabric_sentinel.incident_json import to_json
from fabric_sentinel.render import KIND_WORDS, as_text, duration_words, headline, number_words, show
from streams.contract.findings import Cause, Incident, Kind, Verdict
from streams.contract.header import Rung
from tests.front.incidents import ONSET, RECOVERED, confirmed, nobody

CONFIRMED_TEXT = """\
INCIDENT     7c9d0a52-0000-5000-8000-000000000001  cluster lab
             inference-team-a/llama-70b-server-84cf2 slowed gpt-finetuner-7b2a1, llm-pretrain-a100-001
cause        inference-team-a/llama-70b-server-84cf2  tenant team-a
               node gpu-node-12, device mlx5_0, port 1; qp_live 12 before, 40,960 during
kind         qp_icm_exhaustion: too many queue pairs: the NIC evicts connection state that the victim needs
duration     4 m 12 s (2026-05-03T14:32:11.000Z to 2026-05-03T14:36:23.000Z)
victims      gpt-finetuner-7b2a1  ↓ 24.0 % throughput (22.5 to 25.6)  967.7 GPU-seconds  $183.00
               tenant team-b, 16 GPUs, on gpu-node-12, gpu-node-13, pods training-team-b/gpt-finetuner-7b2a1-0
             llm-pretrain-a100-001  ↓ 31.0 % throughput (29.5 to 32.6)  967.7 GPU-seconds  $241.00
               tenant team-b, 16 GPUs, on gpu-node-12, gpu-node-13, pods
                 training-team-b/llm-pretrain-a100-001-0
total lost   1,935.4 GPU-seconds, $424.00 (price from rates file)
ruled out    inference-team-c/embedder-0 on gpu-node-12: it started after the slowdown began (rose 14:32:14.2,
               late 3.2 s, share 1.2 %)
             link on gpu-node-12: no errors (symbol errors 0)
not seen     switch counters: no access to the fabric manager
recovery     queue pairs 14:36:22.7, workload 14:36:23.0
verdict      confirmed, 1.2 s after the onset; best evidence: RDMA resources per process, from kernel probes
               (revision 9)
advice       isolate inference-team-a to nodes [gpu-04, gpu-05]
"""

NOBODY_TEXT = """\
INCIDENT     7c9d0a52-0000-5000-8000-000000000002  cluster lab · simulated
             no pod is guilty: the job lost its time outside the fabric
cause        none
kind         not_fabric: the time was lost outside the fabric (compute, data, host)
duration     8.4 s so far, still slow (since 2026-05-03T14:32:11.000Z)
victims      gpt-finetuner-7b2a1  ↓ 18.0 % throughput (16.5 to 19.6)  GPU-seconds not known
               tenant team-b, GPUs not known, on gpu-node-12, gpu-node-13
total lost   GPU-seconds not known, no money: no price or no GPU count is known
ruled out    batch/flood-0 on gpu-node-12: it was as active before, while the job was well (before
               1,250,000,000, during 1,250,000,000)
verdict      not_fabric, 3.0 s after the onset (revision 3)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_confirmed_incident_reads_cause_victims_money_and_what_was_ruled_out() -> None:
    assert as_text(confirmed()) == CONFIRMED_TEXT


def test_an_incident_that_names_nobody_says_so_and_what_it_does_not_know() -> None:
    assert as_text(nobody()) == NOBODY_TEXT


def test_a_pipe_gets_plain_text_and_a_terminal_gets_colour() -> None:
    pipe, terminal = io.StringIO(), Terminal()

    show(confirmed(), pipe)
    show(confirmed(), terminal)

    assert pipe.getvalue() == CONFIRMED_TEXT
    assert "\x1b[" in terminal.getvalue()
    assert "$183.00" in terminal.getvalue()


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("kind", list(Kind))
def test_every_verdict_and_kind_has_words(verdict: Verdict, kind: Kind) -> None:
    unnamed = msgspec.structs.replace(nobody(), verdict=verdict, kind=kind)

    text = as_text(unnamed)

    assert KIND_WORDS[kind].split()[0] in text
    assert headline(unnamed)


def test_a_suspect_is_never_told_as_a_fact() -> None:
    still_open = msgspec.structs.replace(confirmed(), verdict=Verdict.SUSPECTED, recovered_tick=None)
    unclear = msgspec.structs.replace(confirmed(), verdict=Verdict.AMBIGUOUS, causes=[_pod("a"), _pod("b")])
    withdrawn = msgspec.structs.replace(confirmed(), verdict=Verdict.WITHDRAWN)

    assert "llama-70b-server-84cf2 is probably slowing gpt" in headline(still_open)
    assert headline(unclear).startswith("ns/a or ns/b slowed gpt")
    assert headline(unclear).endswith("does not tell them apart")
    assert "did not slow" in headline(withdrawn)


def test_a_culprit_without_a_pod_is_named_by_what_is_known() -> None:
    process = Cause(holder="pid:4242", node="n1", device="rxe0", port=1, share_e4=10_000, feature="tx_bytes")

    text = as_text(msgspec.structs.replace(confirmed(), causes=[process]))

    assert "\ncause        pid:4242\n               node n1, device rxe0, port 1; told by tx_bytes\n" in text


@pytest.mark.parametrize(
    ("ticks", "words"),
    [(0, "0.0 s"), (84, "8.4 s"), (2520, "4 m 12 s"), (36_599, "1 h 00 m"), (37_800, "1 h 03 m")],
)
def test_durations_are_said_as_people_say_them(ticks: int, words: str) -> None:
    assert duration_words(ticks) == words


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("edge_tick", ONSET, "rose 14:32:11.0"),
        ("quiet_level", 4_000_000_000, "before 4,000,000,000"),
        ("late_ticks", 15, "late 1.5 s"),
        ("share_e4", 1250, "share 12.5 %"),
        ("baseline_us", 81_500, "baseline 81.5 ms"),
        ("tx_bytes", 1_000_000_000, "tx 1.0 GB"),
        ("qp_live", 40_960, "qp live 40,960"),
        ("ticks", 7, "ticks 7"),
    ],
)
def test_a_number_is_said_in_the_unit_that_its_name_ends_in(name: str, value: int, words: str) -> None:
    assert number_words(name, value) == words


def test_json_of_a_confirmed_incident() -> None:
    assert json.loads(json.dumps(to_json(confirmed()))) == {
        "incident_id": "7c9d0a52-0000-5000-8000-000000000001",
        "revision": 9,
        "cluster": "lab",
        "verdict": "confirmed",
        "kind": "qp_icm_exhaustion",
        "causes": [
            {
                "namespace": "inference-team-a",
                "pod": "llama-70b-server-84cf2",
                "pod_uid": "uid-llama",
                "tenant": "team-a",
                "node": "gpu-node-12",
                "device": "mlx5_0",
                "port": 1,
                "share": 1.0,
            }
        ],
        "victims": [
            _victim_json("gpt-finetuner-7b2a1", 0.24, 0.225, 0.256, 183.0),
            _victim_json("llm-pretrain-a100-001", 0.31, 0.295, 0.326, 241.0),
        ],
        "total_cost": 424.0,
        "onset": "2026-05-03T14:32:11.000Z",
        "recovered": "2026-05-03T14:36:23.000Z",
        "onset_tick": ONSET,
        "recovered_tick": RECOVERED,
        "decided_tick": ONSET + 12,
        "rung": "kernel_probes",
        "link_port": None,
        "ruled_out": [
            {
                "pod_uid": "uid-embed",
                "pod": "embedder-0",
                "what": "pod",
                "reason": "started_after",
                "numbers": {"edge_tick": ONSET + 32, "late_ticks": 32, "share_e4": 120},
            },
            {"pod_uid": None, "pod": None, "what": "link", "reason": "no_errors", "numbers": {"symbol_errors": 0}},
        ],
        "recovery": {
            "link": None,
            "routing": None,
            "queue_pair": "2026-05-03T14:36:22.700Z",
            "traffic": None,
            "workload": "2026-05-03T14:36:23.000Z",
            "telemetry": None,
        },
        "not_observed": ["switch counters: no access to the fabric manager"],
        "recommendation": "isolate inference-team-a to nodes [gpu-04, gpu-05]",
    }


def test_json_says_null_for_what_is_not_known() -> None:
    unknown = Incident(
        incident_id="i",
        revision=1,
        cluster="lab",
        onset_tick=ONSET,
        decided_tick=ONSET,
        as_of_tick=ONSET,
        rung=Rung.UNKNOWN,
    )

    told = to_json(unknown)

    absent = {name for name, value in told.items() if value is None}
    assert absent == {
        "verdict",
        "kind",
        "total_cost",
        "recovered",
        "recovered_tick",
        "rung",
        "link_port",
        "recommendation",
    }
    assert told["causes"] == []
    open_victim = to_json(nobody())["victims"]
    assert isinstance(open_victim, list)
    assert {name for name, value in open_victim[0].items() if value is None} == {
        "gpus",
        "gpu_seconds_lost",
        "cost",
        "currency",
    }


def _pod(name: str) -> Cause:
    return Cause(
        holder=name, namespace="ns", pod=name, node="n1", device="rxe0", port=1, share_e4=5000, feature="tx_bytes"
    )


def _victim_json(job: str, loss: float, low: float, high: float, cost: float) -> dict[str, object]:
    return {
        "job": f"training-team-b/PyTorchJob/{job}",
        "tenant": "team-b",
        "nodes": ["gpu-node-12", "gpu-node-13"],
        "pods": [f"training-team-b/{job}-0"],
        "gpus": 16,
        "loss": loss,
        "loss_low": low,
        "loss_high": high,
        "gpu_seconds_lost": 967.68,
        "cost": cost,
        "currency": "USD",
    }
