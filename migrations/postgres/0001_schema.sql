-- The schema of SQLite's migrations on PostgreSQL: the same tables and columns, so that queries are shared. Times are
-- milliseconds since 1970 (UTC); `at` says the same to dashboards. docs/data-model.md follows the data through the tables.

-- Predictors that serve. Who holds a lease owns jobs; without one it writes nothing: every commit locks its own row here.
CREATE TABLE predictor (
    instance    TEXT             NOT NULL PRIMARY KEY,  -- one registration of one process
    url         TEXT             NOT NULL,              -- where clients reach it
    lease_until TIMESTAMPTZ      NOT NULL,              -- by the clock of this database
    lease_s     DOUBLE PRECISION NOT NULL               -- how far ahead a renewal sets it
);

-- What a job asked for.
CREATE TABLE job (
    job_id              TEXT   NOT NULL PRIMARY KEY,
    spec                TEXT   NOT NULL,             -- JSON, protocol::JobSpec
    generation          BIGINT NOT NULL,             -- rises with every change of the set of workers
    departed_generation BIGINT NOT NULL,             -- the generation that the latest departure brought
    created_unix_ms     BIGINT NOT NULL,
    learning_rate       TEXT,                        -- JSON, core::learning_rate::Controller
    kept_from           BIGINT NOT NULL DEFAULT 0,   -- iterations before it are gone, and never planned again
    owner               TEXT   REFERENCES predictor ON DELETE SET NULL  -- who answers for it
);
CREATE INDEX job_by_owner ON job (owner);

-- Every worker that ever joined a job.
CREATE TABLE worker (
    job_id            TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    worker            TEXT   NOT NULL,
    seat              BIGINT NOT NULL,  -- order of the latest joining; live workers take their ranks in this order
    state             TEXT   NOT NULL CHECK (state IN ('live', 'left', 'expired')),
    request           TEXT   NOT NULL,  -- how it joined: device and bounds (JSON, protocol::JoinRequest)
    last_seen_unix_ms BIGINT NOT NULL,  -- as of its latest join or departure
    oom_cap           BIGINT,           -- the most it gets at once; NULL where it never ran out of memory
    operator_override TEXT,             -- JSON, protocol::WorkerOverride; NULL where there is none
    PRIMARY KEY (job_id, worker)
);

-- How iterations went. The first report of an iteration stays.
CREATE TABLE report (
    job_id                     TEXT             NOT NULL REFERENCES job ON DELETE CASCADE,
    iteration                  BIGINT           NOT NULL,
    worker                     TEXT             NOT NULL,
    at_unix_ms                 BIGINT           NOT NULL,
    local_batch                BIGINT           NOT NULL,
    compute_time_s             DOUBLE PRECISION NOT NULL,  -- forward and backward, without any waiting
    barrier_wait_s             DOUBLE PRECISION,
    loader_wait_s              DOUBLE PRECISION,
    peak_memory_bytes          BIGINT,
    drivers                    JSONB            NOT NULL,  -- read at the end of the compute
    cost                       DOUBLE PRECISION,           -- of all its samples, where the job counts by cost
    communication_s            DOUBLE PRECISION,           -- that compute could not hide
    overlapped_communication_s DOUBLE PRECISION,           -- that could run beside compute
    gradient_sqr               DOUBLE PRECISION,           -- squared norm of its mean gradient
    global_gradient_sqr        DOUBLE PRECISION,           -- squared norm of the global mean gradient
    micro_batches              BIGINT,                     -- forward and backward passes over all its samples
    tail_chunks                BIGINT,                     -- chunks that it claimed; the other columns of the tail go with it
    tail_samples               BIGINT,
    tail_compute_time_s        DOUBLE PRECISION,
    tail_claim_time_s          DOUBLE PRECISION,
    at                         TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED,
    PRIMARY KEY (job_id, iteration, worker)
);
-- Rows come in the order of time: a block range index is all that ranges of time need, and costs inserts nothing.
CREATE INDEX report_by_time ON report USING brin (at);

-- What was answered, byte for byte: durable before it leaves, never changed. A later generation's row stands beside an
-- earlier one only where a worker had departed in between, so that nobody could have carried the earlier one out.
CREATE TABLE allocation (
    job_id     TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    iteration  BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,
    answer     TEXT   NOT NULL,  -- JSON, protocol::AllocateAnswer; TEXT, because its bytes are the promise
    at         TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED,
    PRIMARY KEY (job_id, iteration, generation)
);
CREATE INDEX allocation_by_time ON allocation USING brin (at);

-- What happened to whom, for the people who ask.
CREATE TABLE event (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    job_id     TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    at_unix_ms BIGINT NOT NULL,
    kind       TEXT   NOT NULL CHECK (kind IN ('joined', 'left', 'expired', 'out_of_memory', 'override')),
    worker     TEXT   NOT NULL,
    generation BIGINT NOT NULL,
    at         TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED
);
CREATE INDEX event_by_job ON event (job_id, id);

-- The models of a job's workers (postcard, book::models::Models).
CREATE TABLE model_state (
    job_id     TEXT   NOT NULL PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    format     BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,
    state      BYTEA  NOT NULL
);

-- What was learned on each kind of device last (postcard, core's Earlier).
CREATE TABLE device_model (
    device     TEXT   NOT NULL PRIMARY KEY,
    format     BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,
    state      BYTEA  NOT NULL
);

-- Every node that ever sent telemetry.
CREATE TABLE node (
    node    TEXT   NOT NULL PRIMARY KEY,
    samples BIGINT NOT NULL  -- ever stored, those included that live on in summaries only
) WITH (fillfactor = 50);

-- What agents measured. (node, boot_id, sequence) names a sample for ever: sent twice, it is stored once.
CREATE TABLE node_sample (
    node       TEXT   NOT NULL,
    boot_id    TEXT   NOT NULL,  -- one life of the agent's sequence counter
    sequence   BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,  -- when it was taken, by the node's clock
    sample     JSONB  NOT NULL,  -- protocol::NodeSample
    at         TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED,
    PRIMARY KEY (node, boot_id, sequence)
);
CREATE INDEX node_sample_by_node ON node_sample (node, at_unix_ms);
CREATE INDEX node_sample_by_time ON node_sample USING brin (at);

-- What old samples leave behind: a row for each node and minute, later for each hour.
CREATE TABLE node_summary (
    node       TEXT   NOT NULL,
    step_s     BIGINT NOT NULL CHECK (step_s IN (60, 3600)),
    at_unix_ms BIGINT NOT NULL,  -- where the step begins
    samples    BIGINT NOT NULL,
    readings   TEXT   NOT NULL,  -- JSON: reading -> [count, sum, min, max]; those of a GPU are named gpu<index>/<reading>
    at         TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED,
    PRIMARY KEY (node, step_s, at_unix_ms)
);

-- What old reports and answers leave behind: a row for each worker and minute, later for each hour.
CREATE TABLE worker_summary (
    job_id           TEXT             NOT NULL REFERENCES job ON DELETE CASCADE,
    worker           TEXT             NOT NULL,
    step_s           BIGINT           NOT NULL CHECK (step_s IN (60, 3600)),
    at_unix_ms       BIGINT           NOT NULL,  -- where the step begins
    reports          BIGINT           NOT NULL,
    samples          BIGINT           NOT NULL,
    compute_time_s   DOUBLE PRECISION NOT NULL,  -- sums over the reports
    barrier_wait_s   DOUBLE PRECISION NOT NULL,
    loader_wait_s    DOUBLE PRECISION NOT NULL,
    predicted        BIGINT           NOT NULL,  -- reports of iterations that had an answer
    predicted_time_s DOUBLE PRECISION NOT NULL,  -- what those answers had foreseen, summed
    at               TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(at_unix_ms / 1000.0::float8)) STORED,
    PRIMARY KEY (job_id, worker, step_s, at_unix_ms)
);

-- Predicted against actual speed, in samples per second of compute time: a row for each worker of each answer in force.
-- `actual` is NULL until the worker has reported.
CREATE VIEW worker_speed AS
SELECT allocation.at,
       allocation.job_id,
       allocation.iteration,
       share ->> 'worker'                                       AS worker,
       (share ->> 'predicted_speed_samples_per_s')::float8      AS predicted,
       (share ->> 'speed_lower_samples_per_s')::float8          AS lower,
       (share ->> 'speed_upper_samples_per_s')::float8          AS upper,
       report.local_batch / nullif(report.compute_time_s, 0)    AS actual,
       coalesce(report.local_batch, (share ->> 'local_batch')::bigint) AS local_batch
FROM allocation
CROSS JOIN LATERAL json_array_elements(allocation.answer::json -> 'allocations') AS share
LEFT JOIN report ON report.job_id = allocation.job_id AND report.iteration = allocation.iteration
                AND report.worker = share ->> 'worker'
WHERE NOT EXISTS (SELECT FROM allocation AS later
                  WHERE later.job_id = allocation.job_id AND later.iteration = allocation.iteration
                    AND later.generation > allocation.generation);
