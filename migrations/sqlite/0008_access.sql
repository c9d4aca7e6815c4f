-- Tokens of clients. A token itself is not stored, only the SHA-256 of its secret part.
CREATE TABLE token (
    token_id          TEXT    NOT NULL PRIMARY KEY,
    secret_sha256     BLOB    NOT NULL,
    scope             TEXT    NOT NULL,  -- what it allows
    jobs              TEXT    NOT NULL,  -- pattern of the jobs it allows it for
    note              TEXT    NOT NULL,  -- who or what uses it
    created_unix_ms   INTEGER NOT NULL,
    expires_unix_ms   INTEGER,           -- NULL if it never expires
    last_used_unix_ms INTEGER            -- NULL before its first use
) STRICT;

-- Who created, deleted, overrode or revoked something. Rows remain when their subject is deleted.
CREATE TABLE audit (
    id         INTEGER PRIMARY KEY,
    at_unix_ms INTEGER NOT NULL,
    actor      TEXT    NOT NULL,  -- token, or the user of a command
    address    TEXT,              -- IP address of the client; NULL for commands
    action     TEXT    NOT NULL,
    subject    TEXT    NOT NULL
) STRICT;
