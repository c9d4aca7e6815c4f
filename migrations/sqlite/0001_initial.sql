-- The first schema, in the order of the way of the data. Times are milliseconds since 1970 (UTC).

-- What agents measured. (node, boot_id, sequence) names a sample for ever: sent twice, it is stored once.
CREATE TABLE node_sample (
    node        TEXT    NOT NULL,
    boot_id     TEXT    NOT NULL,  -- one life of the agent's sequence counter
    sequence    INTEGER NOT NULL,
    at_unix_ms  INTEGER NOT NULL,  -- when it was taken, by the node's clock
    sample      TEXT    NOT NULL,  -- the sample as it came (JSON, protocol::NodeSample)
    PRIMARY KEY (node, boot_id, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX node_sample_by_time ON node_sample (node, at_unix_ms);

-- What a job asked for.
CREATE TABLE job (
    job_id              TEXT    NOT NULL PRIMARY KEY,
    spec                TEXT    NOT NULL,  -- JSON, protocol::JobSpec
    generation          INTEGER NOT NULL,  -- rises with every change of the set of workers
    departed_generation INTEGER NOT NULL,  -- the generation that the latest departure brought
    created_unix_ms     INTEGER NOT NULL
) STRICT;

-- Every worker that ever joined a job.
CREATE TABLE worker (
    job_id            TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    worker            TEXT    NOT NULL,
    seat              INTEGER NOT NULL,  -- order of the latest joining; live workers take their ranks in this order
    state             TEXT    NOT NULL CHECK (state IN ('live', 'left', 'expired')),
    request           TEXT    NOT NULL,  -- how it joined: device and bounds (JSON, protocol::JoinRequest)
    last_seen_unix_ms INTEGER NOT NULL,  -- as of its latest join or departure
    PRIMARY KEY (job_id, worker)
) STRICT, WITHOUT ROWID;

-- How iterations went. The key follows time, so that a commit touches few pages. The first report of an iteration stays.
CREATE TABLE report (
    job_id            TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    iteration         INTEGER NOT NULL,
    worker            TEXT    NOT NULL,
    at_unix_ms        INTEGER NOT NULL,
    local_batch       INTEGER NOT NULL,
    compute_time_s    REAL    NOT NULL,  -- forward and backward, without any waiting
    barrier_wait_s    REAL,
    loader_wait_s     REAL,
    peak_memory_bytes INTEGER,
    drivers           TEXT    NOT NULL,  -- read at the end of the compute (JSON object)
    PRIMARY KEY (job_id, iteration, worker)
) STRICT, WITHOUT ROWID;

-- What was answered, byte for byte: durable before it leaves, never changed. A later generation's row stands beside an
-- earlier one only where a worker had departed in between, so that nobody could have carried the earlier one out.
CREATE TABLE allocation (
    job_id     TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    iteration  INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    at_unix_ms INTEGER NOT NULL,
    answer     TEXT    NOT NULL,  -- JSON, protocol::AllocateAnswer
    PRIMARY KEY (job_id, iteration, generation)
) STRICT, WITHOUT ROWID;

-- Joins, leaves and expiries, for the people who ask what happened.
CREATE TABLE event (
    id         INTEGER PRIMARY KEY,
    job_id     TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    at_unix_ms INTEGER NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('joined', 'left', 'expired')),
    worker     TEXT    NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE INDEX event_by_job ON event (job_id, id);
