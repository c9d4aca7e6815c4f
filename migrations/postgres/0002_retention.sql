-- Samples that were summed up are known all the same.

-- Ranges of sequence numbers whose samples became minutes: what is sent again of them is no news.
CREATE TABLE node_sample_gone (
    node          TEXT   NOT NULL,
    boot_id       TEXT   NOT NULL,
    first         BIGINT NOT NULL,
    last          BIGINT NOT NULL,
    until_unix_ms BIGINT NOT NULL,  -- when the newest of them was taken
    PRIMARY KEY (node, boot_id, first)
);

-- The oldest steps are looked for by time.
CREATE INDEX node_summary_by_time ON node_summary (step_s, at_unix_ms);
CREATE INDEX worker_summary_by_time ON worker_summary (job_id, step_s, at_unix_ms);
