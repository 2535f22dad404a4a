-- The triggers of the table $1 and of its partitions, those of users only: one
-- JSON object each, read as `Trigger`. ONLY keeps each statement to the one
-- table, since the partitions' copies may be in another state.
SELECT json_build_object(
  'name', g.tgname,
  'relation', format('%I.%I', n.nspname, c.relname),
  'enabled', g.tgenabled,
  'on_conflict', g.tgtype & 5 = 5 -- TRIGGER_TYPE_ROW, TRIGGER_TYPE_INSERT
    AND (SELECT p.prosrc ~* 'on[[:space:]]+conflict' FROM pg_proc p WHERE p.oid = g.tgfoid),
  'extension', (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_trigger'::regclass
      AND d.objid = g.oid AND d.deptype IN ('e', 'x') LIMIT 1),
  'owner', pg_has_role(c.relowner, 'USAGE'),
  'drop', format('ALTER TABLE ONLY %I.%I DISABLE TRIGGER %I', n.nspname, c.relname, g.tgname),
  'attach', ARRAY[format('ALTER TABLE ONLY %I.%I %s TRIGGER %I', n.nspname, c.relname,
    CASE g.tgenabled WHEN 'O' THEN 'ENABLE' WHEN 'R' THEN 'ENABLE REPLICA'
      WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'DISABLE' END, g.tgname)],
  'state', jsonb_build_object('enabled', g.tgenabled, 'oid', g.oid::bigint),
  'copies', CASE c.relkind WHEN 'p' THEN (SELECT coalesce(json_agg(k.oid::bigint), '[]')
    FROM pg_trigger k WHERE k.tgparentid = g.oid) END
) FROM pg_trigger g
JOIN pg_class c ON c.oid = g.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT g.tgisinternal
  AND g.tgrelid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid::regclass))
ORDER BY c.oid <> $1::oid, c.oid, g.oid
