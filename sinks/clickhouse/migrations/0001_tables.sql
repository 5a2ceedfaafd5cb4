-- Tables and the views that readers use. Statements end with a semicolon at the end of a line.
--
-- Every table is a ReplacingMergeTree whose sorting key is the row's whole identity, so that a batch written twice is
-- one batch; readers use the views (FINAL). Keys hold only columns that never change. Times are stored twice: the
-- integer tick (100 ms since the Unix epoch) that the system counts in, and the UTC time for people and dashboards.

-- Port samples. Only ticks in which a counter moved are stored, and runs of equal non-zero values as one row; what was
-- read at all is in flushes and read_sets, so that "no row" can be told apart: read and zero, or not read.
CREATE TABLE IF NOT EXISTS port_runs (
    cluster LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    port UInt16,
    counter LowCardinality(String) COMMENT 'ib/ hw/ net/ eth/ port/ and the kernel''s own name',
    unit LowCardinality(String) COMMENT 'of value x factor',
    factor UInt8 COMMENT '4 where the kernel counts 4-byte words',
    tick Int64,
    ticks UInt16 COMMENT 'the value held in this many ticks, from tick on',
    value Nullable(Int64) COMMENT 'a counter''s delta or a gauge''s level, in the kernel''s own unit; NULL: not readable in these ticks',
    source LowCardinality(String),
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, node, device, port, counter, tick)
TTL toDateTime(time) + INTERVAL 14 DAY
SETTINGS non_replicated_deduplication_window = 10000;

-- One row per flush record: what was looked at, for how long, and what could not be seen.
CREATE TABLE IF NOT EXISTS flushes (
    cluster LowCardinality(String),
    node LowCardinality(String),
    topic LowCardinality(String),
    agent_epoch LowCardinality(String),
    seq Int64,
    first_tick Int64,
    ticks UInt16,
    complete_through_tick Int64,
    source LowCardinality(String),
    read_set UInt64 COMMENT 'which port counters were read: read_sets.read_set; 0 for none',
    holder_features Array(LowCardinality(String)) COMMENT 'the features that were read for holders',
    holdings UInt32,
    bytes_rung LowCardinality(String),
    resets UInt32,
    lost_events Int64,
    gaps Nested (source LowCardinality(String), what String, reason String),
    log_partition Int64,
    log_offset Int64,
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(first_tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, node, topic, agent_epoch, seq)
TTL toDateTime(time) + INTERVAL 14 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS read_sets (
    read_set UInt64,
    device LowCardinality(String),
    port UInt16,
    counter LowCardinality(String)
) ENGINE = ReplacingMergeTree
ORDER BY (read_set, device, port, counter);

-- Ports as they were last seen.
CREATE TABLE IF NOT EXISTS ports (
    cluster LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    port UInt16,
    netdev Nullable(String),
    link_layer Nullable(String),
    rate_mbps Nullable(Int64),
    capacity_mbps Nullable(Int64),
    capacity_source LowCardinality(String),
    tick Int64,
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(tick)
ORDER BY (cluster, node, device, port);

-- What each pod, container or process held and moved, as port_runs. A feature that a record lists and that was not
-- read for a holder is a NULL run.
CREATE TABLE IF NOT EXISTS holder_runs (
    cluster LowCardinality(String),
    node LowCardinality(String),
    device LowCardinality(String),
    holder LowCardinality(String) COMMENT 'pod uid, else container id, else pid:N, else cgroup:N',
    holder_kind LowCardinality(String),
    container_id LowCardinality(String),
    comm LowCardinality(String),
    feature LowCardinality(String),
    tick Int64,
    ticks UInt16,
    value Nullable(Int64) COMMENT 'a delta, or a level for *_live and *_live_bytes; NULL: not read in these ticks',
    bytes_rung LowCardinality(String),
    source LowCardinality(String),
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, node, device, holder, container_id, comm, feature, tick)
TTL toDateTime(time) + INTERVAL 14 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS nccl_calls (
    cluster LowCardinality(String),
    node LowCardinality(String),
    pid Int64,
    process LowCardinality(String) COMMENT 'the process''s own name',
    pod_uid LowCardinality(String),
    container_id LowCardinality(String),
    comm LowCardinality(String) COMMENT 'hash of the unique id; pid:pointer where the birth was not seen',
    rank Int64 COMMENT '-1: not known',
    nranks Int64 COMMENT '-1: not known',
    op LowCardinality(String),
    dtype Int64,
    count Int64,
    bytes Int64 COMMENT 'in one call; -1: unknown type',
    calls Int64,
    failed Int64,
    first_seq Int64,
    last_seq Int64,
    first_us Int64 COMMENT 'epoch microseconds',
    last_us Int64,
    timed Int64 COMMENT 'how many of the calls have a duration',
    min_us Int64,
    sum_us Int64,
    max_us Int64,
    timing LowCardinality(String),
    tick Int64,
    source LowCardinality(String),
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree
PARTITION BY toDate(time)
ORDER BY (cluster, node, pid, comm, rank, op, dtype, count, tick, first_seq)
TTL toDateTime(time) + INTERVAL 14 DAY
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS pods (
    cluster LowCardinality(String),
    node LowCardinality(String),
    pod_uid String,
    namespace LowCardinality(String),
    name String,
    tenant LowCardinality(Nullable(String)),
    job Nullable(String),
    gpus Nullable(Int64),
    qos LowCardinality(Nullable(String)),
    labels Map(String, String),
    containers Nested (container_id String, name String),
    valid_from_tick Int64,
    valid_to_tick Nullable(Int64),
    as_of_tick Int64,
    source LowCardinality(String),
    valid_from DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(valid_from_tick * 100, 'UTC'),
    valid_to Nullable(DateTime64(3, 'UTC')) DEFAULT fromUnixTimestamp64Milli(valid_to_tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(as_of_tick)
ORDER BY (cluster, node, pod_uid);

CREATE TABLE IF NOT EXISTS nodes (
    cluster LowCardinality(String),
    node String,
    gpu_model LowCardinality(Nullable(String)),
    gpu_hour_price_micros Nullable(Int64),
    currency LowCardinality(Nullable(String)),
    price_source LowCardinality(Nullable(String)),
    labels Map(String, String),
    as_of_tick Int64,
    as_of DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(as_of_tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(as_of_tick)
ORDER BY (cluster, node);

CREATE TABLE IF NOT EXISTS job_states (
    cluster LowCardinality(String),
    job String,
    job_name Nullable(String),
    job_epoch Int64,
    tenant LowCardinality(Nullable(String)),
    source LowCardinality(String),
    tick Int64,
    health LowCardinality(String),
    why String,
    nodes Array(String),
    ports Array(String),
    gpus Nullable(Int64),
    iteration_us Nullable(Int64),
    baseline_us Nullable(Int64),
    episode_id Nullable(String),
    log_offset Int64,
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(log_offset)
PARTITION BY toYYYYMM(time)
ORDER BY (cluster, job, tick, health)
TTL toDateTime(time) + INTERVAL 400 DAY;

CREATE TABLE IF NOT EXISTS episodes (
    episode_id String,
    revision Int64,
    cluster LowCardinality(String),
    job String,
    job_name Nullable(String),
    job_epoch Int64,
    tenant LowCardinality(Nullable(String)),
    source LowCardinality(String),
    verdict LowCardinality(String),
    kind LowCardinality(String),
    alarm_tick Int64,
    onset_tick Int64,
    recovered_tick Nullable(Int64),
    decided_tick Int64,
    as_of_tick Int64,
    baseline_us Int64,
    slowed_us Int64,
    iterations Int64,
    loss_e4 Int64,
    loss_low_e4 Int64,
    loss_high_e4 Int64,
    timing_source LowCardinality(String),
    nodes Array(String),
    gpus Nullable(Int64),
    gpu_ms_lost Nullable(Int64),
    rung LowCardinality(String),
    link_port Nullable(String),
    not_observed Array(String),
    causes Nested (holder String, namespace Nullable(String), pod Nullable(String), pod_uid Nullable(String),
        tenant Nullable(String), job Nullable(String), node String, device String, port Int64, share_e4 Int64,
        feature String),
    ruled_out Nested (what String, holder Nullable(String), namespace Nullable(String), pod Nullable(String),
        pod_uid Nullable(String), node Nullable(String), reason String, numbers Map(String, Int64)),
    record String COMMENT 'the whole record as JSON: what the other columns leave out',
    onset DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(onset_tick * 100, 'UTC'),
    recovered Nullable(DateTime64(3, 'UTC')) DEFAULT fromUnixTimestamp64Milli(recovered_tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(revision)
ORDER BY episode_id;

CREATE TABLE IF NOT EXISTS incidents (
    incident_id String,
    revision Int64,
    cluster LowCardinality(String),
    source LowCardinality(String),
    verdict LowCardinality(String),
    kind LowCardinality(String),
    merged_into Nullable(String),
    total_cost_micros Nullable(Int64),
    currency LowCardinality(Nullable(String)),
    onset_tick Int64,
    recovered_tick Nullable(Int64),
    decided_tick Int64,
    as_of_tick Int64,
    rung LowCardinality(String),
    link_port Nullable(String),
    not_observed Array(String),
    recommendation Nullable(String),
    causes Nested (holder String, namespace Nullable(String), pod Nullable(String), pod_uid Nullable(String),
        tenant Nullable(String), job Nullable(String), node String, device String, port Int64, share_e4 Int64,
        feature String),
    victims Nested (episode_id String, job String, job_name Nullable(String), tenant Nullable(String),
        nodes Array(String), gpus Nullable(Int64), onset_tick Int64, recovered_tick Nullable(Int64), loss_e4 Int64,
        loss_low_e4 Int64, loss_high_e4 Int64, gpu_ms_lost Nullable(Int64), cost_micros Nullable(Int64),
        currency Nullable(String)),
    ruled_out Nested (what String, holder Nullable(String), namespace Nullable(String), pod Nullable(String),
        pod_uid Nullable(String), node Nullable(String), reason String, numbers Map(String, Int64)),
    record String COMMENT 'the whole record as JSON: it reads back as the same incident',
    onset DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Milli(onset_tick * 100, 'UTC'),
    recovered Nullable(DateTime64(3, 'UTC')) DEFAULT fromUnixTimestamp64Milli(recovered_tick * 100, 'UTC')
) ENGINE = ReplacingMergeTree(revision)
ORDER BY incident_id;

CREATE TABLE IF NOT EXISTS dead_letters (
    topic LowCardinality(String),
    log_partition Int64,
    log_offset Int64,
    component LowCardinality(String),
    reason String,
    key Nullable(String),
    value Nullable(String) COMMENT 'the message''s bytes',
    headers Map(String, String),
    broker_time_ms Nullable(Int64),
    broker_time Nullable(DateTime64(3, 'UTC')) DEFAULT fromUnixTimestamp64Milli(broker_time_ms, 'UTC')
) ENGINE = ReplacingMergeTree
ORDER BY (topic, log_partition, log_offset, component);

CREATE TABLE IF NOT EXISTS pipeline_health (
    cluster LowCardinality(String),
    component LowCardinality(String),
    instance String,
    epoch String,
    us Int64,
    source LowCardinality(String),
    status LowCardinality(String),
    message String,
    probes_wanted Nullable(Int64),
    probes_attached Nullable(Int64),
    gaps Nested (source LowCardinality(String), what String, reason String),
    counts Map(LowCardinality(String), Int64),
    time DateTime64(3, 'UTC') DEFAULT fromUnixTimestamp64Micro(us, 'UTC')
) ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (cluster, component, instance, us)
TTL toDateTime(time) + INTERVAL 30 DAY;
