-- The table $1 and what this session's role may do to it: one JSON object,
-- read as `Relation`. No row where there is no such table. $lists is an expression of the program.
SELECT json_build_object(
  'oid', c.oid::bigint,
  'name', format('%I.%I', n.nspname, c.relname),
  'kind', c.relkind,
  'persistence', c.relpersistence,
  'owner', pg_has_role(c.relowner, 'USAGE'),
  'may_create', has_schema_privilege(c.relnamespace, 'CREATE'),
  'heap_bytes', pg_relation_size(c.oid),
  'rows', c.reltuples,
  'bare', c.relkind = 'r' AND NOT c.relhasindex AND NOT c.relhastriggers
    AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'),
  'visible', has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid),
  'lists', $lists
) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = $1::oid
