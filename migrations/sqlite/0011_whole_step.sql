ALTER TABLE report ADD COLUMN step_time_s REAL;  -- time of the whole step; NULL if the worker does not report it
ALTER TABLE report ADD COLUMN iterations REAL;   -- iterations of its size that it stands for; NULL if unknown
