ALTER TABLE report ADD COLUMN loss DOUBLE PRECISION;  -- mean over its samples; NULL if the worker does not report it
