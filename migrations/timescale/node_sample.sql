-- Where a database has the TimescaleDB extension: samples in chunks of a day, compressed when they are a day old. Run at every
-- start, and again without effect. A hypertable's keys hold its time; a resent sample has the time that it had.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM timescaledb_information.hypertables WHERE hypertable_name = 'node_sample') THEN
        ALTER TABLE node_sample DROP CONSTRAINT node_sample_pkey;
        ALTER TABLE node_sample ADD PRIMARY KEY (node, boot_id, sequence, at_unix_ms);
        PERFORM create_hypertable('node_sample', 'at_unix_ms', chunk_time_interval => 86400000, migrate_data => true);
        CREATE OR REPLACE FUNCTION evenstep_now_unix_ms() RETURNS BIGINT LANGUAGE SQL STABLE AS
            'SELECT (extract(epoch FROM now()) * 1000)::bigint';
        PERFORM set_integer_now_func('node_sample', 'evenstep_now_unix_ms');
        ALTER TABLE node_sample SET (timescaledb.compress, timescaledb.compress_segmentby = 'node',
                                     timescaledb.compress_orderby = 'at_unix_ms');
        PERFORM add_compression_policy('node_sample', BIGINT '86400000');
    END IF;
END $$;
