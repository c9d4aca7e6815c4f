ALTER TABLE report ADD COLUMN step_time_s DOUBLE PRECISION;  -- time of the whole step; NULL if the worker does not report it
ALTER TABLE report ADD COLUMN iterations DOUBLE PRECISION;   -- iterations of its size that it stands for; NULL if unknown
