-- What readers select from: each row once, its highest revision only. An incident that was merged counts where it went.

CREATE OR REPLACE VIEW incidents_current AS 
SELECT *, total_cost_micros / 1000000 AS total_cost FROM incidents FINAL WHERE merged_into IS NULL;

CREATE OR REPLACE VIEW episodes_current AS 
SELECT *, loss_e4 / 10000 AS loss FROM episodes FINAL;

CREATE OR REPLACE VIEW incident_causes AS
SELECT incident_id, revision, cluster, source, verdict, kind, onset, recovered,
    c.holder AS holder, c.namespace AS namespace, c.pod AS pod, c.pod_uid AS pod_uid, c.tenant AS tenant,
    c.node AS node, c.device AS device, c.port AS port, c.share_e4 / 10000 AS share, c.feature AS feature
FROM incidents FINAL ARRAY JOIN causes AS c WHERE merged_into IS NULL;

CREATE OR REPLACE VIEW incident_victims AS
SELECT incident_id, revision, cluster, source, verdict, kind,
    v.episode_id AS episode_id, v.job AS job, v.job_name AS job_name, v.tenant AS tenant, v.nodes AS nodes, v.gpus AS gpus,
    fromUnixTimestamp64Milli(v.onset_tick * 100, 'UTC') AS onset,
    fromUnixTimestamp64Milli(v.recovered_tick * 100, 'UTC') AS recovered,
    v.loss_e4 / 10000 AS loss, v.loss_low_e4 / 10000 AS loss_low, v.loss_high_e4 / 10000 AS loss_high,
    v.gpu_ms_lost / 1000 AS gpu_seconds_lost, v.cost_micros / 1000000 AS cost, v.currency AS currency
FROM incidents FINAL ARRAY JOIN victims AS v WHERE merged_into IS NULL;

CREATE OR REPLACE VIEW incident_ruled_out AS
SELECT incident_id, revision, cluster, r.what AS what, r.holder AS holder, r.namespace AS namespace, r.pod AS pod,
    r.pod_uid AS pod_uid, r.node AS node, r.reason AS reason, r.numbers AS numbers
FROM incidents FINAL ARRAY JOIN ruled_out AS r WHERE merged_into IS NULL;

CREATE OR REPLACE VIEW job_states_history AS SELECT * FROM job_states FINAL;

CREATE OR REPLACE VIEW job_states_current AS
SELECT * FROM job_states FINAL ORDER BY tick DESC, log_offset DESC LIMIT 1 BY cluster, job;

CREATE OR REPLACE VIEW pods_current AS SELECT * FROM pods FINAL;

CREATE OR REPLACE VIEW nodes_current AS SELECT * FROM nodes FINAL;

CREATE OR REPLACE VIEW ports_current AS SELECT * FROM ports FINAL;

CREATE OR REPLACE VIEW dead_letters_current AS SELECT * FROM dead_letters FINAL;

CREATE OR REPLACE VIEW pipeline_health_current AS
SELECT * FROM pipeline_health FINAL ORDER BY us DESC LIMIT 1 BY cluster, component, instance;

-- One row per tick: runs are spelled out. amount is in unit; NULL: could not be read.
CREATE OR REPLACE VIEW port_samples AS
SELECT cluster, node, device, port, counter, unit, run_tick AS tick,
    fromUnixTimestamp64Milli(run_tick * 100, 'UTC') AS time, value AS delta, value * factor AS amount, source
FROM port_runs FINAL ARRAY JOIN range(tick, tick + ticks) AS run_tick;

CREATE OR REPLACE VIEW holder_samples AS
SELECT cluster, node, device, holder, holder_kind, container_id, comm, feature, run_tick AS tick,
    fromUnixTimestamp64Milli(run_tick * 100, 'UTC') AS time, value, bytes_rung, source
FROM holder_runs FINAL ARRAY JOIN range(tick, tick + ticks) AS run_tick;

CREATE OR REPLACE VIEW nccl_calls_current AS SELECT * FROM nccl_calls FINAL;

-- Which port counters were read, and when: with port_samples it tells a zero from a gap.
CREATE OR REPLACE VIEW port_reads AS
SELECT f.cluster AS cluster, f.node AS node, r.device AS device, r.port AS port, r.counter AS counter,
    f.first_tick AS first_tick, f.ticks AS ticks, f.time AS time, f.source AS source
FROM (SELECT * FROM flushes FINAL) AS f INNER JOIN (SELECT DISTINCT * FROM read_sets) AS r ON f.read_set = r.read_set;
