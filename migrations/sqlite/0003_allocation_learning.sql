-- What allocations learn beside speed: memory, costs, communication, gradients; what operators want; how the learning rate stands.

-- A worker that ran out of memory is capped for ever, and so is what an operator wants until it is lifted.
ALTER TABLE worker ADD COLUMN oom_cap INTEGER;          -- the most it gets at once; NULL where it never ran out of memory
ALTER TABLE worker ADD COLUMN operator_override TEXT;   -- JSON, protocol::WorkerOverride; NULL where there is none

ALTER TABLE report ADD COLUMN cost                       REAL;  -- of all its samples, where the job counts by cost
ALTER TABLE report ADD COLUMN communication_s            REAL;  -- that compute could not hide
ALTER TABLE report ADD COLUMN overlapped_communication_s REAL;  -- that could run beside compute
ALTER TABLE report ADD COLUMN gradient_sqr               REAL;  -- squared norm of its mean gradient
ALTER TABLE report ADD COLUMN global_gradient_sqr        REAL;  -- squared norm of the global mean gradient

-- The state of the learning-rate rule (JSON, core::learning_rate::Controller): written with the answer that it is part of.
ALTER TABLE job ADD COLUMN learning_rate TEXT;

-- SQLite cannot widen a CHECK: the table is made anew with two more kinds.
CREATE TABLE event_wider (
    id         INTEGER PRIMARY KEY,
    job_id     TEXT    NOT NULL REFERENCES job ON DELETE CASCADE,
    at_unix_ms INTEGER NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('joined', 'left', 'expired', 'out_of_memory', 'override')),
    worker     TEXT    NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO event_wider SELECT * FROM event;
DROP TABLE event;
ALTER TABLE event_wider RENAME TO event;
CREATE INDEX event_by_job ON event (job_id, id);
