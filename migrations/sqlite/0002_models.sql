-- What models have learned, so that a restart goes on where they stood. Written in the background; everything in it can be
-- learned again from the reports. A format that the service does not know is as good as none.

-- The models of a job's workers (postcard, book::models::Models).
CREATE TABLE model_state (
    job_id     TEXT    NOT NULL PRIMARY KEY REFERENCES job ON DELETE CASCADE,
    format     INTEGER NOT NULL,
    at_unix_ms INTEGER NOT NULL,
    state      BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- What was learned on each kind of device last: new workers on one like it start from there (postcard, core's Earlier).
CREATE TABLE device_model (
    device     TEXT    NOT NULL PRIMARY KEY,  -- as workers name it when they join
    format     INTEGER NOT NULL,
    at_unix_ms INTEGER NOT NULL,
    state      BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
