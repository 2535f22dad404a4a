-- The indexes of the table $1, oldest first: one JSON object each, read as
-- `Index`. Run under search_path = pg_catalog, so that every name that a
-- definition needs is written in full. `build`, `attach` and `drop` are whole
-- statements with the server's own quoting; `state` is what must be the same
-- again when the index is back.
WITH i AS (
  SELECT i.*, c.relname, c.reltablespace, c.reloptions, c.relispartition, c.relkind AS index_kind,
    am.amname, ts.spcname,
    format('%I.%I', n.nspname, t.relname) AS table_name,
    format('%I.%I', n.nspname, c.relname) AS index_name,
    t.relreplident, t.relkind AS table_kind, t.relowner AS table_owner,
    pg_get_indexdef(c.oid) AS definition,
    obj_description(c.oid, 'pg_class') AS index_comment,
    -- The server derives the names of an index's columns again; if one was renamed,
    -- or its table's column, the name is put back too.
    ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid ORDER BY a.attnum)::text[]
      AS columns,
    ARRAY(SELECT format('%s:%s', a.attnum, a.attstattarget) FROM pg_attribute a
      WHERE a.attrelid = c.oid AND a.attstattarget >= 0 ORDER BY a.attnum) AS targets,
    i.indisreplident OR (t.relreplident = 'd' AND i.indisprimary) AS is_identity,
    k.oid AS constraint_oid, k.conname, k.contype, k.condeferrable, k.condeferred,
    coalesce((to_jsonb(k) ->> 'conperiod')::boolean, false) AS period,
    pg_get_constraintdef(k.oid) AS constraint_definition,
    obj_description(k.oid, 'pg_constraint') AS constraint_comment
  FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = t.relnamespace
  JOIN pg_am am ON am.oid = c.relam
  LEFT JOIN pg_tablespace ts ON ts.oid = c.reltablespace
  LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid
    AND k.contype IN ('p', 'u', 'x')
  WHERE i.indrelid = $1::oid
), j AS (
  SELECT i.*, contype = 'x' OR period AS by_constraint,
    -- Sent before the definition, whose literals are written for this setting of backslashes. The
    -- server reads all literals of a message before it executes anything, so it is another message.
    format('SET LOCAL default_tablespace = %L; SET LOCAL standard_conforming_strings = on',
      coalesce(spcname, '')) AS place
  FROM i
)
SELECT json_build_object(
  'oid', indexrelid::bigint,
  'name', index_name,
  'kind', CASE WHEN period THEN 'period' ELSE CASE contype WHEN 'p' THEN 'primary key'
    WHEN 'u' THEN 'unique constraint' WHEN 'x' THEN 'exclusion constraint'
    ELSE CASE WHEN indisunique THEN 'unique index' ELSE 'index' END END END,
  'method', amname,
  'certain', indexprs IS NULL AND indpred IS NULL AND NOT indisunique AND NOT indisexclusion
    AND amname IN ('btree', 'brin') AND NOT EXISTS (SELECT FROM pg_attribute a
      WHERE a.attrelid = indexrelid AND a.attlen < 0),
  'plain', amname = 'btree' AND indexprs IS NULL AND indpred IS NULL AND indimmediate
    AND NOT indisexclusion,
  'valid', indisvalid AND indisready AND indislive,
  'partitioned', relispartition OR index_kind = 'I' OR table_kind <> 'r',
  'extension', (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype IN ('e', 'x')
      AND (d.classid = 'pg_class'::regclass AND d.objid = indexrelid
        OR d.classid = 'pg_constraint'::regclass AND d.objid = constraint_oid) LIMIT 1),
  'dependents', ARRAY(SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d
    WHERE d.deptype <> 'i'
      AND (d.refclassid = 'pg_class'::regclass AND d.refobjid = indexrelid
        OR d.refclassid = 'pg_constraint'::regclass AND d.refobjid = constraint_oid)),
  'published', is_identity AND EXISTS (
    SELECT FROM pg_publication p WHERE (p.pubupdate OR p.pubdelete) AND (p.puballtables
      OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid IN
        (SELECT $1::oid UNION SELECT relid FROM pg_partition_ancestors($1::oid::regclass)))
      OR EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
        WHERE s.pnpubid = p.oid AND c.oid IN
        (SELECT $1::oid UNION SELECT relid FROM pg_partition_ancestors($1::oid::regclass))))),
  -- Since 17, the server builds indexes under search_path = pg_catalog, pg_temp. What operators and
  -- parsed bodies call are dependencies, too; what other bodies call is found by the path.
  'by_path', current_setting('server_version_num')::int >= 170000 AND EXISTS (
    WITH RECURSIVE needs(classid, objid) AS (
      SELECT 'pg_class'::regclass::oid, indexrelid
      UNION
      SELECT d.refclassid, d.refobjid FROM needs
      JOIN pg_depend d ON d.classid = needs.classid AND d.objid = needs.objid
      WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass))
    SELECT FROM needs JOIN pg_proc p ON p.oid = needs.objid JOIN pg_language l ON l.oid = p.prolang
    WHERE needs.classid = 'pg_proc'::regclass AND l.lanname NOT IN ('internal', 'c')
      AND p.prosqlbody IS NULL
      AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')),
  'foreign_tablespace', reltablespace <> 0 AND NOT has_tablespace_privilege(reltablespace, 'CREATE'),
  'odd', CASE
    WHEN conname <> relname THEN 'its constraint has another name'
    WHEN contype = 'p' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = $1::oid)
      THEN 'to add it again would lock the tables that inherit from the table'
    WHEN period AND reloptions IS NOT NULL THEN 'its storage parameters cannot be given again'
    WHEN EXISTS (SELECT FROM pg_trigger g WHERE g.tgconstraint = constraint_oid AND g.tgenabled <> 'O')
      THEN 'the trigger behind it is not in its usual state'
    WHEN EXISTS (SELECT FROM pg_seclabel l WHERE l.objoid IN (indexrelid, constraint_oid))
      THEN 'it has a security label' END,
  'bytes', pg_relation_size(indexrelid),
  'drop', CASE WHEN conname IS NULL THEN format('DROP INDEX %s', index_name)
    ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', table_name, conname) END,
  'build', CASE WHEN by_constraint THEN ARRAY[]::text[] ELSE ARRAY[place, definition] END,
  'attach', array_remove(ARRAY[
    CASE WHEN by_constraint THEN place END,
    CASE WHEN by_constraint THEN
      format('ALTER TABLE %s ADD CONSTRAINT %I %s', table_name, conname, constraint_definition)
    WHEN conname IS NOT NULL THEN
      format('ALTER TABLE %s ADD CONSTRAINT %I %s USING INDEX %I%s%s', table_name, conname,
        CASE contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'UNIQUE' END, relname,
        CASE WHEN condeferrable THEN ' DEFERRABLE' END,
        CASE WHEN condeferred THEN ' INITIALLY DEFERRED' END) END,
    CASE WHEN indisreplident THEN
      format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', table_name, relname) END,
    CASE WHEN indisclustered THEN format('ALTER TABLE %s CLUSTER ON %I', table_name, relname) END,
    CASE WHEN index_comment IS NOT NULL THEN
      format('COMMENT ON INDEX %s IS %L', index_name, index_comment) END,
    CASE WHEN constraint_comment IS NOT NULL THEN
      format('COMMENT ON CONSTRAINT %I ON %s IS %L', conname, table_name, constraint_comment) END
    ] || ARRAY(SELECT format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', index_name,
        split_part(target, ':', 1), split_part(target, ':', 2)) FROM unnest(targets) AS target),
    NULL),
  'columns', columns,
  'attnums', indkey::int2[],
  'state', jsonb_build_object(
    'definition', definition, 'constraint', constraint_definition, 'constraint_name', conname,
    'type', contype, 'deferrable', condeferrable, 'deferred', condeferred,
    'options', reloptions, 'tablespace', spcname, 'valid', indisvalid AND indisready,
    'immediate', indimmediate, 'clustered', indisclustered,
    'replica_identity', CASE WHEN indisreplident THEN relreplident END,
    'comment', index_comment, 'constraint_comment', constraint_comment,
    'targets', targets, 'columns', columns)
) FROM j ORDER BY indexrelid
