-- Models are stored in parts, so that no write is as large as the models of thousands of workers. Earlier ones are learned again
-- from the reports.
DROP TABLE model_state;

-- The models of a job's workers (postcard, core's parts of stored models). Part 0 is written last. In the same transaction all
-- parts of other revisions are deleted: the parts of the revision that has a part 0 are valid, others are incomplete.
CREATE TABLE model_state (
    job_id     TEXT   NOT NULL REFERENCES job ON DELETE CASCADE,
    revision   BIGINT NOT NULL DEFAULT 0,
    part       BIGINT NOT NULL DEFAULT 0,
    format     BIGINT NOT NULL,
    at_unix_ms BIGINT NOT NULL,
    state      BYTEA  NOT NULL,
    PRIMARY KEY (job_id, revision, part)
);
