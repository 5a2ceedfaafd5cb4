"""What the sink writes into a real ClickHouse engine, and what readers find there."""

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from sinks.clickhouse.migrate import Migration, migrate, migrations
from sinks.clickhouse.query import query, read_incidents
from sinks.clickhouse.record_rows import (
    CAUSE_FIELDS,
    EPISODE_FIELDS,
    INCIDENT_FIELDS,
    JOB_STATE_FIELDS,
    RULED_OUT_FIELDS,
    VICTIM_FIELDS,
)
from sinks.clickhouse.sink import ClickHouseSink
from sinks.clickhouse.store import Store, StoreError, StoreLockedError
from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.findings import Cause, Episode, Health, Incident, JobState, RuledOut, Verdict, Victim
from streams.contract.plumbing import HealthStatus
from streams.contract.topics import (
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    JOB_STATES,
    NCCL_THROUGHPUT,
    NIC_COUNTERS,
    NODE_PODS,
    PIPELINE_HEALTH,
    Topic,
)
from tests.paths import repo_root
from tests.sinks.batch import batch
from tests.sinks.records import (
    COUNTERS,
    TICK,
    dead_letter,
    episode,
    health,
    incidents,
    job_state,
    nccl,
    nic,
    nic_clock,
    packed,
    pods,
)

EIGHT = datetime(2027, 1, 28, 12, 0)  # noqa: DTZ001 (the driver gives UTC without saying so)


@pytest.fixture
def sink(store: Store) -> ClickHouseSink:
    return ClickHouseSink(store)


def test_a_port_sample_is_one_row_a_tick_in_bytes_and_an_unreadable_tick_is_null(
    store: Store, sink: ClickHouseSink
) -> None:
    sink.write(batch(NIC_COUNTERS, [nic()]))

    found = store.query(
        "SELECT tick, time, delta, amount, unit FROM port_samples WHERE counter = 'ib/port_xmit_data' ORDER BY tick"
    )

    assert found.rows == [
        (TICK, EIGHT, 100, 400, "bytes"),
        (TICK + 2, EIGHT.replace(microsecond=200_000), 300, 1200, "bytes"),
        (TICK + 3, EIGHT.replace(microsecond=300_000), None, None, "bytes"),
        (TICK + 4, EIGHT.replace(microsecond=400_000), 500, 2000, "bytes"),
    ]


def test_a_level_that_holds_is_one_row_and_reads_as_one_sample_a_tick(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NIC_COUNTERS, [nic()]))

    assert store.query("SELECT tick, ticks, value FROM port_runs WHERE counter = 'port/state'").rows == [(TICK, 5, 4)]
    found = store.query("SELECT tick, delta FROM port_samples WHERE counter = 'port/state' ORDER BY tick")
    assert found.rows == [(TICK + offset, 4) for offset in range(5)]


def test_a_zero_and_a_counter_that_was_not_read_can_be_told_apart(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NIC_COUNTERS, [nic()]))

    read = store.query("SELECT device, counter FROM port_reads WHERE first_tick <= 18011376001 ORDER BY ALL").rows

    assert read == [
        ("mlx5_0", "hw/np_cnp_sent"),
        ("mlx5_0", "ib/port_xmit_data"),
        ("mlx5_0", "port/state"),
        ("mlx5_1", "ib/port_xmit_data"),
    ]
    assert store.query("SELECT count() FROM port_samples WHERE counter = 'hw/np_cnp_sent'").rows == [(0,)]


def test_a_set_of_counters_is_spelled_out_once_whatever_the_order(store: Store, sink: ClickHouseSink) -> None:
    turned = nic(
        seq=3,
        counter_names=list(reversed(COUNTERS)),
        counters=packed({(1, 3): [0] * 5, (0, 1): [4] * 5, (0, 2): [7] * 5, (0, 3): [0] * 5}),
    )

    sink.write(batch(NIC_COUNTERS, [nic(), nic(seq=2)]))
    sink.write(batch(NIC_COUNTERS, [turned], first=2))

    assert store.query("SELECT uniqExact(read_set), count() FROM flushes").rows == [(1, 3)]
    assert sink.counts()["rows_read_sets"] == 4


def test_a_holder_is_named_by_pod_or_process_and_what_was_not_read_is_null(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NIC_COUNTERS, [nic()]))

    found = store.query(
        "SELECT holder, holder_kind, comm, feature, groupArray(value), countIf(value IS NULL) "
        "FROM (SELECT * FROM holder_samples ORDER BY tick) GROUP BY ALL ORDER BY ALL"
    )

    assert found.rows == [
        ("pid:4242", "process", "ib_write_bw", "qp_live", [2, 2, 2, 2, 2], 0),
        ("pid:4242", "process", "ib_write_bw", "tx_bytes", [], 5),
        ("uid-a", "pod", "python", "qp_live", [8, 8, 8, 9, 9], 0),
    ]


def test_calls_carry_their_rank_pod_and_times_as_epoch_microseconds(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NCCL_THROUGHPUT, [nccl("node-b"), nccl("node-a")]))

    found = store.query(
        "SELECT node, pod_uid, comm, rank, nranks, op, bytes, calls, failed, first_seq, last_seq, "
        "first_us - tick * 100000, last_us - first_us, timing, tick FROM nccl_calls_current ORDER BY node"
    )

    row = ("uid-train-0", "abc123", 0, 2, "all_reduce", 1_048_576, 3, 1, 10, 12, 1000, 98_000, "enqueue", TICK + 2)
    assert found.rows == [("node-a", *row), ("node-b", *row)]


def test_the_watchers_clock_records_are_no_samples(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NIC_COUNTERS, [nic_clock()]))
    sink.write(batch(NIC_COUNTERS, [nic_clock(), nic(), nic_clock()], first=1))

    assert store.query("SELECT node, log_offset FROM flushes").rows == [("node-a", 2)]


def test_records_of_unlike_lengths_share_a_batch(store: Store, sink: ClickHouseSink) -> None:
    long = nic("node-b", ticks=2, counters=packed({(0, 0): [1, 2]}), features=packed({(0, 0): [5, 6], (1, 0): [7, 7]}))

    sink.write(batch(NIC_COUNTERS, [nic(), long]))

    assert store.query("SELECT tick, delta FROM port_samples WHERE node = 'node-b' ORDER BY tick").rows == [
        (TICK, 1),
        (TICK + 1, 2),
    ]
    assert store.query("SELECT count() FROM port_samples WHERE node = 'node-a'").rows == [(9,)]


@pytest.mark.parametrize("again", ["the same cut", "another cut"])
def test_a_batch_that_is_written_twice_is_there_once(store: Store, sink: ClickHouseSink, again: str) -> None:
    records = [nic(seq=seq) for seq in (1, 2, 3)]
    sink.write(batch(NIC_COUNTERS, records))
    sink.write(batch(NCCL_THROUGHPUT, [nccl(), nccl(seq=2)]))
    once = _counts(store)

    reborn = ClickHouseSink(store)
    if again == "the same cut":
        reborn.write(batch(NIC_COUNTERS, records))
        reborn.write(batch(NCCL_THROUGHPUT, [nccl(), nccl(seq=2)]))
    else:
        reborn.write(batch(NIC_COUNTERS, records[:2]))
        reborn.write(batch(NIC_COUNTERS, records[2:], first=2))
        reborn.write(batch(NCCL_THROUGHPUT, [nccl()]))

    assert _counts(store) == once
    raw = store.query("SELECT count() FROM port_runs").rows[0][0]
    assert raw == (15 if again == "the same cut" else 30)


def test_equal_rows_at_other_offsets_are_not_taken_for_a_repetition(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(NIC_COUNTERS, [nic()]))
    sink.write(batch(NIC_COUNTERS, [nic()], first=7))

    assert store.query("SELECT count() FROM port_runs").rows == [(10,)]
    assert store.query("SELECT groupArray(log_offset) FROM flushes FINAL").rows == [([7],)]


def _counts(store: Store) -> list[object]:
    views = ("port_samples", "holder_samples", "nccl_calls_current", "port_reads")
    return [store.query(f"SELECT count() FROM {view}").rows[0][0] for view in views]  # noqa: S608


def test_incidents_read_back_as_the_very_records_that_were_written(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(INCIDENTS, incidents()))

    assert read_incidents(store) == incidents()


def test_of_an_incident_only_the_highest_revision_is_read_whatever_the_order(
    store: Store, sink: ClickHouseSink
) -> None:
    named = incidents()[0]
    earlier = msgspec.structs.replace(named, revision=4, verdict=Verdict.SUSPECTED)
    later = msgspec.structs.replace(named, revision=10, verdict=Verdict.WITHDRAWN, causes=[])

    for first, revision in enumerate((later, earlier, named)):
        sink.write(batch(INCIDENTS, [revision], first=first))

    assert read_incidents(store) == [later]
    assert store.query("SELECT incident_id, revision, verdict FROM incidents_current").rows == [
        (named.incident_id, 10, "withdrawn")
    ]
    assert store.query("SELECT count() FROM incident_causes").rows == [(0,)]


def test_readers_find_causes_victims_and_what_was_ruled_out_without_json(store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(INCIDENTS, incidents()))

    causes = store.query("SELECT namespace, pod, node, device, port, share FROM incident_causes").rows
    victims = store.query("SELECT job_name, loss, gpu_seconds_lost, cost, currency FROM incident_victims ORDER BY ALL")
    ruled_out = store.query("SELECT pod, reason, numbers['late_ticks'] FROM incident_ruled_out WHERE what = 'pod'").rows
    onset = store.query("SELECT onset, recovered, total_cost FROM incidents_current WHERE verdict = 'confirmed'").rows

    assert causes == [("inference-team-a", "llama-70b-server-84cf2", "gpu-node-12", "mlx5_0", 1, 1.0)]
    assert victims.rows == [
        ("gpt-finetuner-7b2a1", 0.18, None, None, None),
        ("gpt-finetuner-7b2a1", 0.24, 967.68, 183.0, "USD"),
        ("llm-pretrain-a100-001", 0.31, 967.68, 241.0, "USD"),
    ]
    assert sorted(ruled_out) == [("embedder-0", "started_after", 32), ("flood-0", "active_before", 0)]
    assert onset == [(EIGHT, EIGHT.replace(minute=4, second=12), 424)]


def test_every_other_record_is_there_once_with_its_fields(store: Store, sink: ClickHouseSink) -> None:
    written: list[tuple[Topic, list[msgspec.Struct]]] = [
        (NODE_PODS, [pods()]),
        (JOB_STATES, [job_state(), job_state(TICK + 50, Health.HEALTHY)]),
        (EPISODES, [episode(), episode(2)]),
        (DEAD_LETTERS, [dead_letter()]),
        (PIPELINE_HEALTH, [health(), health(TICK * 100_000 + 1, HealthStatus.OK)]),
    ]
    for _ in range(2):
        for topic, records in written:
            ClickHouseSink(store).write(batch(topic, records))

    def rows(sql: str) -> list[tuple[object, ...]]:
        return store.query(sql).rows

    assert rows("SELECT pod_uid, job, gpus, labels['app'], valid_to FROM pods_current") == [
        ("uid-train-0", "team-b/PyTorchJob/train", 8, "train", None)
    ]
    assert rows("SELECT gpu_model, gpu_hour_price_micros FROM nodes_current") == [("H100", 2_500_000)]
    assert rows("SELECT job_name, health, tick FROM job_states_current") == [("train", "healthy", TICK + 50)]
    assert rows("SELECT count() FROM job_states_history") == [(2,)]
    assert rows("SELECT episode_id, revision, loss, causes.pod FROM episodes_current") == [
        ("ep-1", 2, 0.375, ["llama-70b-server-84cf2"])
    ]
    assert rows("SELECT topic, log_partition, log_offset, reason, hex(value) FROM dead_letters_current") == [
        ("nic-counters", 3, 99, "no Confluent prefix", "FF0067617262616765")
    ]
    assert rows("SELECT component, status, gaps.what, counts['lost_events'] FROM pipeline_health_current") == [
        ("agent", "ok", ["ncclSend"], 2)
    ]


@pytest.mark.parametrize(
    "record",
    [
        health(us=2**62),
        health(us=-1),
        msgspec.structs.replace(dead_letter(), broker_time_ms=2**62),
        msgspec.structs.replace(
            incidents()[0], victims=[msgspec.structs.replace(incidents()[0].victims[0], recovered_tick=2**60)]
        ),
    ],
)
def test_a_time_that_no_table_can_hold_is_refused(sink: ClickHouseSink, record: msgspec.Struct) -> None:
    with pytest.raises(InvalidRecordError, match="outside the years 1970 to 2286"):
        sink.check(record)


def test_records_as_we_make_them_are_storable(sink: ClickHouseSink) -> None:
    for record in (nic(), nccl(), pods(), job_state(), episode(), *incidents(), dead_letter(), health()):
        sink.check(record)


@pytest.mark.parametrize(
    ("record", "fields", "elsewhere"),
    [
        (
            Incident,
            INCIDENT_FIELDS,
            {"source", "verdict", "kind", "rung", "causes", "victims", "ruled_out", "recovery"},
        ),
        (Episode, EPISODE_FIELDS, {"source", "verdict", "kind", "rung", "causes", "ruled_out", "recovery", "pods"}),
        (Cause, CAUSE_FIELDS, set()),
        (Victim, VICTIM_FIELDS, {"pods"}),
        (RuledOut, RULED_OUT_FIELDS, set()),
        (JobState, JOB_STATE_FIELDS, {"source", "health"}),
    ],
)
def test_a_new_field_of_a_finding_is_either_a_column_or_left_out_on_purpose(
    record: type[msgspec.Struct], fields: tuple[str, ...], elsewhere: set[str]
) -> None:
    only_in_json = {
        "Cause": {"container_id", "onset_tick", "recovered_tick", "quiet_level", "episode_level"},
        "Victim": {"price_source"},
        "Episode": {"gpu_hour_price_micros", "currency", "price_source"},
    }.get(record.__name__, set())

    assert set(fields) | elsewhere | only_in_json == set(record.__struct_fields__)


def test_migrations_are_applied_once_and_an_interrupted_one_again(dsn: str) -> None:
    store = Store(dsn)
    names = [migration.name for migration in migrations()]

    assert migrate(store) == names
    assert migrate(store) == []

    store.command("TRUNCATE TABLE schema_migrations")  # As if the process had died before noting them
    assert migrate(store) == names
    store.close()


def test_migrations_are_numbered_without_gap_or_twin(tmp_path: Path) -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))

    (tmp_path / "0001_a.sql").write_text("SELECT 1;\n-- a comment; with a semicolon\nSELECT ';';\n")
    assert migrations(tmp_path) == [Migration(version=1, name="0001_a", statements=["SELECT 1", "SELECT ';'"])]
    (tmp_path / "0001_b.sql").write_text("SELECT 1;")
    with pytest.raises(ValueError, match="two migrations carry one number"):
        migrations(tmp_path)


def test_a_query_reads_and_never_writes(dsn: str, store: Store, sink: ClickHouseSink) -> None:
    sink.write(batch(INCIDENTS, incidents()))

    answer = query(dsn, "SELECT verdict, count() AS n FROM incidents_current GROUP BY verdict ORDER BY verdict;\n")

    assert answer.columns == ["verdict", "n"]
    assert answer.rows == [("confirmed", 1), ("not_fabric", 1)]
    for forbidden in (
        "DROP TABLE incidents",
        "SELECT 1 SETTINGS readonly = 0",
        "INSERT INTO nodes (node) VALUES ('x')",
    ):
        with pytest.raises(StoreError, match="readonly"):
            query(dsn, forbidden)


def test_a_wrong_query_is_answered_in_one_line(dsn: str, store: Store) -> None:
    with pytest.raises(StoreError) as refused:
        query(dsn, "SELECT nope FROM incidents_current")

    assert "Unknown expression identifier `nope`" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_that_was_never_written_is_not_made_by_asking_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=re.escape(f"there is no embedded store at {tmp_path / 'none'}")):
        query(f"chdb://{tmp_path / 'none'}", "SELECT 1")

    assert not (tmp_path / "none").exists()


HOLD_A_STORE = """
import sys
from sinks.clickhouse.store import Store
store = Store(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_another_process_holds_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_STORE, f"chdb://{tmp_path}/db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repo_root(),
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        with pytest.raises(StoreLockedError) as refused:
            query(f"chdb://{tmp_path}/db", "SELECT 1")

        assert str(refused.value).startswith(f"process {holder.pid} holds the embedded store {tmp_path}/db")
        assert "\n" not in str(refused.value)
    finally:
        holder.communicate("")


def test_a_server_that_is_not_there_is_away_and_not_wrong() -> None:
    with pytest.raises(RetryableError):
        Store("http://127.0.0.1:9/default")
