-- What outlives raw history, and where a job's history begins.

-- Iterations before it are gone: their answers were let go by age, and nobody may ever plan them again.
ALTER TABLE job ADD COLUMN kept_from INTEGER NOT NULL DEFAULT 0;

-- Every node that ever sent telemetry.
CREATE TABLE node (
    node    TEXT    NOT NULL PRIMARY KEY,
    samples INTEGER NOT NULL  -- ever stored, those included that live on in summaries only
) STRICT, WITHOUT ROWID;
INSERT INTO node SELECT node, COUNT(*) FROM node_sample GROUP BY node;

-- What old samples leave behind: a row for each node and minute, later for each hour.
CREATE TABLE node_summary (
    node       TEXT    NOT NULL,
    step_s     INTEGER NOT NULL CHECK (step_s IN (60, 3600)),
    at_unix_ms INTEGER NOT NULL,  -- where the step begins
    samples    INTEGER NOT NULL,
    readings   TEXT    NOT NULL,  -- JSON: reading -> [count, sum, min, max]; those of a GPU are named gpu<index>/<reading>
    PRIMARY KEY (node, step_s, at_unix_ms)
) STRICT, WITHOUT ROWID;

-- What old reports and answers leave behind: a row for each worker and minute, later for each hour.
CREATE TABLE worker_summary (
    job_id            TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    worker            TEXT    NOT NULL,
    step_s            INTEGER NOT NULL CHECK (step_s IN (60, 3600)),
    at_unix_ms        INTEGER NOT NULL,  -- where the step begins
    reports           INTEGER NOT NULL,
    samples           INTEGER NOT NULL,
    compute_time_s    REAL    NOT NULL,  -- sums over the reports
    barrier_wait_s    REAL    NOT NULL,
    loader_wait_s     REAL    NOT NULL,
    predicted         INTEGER NOT NULL,  -- reports of iterations that had an answer
    predicted_time_s  REAL    NOT NULL,  -- what those answers had foreseen, summed
    PRIMARY KEY (job_id, worker, step_s, at_unix_ms)
) STRICT, WITHOUT ROWID;
