-- The index of a large table takes longer than a statement of a request may. It comes first: predictors of an earlier version
-- keep writing until a later statement locks the table of jobs.
SET LOCAL statement_timeout = 0;

-- The latest event of a kind, without reading all events of the job.
CREATE INDEX event_by_kind ON event (job_id, kind, id);

-- Iterations as charts show them, so that charts read neither allocations nor reports. Rows may be missing: they are
-- written in the background, and everything in them can be computed from the allocations and the reports.
CREATE TABLE step (
    job_id     TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    iteration  BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,  -- time of the allocation that it was computed with
    shown      TEXT   NOT NULL,  -- JSON, jobs::shown::Shown
    PRIMARY KEY (job_id, iteration)
);

-- Views read a job's totals instead of all its iterations.
ALTER TABLE job ADD COLUMN totals TEXT;  -- JSON, jobs::live::Totals; NULL until they are stored
