-- The sequences that give values to columns $2 (a text array) of the table $1:
-- those that a column owns and those that its default draws from, also of the
-- column of the same name in the tables that $1 is a partition of. One JSON
-- object each, read as `KeySequence`.
WITH RECURSIVE tables AS (
  SELECT $1::oid AS oid UNION SELECT relid::oid FROM pg_partition_ancestors($1::oid::regclass)
), drawn AS (
  SELECT d.objid AS sequence, d.refobjid AS relation, d.refobjsubid AS attnum FROM pg_depend d
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid IN (SELECT oid FROM tables) AND d.deptype IN ('a', 'i')
  UNION
  SELECT d.refobjid, f.adrelid, f.adnum FROM pg_attrdef f JOIN pg_depend d
    ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
  WHERE f.adrelid IN (SELECT oid FROM tables)
), named AS (
  SELECT DISTINCT drawn.sequence, b.attname FROM drawn
  JOIN pg_attribute b ON b.attrelid = drawn.relation AND b.attnum = drawn.attnum
), types AS (
  SELECT a.attnum, t.oid, t.typtype, t.typbasetype FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = $1::oid AND a.attnum > 0
  UNION ALL
  SELECT types.attnum, t.oid, t.typtype, t.typbasetype FROM types
  JOIN pg_type t ON types.typtype = 'd' AND t.oid = types.typbasetype
)
SELECT json_build_object(
  'name', format('%I.%I', n.nspname, s.relname),
  'column', a.attname,
  'increment', q.seqincrement,
  'least', q.seqmin,
  'greatest', q.seqmax,
  'cached', q.seqcache > 1,
  'alone', q.seqcache = 1 OR NOT EXISTS (
    SELECT FROM pg_sequence o WHERE o.seqrelid <> s.oid AND o.seqcache > 1 AND (
      o.seqrelid IN (SELECT sequence FROM named WHERE attname <> ALL ($2::text[]))
      -- What a trigger draws from is not known.
      OR EXISTS (SELECT FROM pg_trigger g WHERE NOT g.tgisinternal AND g.tgenabled <> 'D'
        AND g.tgtype & 4 = 4 -- TRIGGER_TYPE_INSERT
        AND g.tgrelid IN (SELECT $1::oid UNION
          SELECT relid::oid FROM pg_partition_tree($1::oid::regclass))))),
  'may_move', has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(s.oid, 'UPDATE')
    AND has_sequence_privilege(s.oid, 'SELECT'),
  'as_sent', NOT EXISTS (
    SELECT FROM pg_trigger g WHERE g.tgenabled <> 'D'
      AND g.tgtype & 7 = 7 -- TRIGGER_TYPE_ROW, TRIGGER_TYPE_BEFORE, TRIGGER_TYPE_INSERT
      AND g.tgrelid IN (SELECT $1::oid UNION
        SELECT relid::oid FROM pg_partition_tree($1::oid::regclass))),
  'may_read', has_column_privilege(a.attrelid, a.attnum, 'SELECT')
    AND NOT row_security_active(a.attrelid),
  'indexed', EXISTS (
    SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
    WHERE i.indrelid = a.attrelid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum)
) FROM pg_attribute a
JOIN named ON named.attname = a.attname
JOIN pg_class s ON s.oid = named.sequence AND s.relkind = 'S'
JOIN pg_sequence q ON q.seqrelid = s.oid
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN types ON types.attnum = a.attnum AND types.typtype <> 'd'
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND a.attname = ANY ($2::text[])
  AND types.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype)
ORDER BY a.attnum, s.oid
