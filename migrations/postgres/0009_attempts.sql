-- Iterations in report, allocation and step are positions: they grow over the life of a job, also when its run returns to an earlier
-- iteration. A job begins with attempt 1, whose positions are its iterations.

-- Where a job's run returned to an earlier iteration: this iteration has the first position, the later ones follow.
CREATE TABLE segment (
    job_id          TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    first_position  BIGINT NOT NULL,
    attempt         BIGINT NOT NULL,  -- from 1; as before if an iteration was planned again without a new start of the run
    first_iteration BIGINT NOT NULL,
    at_unix_ms      BIGINT NOT NULL,
    PRIMARY KEY (job_id, first_position)
);

ALTER TABLE job ADD COLUMN regrouped BIGINT NOT NULL DEFAULT 0;  -- 1 if workers joined, joined again or departed since the newest report
