-- What the catalogs say of the table $1 and of what stands around it, without
-- what changes whenever an object is recreated (oids, files, sizes).
SELECT line FROM (
  SELECT format('index %s: %s', i.indexrelid::regclass, to_jsonb(i)
      - 'indexrelid' - 'indrelid' - 'indexprs' - 'indpred' - 'indcheckxmin'
    || jsonb_build_object('definition', pg_get_indexdef(c.oid), 'options', c.reloptions,
      'tablespace', c.reltablespace, 'owner', c.relowner, 'persistence', c.relpersistence,
      'comment', obj_description(c.oid, 'pg_class'), 'columns', (
        SELECT jsonb_agg(jsonb_build_array(a.attname, coalesce(a.attstattarget, -1), a.attoptions,
          a.atttypid, a.attcollation) ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid))) AS line
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = $1::oid
  UNION ALL
  SELECT format('constraint %s: %s', k.conname, to_jsonb(k)
      - 'oid' - 'conindid' - 'conbin' - 'conexclop' - 'conrelid' - 'confrelid'
      - 'conpfeqop' - 'conppeqop' - 'conffeqop'
    || jsonb_build_object('definition', pg_get_constraintdef(k.oid), 'index', k.conindid::regclass,
      'operators', k.conexclop::regoperator[]::text, 'comment', obj_description(k.oid, 'pg_constraint')))
  FROM pg_constraint k WHERE k.conrelid = $1::oid OR k.confrelid = $1::oid
  UNION ALL
  SELECT format('trigger %s %s: %s %s %s', g.tgrelid::regclass,
    CASE WHEN g.tgisinternal THEN format('%s of %s', g.tgfoid::regproc, k.conname) ELSE g.tgname END,
    g.tgenabled, g.tgtype, CASE WHEN NOT g.tgisinternal THEN pg_get_triggerdef(g.oid) END)
  FROM pg_trigger g LEFT JOIN pg_constraint k ON k.oid = g.tgconstraint
  WHERE g.tgrelid = $1::oid OR g.tgconstrrelid = $1::oid
    OR g.tgrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))
  UNION ALL
  SELECT format('column %s: %s', a.attname, to_jsonb(a) - 'attrelid') FROM pg_attribute a
  WHERE a.attrelid = $1::oid AND a.attnum > 0
  UNION ALL
  SELECT format('table: %s', jsonb_build_array(c.relreplident, c.relhasindex, c.relhastriggers,
    c.relchecks, c.relpersistence, c.reloptions, c.reltablespace, c.relowner))
  FROM pg_class c WHERE c.oid = $1::oid
  UNION ALL
  SELECT format('depends: %s %s %s', pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype,
    pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid))
  FROM pg_depend d
  WHERE (d.classid = 'pg_class'::regclass AND d.objid IN (SELECT indexrelid FROM pg_index WHERE indrelid = $1::oid)
    OR d.classid = 'pg_constraint'::regclass AND d.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = $1::oid))
) AS all_lines ORDER BY line
