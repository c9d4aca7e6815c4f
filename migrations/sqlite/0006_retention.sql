-- Samples that were summed up are known all the same, and rows of samples lie close together.

-- Ranges of sequence numbers whose samples became minutes: what is sent again of them is no news.
CREATE TABLE node_sample_gone (
    node          TEXT    NOT NULL,
    boot_id       TEXT    NOT NULL,
    first         INTEGER NOT NULL,
    last          INTEGER NOT NULL,
    until_unix_ms INTEGER NOT NULL,  -- when the newest of them was taken
    PRIMARY KEY (node, boot_id, first)
) STRICT, WITHOUT ROWID;

-- A table without rowid keeps a row of a quarter of a page or more on a page of its own, and a sample has about a kilobyte: it
-- took four times the room and the writing. So the table is made anew with rowids.
CREATE TABLE node_sample_close (
    node        TEXT    NOT NULL,
    boot_id     TEXT    NOT NULL,  -- one life of the agent's sequence counter
    sequence    INTEGER NOT NULL,
    at_unix_ms  INTEGER NOT NULL,  -- when it was taken, by the node's clock
    sample      TEXT    NOT NULL,  -- the sample as it came (JSON, protocol::NodeSample)
    PRIMARY KEY (node, boot_id, sequence)
) STRICT;
INSERT INTO node_sample_close SELECT node, boot_id, sequence, at_unix_ms, sample FROM node_sample ORDER BY at_unix_ms;
DROP TABLE node_sample;
ALTER TABLE node_sample_close RENAME TO node_sample;
CREATE INDEX node_sample_by_time ON node_sample (node, at_unix_ms);

-- The oldest steps are looked for by time.
CREATE INDEX node_summary_by_time ON node_summary (step_s, at_unix_ms);
CREATE INDEX worker_summary_by_time ON worker_summary (job_id, step_s, at_unix_ms);
