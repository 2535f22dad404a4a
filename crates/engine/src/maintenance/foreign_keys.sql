-- The foreign keys of the table $1, oldest first: one JSON object each, read
-- as `ForeignKey`. Run under search_path = pg_catalog.
SELECT json_build_object(
  'oid', k.oid::bigint,
  'name', k.conname,
  'validated', k.convalidated,
  'enforced', coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true),
  'partitioned', t.relkind <> 'r' OR p.relkind <> 'r' OR k.conparentid <> 0 OR k.coninhcount > 0,
  'extension', (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_constraint'::regclass
      AND d.objid = k.oid LIMIT 1),
  'dependents', ARRAY(SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d
    WHERE d.deptype <> 'i' AND d.refclassid = 'pg_constraint'::regclass AND d.refobjid = k.oid),
  'may_refer', has_schema_privilege(p.relnamespace, 'USAGE')
    AND NOT EXISTS (SELECT FROM unnest(k.confkey) AS a(n)
      WHERE NOT has_column_privilege(p.oid, a.n, 'REFERENCES')),
  'odd', CASE
    WHEN EXISTS (SELECT FROM pg_trigger g WHERE g.tgconstraint = k.oid AND g.tgenabled <> 'O')
      THEN 'the triggers behind it are not in their usual state'
    WHEN EXISTS (SELECT FROM pg_seclabel l WHERE l.objoid = k.oid)
      THEN 'it has a security label' END,
  'referenced', format('%I.%I', pn.nspname, p.relname),
  'referenced_oid', p.oid::bigint,
  'drop', format('ALTER TABLE %I.%I DROP CONSTRAINT %I', n.nspname, t.relname, k.conname),
  'attach', array_remove(ARRAY[
    format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s NOT VALID', n.nspname, t.relname, k.conname,
      pg_get_constraintdef(k.oid)),
    format('ALTER TABLE %I.%I VALIDATE CONSTRAINT %I', n.nspname, t.relname, k.conname),
    CASE WHEN obj_description(k.oid, 'pg_constraint') IS NOT NULL THEN
      format('COMMENT ON CONSTRAINT %I ON %I.%I IS %L', k.conname, n.nspname, t.relname,
        obj_description(k.oid, 'pg_constraint')) END], NULL),
  'state', jsonb_build_object(
    'definition', pg_get_constraintdef(k.oid), 'validated', k.convalidated,
    'comment', obj_description(k.oid, 'pg_constraint'))
) FROM pg_constraint k
JOIN pg_class t ON t.oid = k.conrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
JOIN pg_class p ON p.oid = k.confrelid
JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.conrelid = $1::oid AND k.contype = 'f'
ORDER BY k.oid
