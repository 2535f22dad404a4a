-- The sequences that give values to columns $2 (a text array) of the table $1:
-- those that a column owns and those that its default draws from. One JSON
-- object each, read as `Sequence`.
SELECT json_build_object(
  'name', format('%I.%I', n.nspname, s.relname),
  'column', a.attname,
  'increment', q.seqincrement,
  'least', q.seqmin,
  'greatest', q.seqmax,
  'may_move', has_sequence_privilege(s.oid, 'UPDATE') AND has_sequence_privilege(s.oid, 'SELECT'),
  'may_read', has_column_privilege(a.attrelid, a.attnum, 'SELECT')
    AND NOT row_security_active(a.attrelid)
) FROM pg_attribute a
JOIN (
  SELECT d.objid AS sequence, d.refobjsubid AS attnum FROM pg_depend d
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid = $1::oid AND d.deptype IN ('a', 'i')
  UNION
  SELECT d.refobjid, f.adnum FROM pg_attrdef f JOIN pg_depend d
    ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
  WHERE f.adrelid = $1::oid
) AS drawn ON drawn.attnum = a.attnum
JOIN pg_class s ON s.oid = drawn.sequence AND s.relkind = 'S'
JOIN pg_sequence q ON q.seqrelid = s.oid
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND a.attname = ANY ($2::text[])
  AND coalesce(nullif(t.typbasetype, 0), t.oid) IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype)
ORDER BY a.attnum, s.oid
