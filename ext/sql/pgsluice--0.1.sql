\echo Use "CREATE EXTENSION pgsluice" to load this file. \quit

-- Made here and not by the control file: the schema is then a member of the extension, and pg_dump leaves it out.
CREATE SCHEMA pgsluice;

-- What this session's last COPY FROM did that pgsluice was asked to do.
-- No row before the first one, nor for another user than the one who ran it.
CREATE FUNCTION pgsluice.last_copy(
    OUT relation regclass,
    OUT route text,
    OUT rows bigint,
    OUT rows_by_server bigint,
    OUT values_by_server bigint,
    OUT values_by_workers bigint,
    OUT bytes bigint,
    OUT workers integer,
    OUT seconds double precision,
    OUT seconds_reading double precision,
    OUT seconds_forming double precision,
    OUT seconds_heap double precision,
    OUT seconds_indexes_triggers double precision,
    OUT wal_bytes numeric,
    OUT rejected bigint,
    OUT duplicates_skipped bigint,
    OUT duplicates_replaced bigint,
    OUT leader_reads_because text,
    OUT expressions_by text,
    OUT values_compressed bigint,
    OUT index_memory bigint,
    OUT switched_off text,
    OUT indexes jsonb,
    OUT fell_back_because text
) RETURNS SETOF record
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pgsluice_last_copy';

-- Where another library's hook was there before pgsluice's, the work of a COPY is
-- done in here, so that the other library sees it. Called by hand it refuses.
CREATE FUNCTION pgsluice.inside() RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pgsluice_inside';

CREATE VIEW pgsluice.last_copy AS SELECT * FROM pgsluice.last_copy();

-- How a COPY of many rows fills each index of a table, and why not in a faster
-- way: of one that others can reach, or that the COPY has for itself and finds empty.
CREATE FUNCTION pgsluice.index_ways(relation regclass, is_private boolean,
    OUT index regclass, OUT way text, OUT because text
) RETURNS SETOF record
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pgsluice_index_ways';

-- What this session's last build of a B-tree index was, if pgsluice was asked
-- to do it. No row before the first one.
CREATE FUNCTION pgsluice.last_index_build(
    OUT relation regclass,
    OUT method text,
    OUT rows bigint,
    OUT scan text,
    OUT workers integer,
    OUT spilled_bytes bigint,
    OUT pages bigint,
    OUT seconds double precision,
    OUT seconds_scanning double precision,
    OUT fell_back_because text
) RETURNS SETOF record
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pgsluice_last_index_build';

CREATE VIEW pgsluice.last_index_build AS SELECT * FROM pgsluice.last_index_build();

GRANT USAGE ON SCHEMA pgsluice TO PUBLIC;
GRANT SELECT ON pgsluice.last_copy, pgsluice.last_index_build TO PUBLIC;

-- What the tables of COPY's options rejects_to and duplicates_to have:
-- CREATE TABLE rejects (LIKE pgsluice.reject).
CREATE TYPE pgsluice.reject AS (
    line bigint,
    column_name text,
    sqlstate text,
    message text,
    detail text,
    record text,          -- as it came; NULL if that is not valid text
    record_bytes bytea    -- only then
);

CREATE TYPE pgsluice.duplicate AS (
    line bigint,          -- of the row that came, whichever was kept
    key text,
    lost_row text         -- of the table's row type
);

GRANT USAGE ON TYPE pgsluice.reject, pgsluice.duplicate TO PUBLIC;
