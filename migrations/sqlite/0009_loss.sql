ALTER TABLE report ADD COLUMN loss REAL;  -- mean over its samples; NULL if the worker does not report it
