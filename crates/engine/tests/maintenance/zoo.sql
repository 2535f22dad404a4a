-- One of everything that can stand around a table, each with every mark that
-- it can bear.
CREATE SCHEMA "Odd Schema";
SET search_path = "Odd Schema", public;
CREATE FUNCTION shout(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN upper($1);
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN INSERT INTO "Odd Schema".fired VALUES (TG_NAME); RETURN NEW; END$$;
CREATE TABLE fired (name text);
CREATE TABLE parent (id int PRIMARY KEY, k text, UNIQUE (id, k));
INSERT INTO parent SELECT i, 'k' || i FROM generate_series(0, 999) AS i;

CREATE TABLE "My Table" (
  "Id" int, b text, c int, d text COLLATE "C", r int4range, tags text[], ts timestamptz, p int,
  CONSTRAINT "Pk '1" PRIMARY KEY ("Id") INCLUDE (c) WITH (fillfactor = 70),
  CONSTRAINT uq_deferred UNIQUE (c) DEFERRABLE INITIALLY DEFERRED,
  CONSTRAINT uq_deferrable UNIQUE (c, "Id") DEFERRABLE,
  CONSTRAINT uq_nulls UNIQUE NULLS NOT DISTINCT (b, c),
  CONSTRAINT apart EXCLUDE USING gist (r WITH &&) WITH (fillfactor = 60) WHERE (c > 0) DEFERRABLE,
  CONSTRAINT fk_plain FOREIGN KEY (p) REFERENCES parent ON DELETE CASCADE
    DEFERRABLE INITIALLY DEFERRED,
  CONSTRAINT fk_full FOREIGN KEY (p, b) REFERENCES parent (id, k) MATCH FULL
    ON UPDATE SET NULL ON DELETE SET DEFAULT,
  CHECK (c >= -1)
);
ALTER TABLE "My Table" ADD CONSTRAINT fk_not_valid FOREIGN KEY (p) REFERENCES parent NOT VALID;
CREATE INDEX of_expression ON "My Table" (shout(b), (c + 1) DESC NULLS LAST, (c + 2))
  INCLUDE (d) WITH (fillfactor = 80) WHERE d IS NOT NULL;
ALTER INDEX of_expression ALTER COLUMN 2 SET STATISTICS 777;
ALTER INDEX of_expression ALTER COLUMN 1 SET STATISTICS 0;
ALTER TABLE of_expression RENAME COLUMN expr TO expr2;
ALTER TABLE of_expression RENAME COLUMN expr1 TO expr;
CREATE UNIQUE INDEX for_identity ON "My Table" ("Id" DESC);
ALTER TABLE "My Table" REPLICA IDENTITY USING INDEX for_identity;
CREATE INDEX clustered ON "My Table" (d text_pattern_ops, ts);
ALTER TABLE "My Table" CLUSTER ON clustered;
CREATE INDEX "gin 'it" ON "My Table" USING gin (tags) WITH (fastupdate = off);
CREATE INDEX by_hash ON "My Table" USING hash (b);
CREATE INDEX by_brin ON "My Table" USING brin (ts timestamptz_minmax_multi_ops (values_per_range = 16))
  WITH (pages_per_range = 8, autosummarize = on);
CREATE INDEX plain_c ON "My Table" (c);
CREATE INDEX plain_ts ON "My Table" (ts DESC, p);
COMMENT ON INDEX plain_c IS 'plain';
COMMENT ON INDEX of_expression IS 'it''s an \ index';
COMMENT ON CONSTRAINT "Pk '1" ON "My Table" IS 'the key';
COMMENT ON INDEX "Pk '1" IS 'the key''s index';
COMMENT ON CONSTRAINT apart ON "My Table" IS 'no overlap';
COMMENT ON CONSTRAINT fk_plain ON "My Table" IS 'fk''s';
ALTER TABLE "My Table" RENAME COLUMN ts TO at;

CREATE TRIGGER origin BEFORE INSERT ON "My Table" FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER "Replica T" AFTER INSERT ON "My Table" FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER always AFTER INSERT ON "My Table" FOR EACH ROW EXECUTE FUNCTION fire();
CREATE TRIGGER never AFTER INSERT ON "My Table" FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE "My Table" ENABLE ALWAYS TRIGGER always;
ALTER TABLE "My Table" ENABLE REPLICA TRIGGER "Replica T";
ALTER TABLE "My Table" DISABLE TRIGGER never;
RESET search_path;
