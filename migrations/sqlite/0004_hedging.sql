-- What workers did of a shared tail, and in how many passes. NULL where a report does not say.

ALTER TABLE report ADD COLUMN micro_batches       INTEGER;  -- forward and backward passes over all its samples
ALTER TABLE report ADD COLUMN tail_chunks         INTEGER;  -- chunks that it claimed; the other columns of the tail go with it
ALTER TABLE report ADD COLUMN tail_samples        INTEGER;  -- samples in them
ALTER TABLE report ADD COLUMN tail_compute_time_s REAL;     -- forward and backward time over them
ALTER TABLE report ADD COLUMN tail_claim_time_s   REAL;     -- waiting for the answers to its claims
