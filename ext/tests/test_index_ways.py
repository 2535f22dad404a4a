"""What `pgsluice.last_copy` says of each index, and `pgsluice.index_ways` before."""

import json
import unittest

from .cluster import OnCluster

TABLE = (
    "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c int, r int4range);"
    "CREATE INDEX t_b ON t (b); CREATE INDEX t_c ON t (c) WHERE c > 0; CREATE INDEX t_hash ON t USING hash (b);"
    "CREATE INDEX t_upper ON t (upper(b)); ALTER TABLE t ADD CONSTRAINT t_later UNIQUE (c) DEFERRABLE;"
    "ALTER TABLE t ADD CONSTRAINT t_apart EXCLUDE USING gist (r WITH &&);"
)
HASH, PARTIAL, UPPER = "the access method is not btree", "it is partial", "it is of expressions"
LATER, APART = "its constraint is deferrable", "it is an exclusion constraint's"
ELSE = {"t_c": ("row", PARTIAL), "t_hash": ("row", HASH), "t_upper": ("row", UPPER), "t_later": ("row", LATER),
        "t_apart": ("row", APART)}
LIVE = {"t_pkey": ("leaves", None), "t_b": ("sorted", "only entries behind all others are put into leaves"), **ELSE}
PRIVATE = {"t_pkey": ("build", None), "t_b": ("build", None), **ELSE}


def lines(count, first=1):
    """CSV whose keys ascend."""
    return "".join(f"{n},x{n % 7},{n},\n" for n in range(first, first + count))


class Ways(OnCluster):
    """Tables with an index of each kind."""

    def ways(self, is_private, table="t"):
        """What the rule says of the table: by index, the way and why not a faster one."""
        said = self.sql(f"SELECT json_agg(w) FROM pgsluice.index_ways('{table}', {is_private}) w")
        return {way["index"]: (way["way"], way["because"]) for way in json.loads(said)}

    def taken(self, text, before="", after="", options="", table="t"):
        """What a COPY says it did: by index, the rows by way, and why not faster."""
        path = self.cluster.file("input", text.encode())
        said = self.sql(f"SET pgsluice.copy = on; {before} COPY {table} FROM '{path}' WITH (FORMAT csv{options});"
                        f"{after} SELECT indexes FROM pgsluice.last_copy")
        indexes = json.loads(said)
        for index in indexes:
            self.assertEqual(set(index), {"index", "way", "rows", "because"})
        return {index["index"]: index for index in indexes}

    def test_the_rule_is_what_is_done(self):
        """Live and private: the ways that are planned are those that are taken, by the rows that go so."""
        self.sql(TABLE)
        self.assertEqual(self.ways(False), LIVE)
        self.assertEqual(self.ways(True), PRIVATE)
        for before, after, planned in (("", "", LIVE), ("BEGIN; TRUNCATE t;", "COMMIT;", PRIVATE)):
            taken = self.taken(lines(60000), before, after)
            self.assertEqual({name: index["way"] for name, index in taken.items()},
                             {name: way for name, (way, _) in planned.items()})
            for name, index in taken.items():
                self.assertEqual(sum(index["rows"].values()), 60000, name)
                way, because = planned[name]
                self.assertEqual(index["because"] if way != "leaves" else None, because)
                if way not in ("leaves", "sorted"):
                    self.assertEqual((index["rows"], index["because"]), ({way: 60000}, because))
            self.sql("TRUNCATE t")
        taken = self.taken(lines(60000))
        self.assertGreater(taken["t_pkey"]["rows"]["leaves"], 58000)
        # All come behind what an empty index has; then those of the last key alone.
        self.assertGreater(taken["t_b"]["rows"]["leaves"], 58000)
        taken = self.taken(lines(60000, 60001))["t_b"]["rows"]
        self.assertEqual(sum(taken.values()), 60000)
        self.assertTrue(8000 < taken["leaves"] < 8600 and taken["sorted"] > 51000, taken)

    def test_the_data_may_want_another_way(self):
        """Keys that are not above the index's, that are equal or NULL, and too few rows: said with how many."""
        self.sql(TABLE)
        self.sql("CREATE UNIQUE INDEX t_bc ON t (b, c)")
        self.taken(lines(5000, 100000))
        low = self.taken(lines(5000))["t_pkey"]
        self.assertEqual((low["rows"], low["because"]), ({"row": 5000}, "some rows' keys are not above the index's"))
        nulls = self.taken("".join(f"{n},,,\n" for n in range(200000, 203000)))
        self.assertEqual(nulls["t_bc"]["because"], "some rows' keys are NULL or long")
        self.assertEqual(nulls["t_bc"]["rows"], {"row": 3000})
        for count, before, why in ((400, "", "the load is small"), (400, "BEGIN; TRUNCATE t;", "the table is small")):
            few = self.taken(lines(count, 300000), before, "ROLLBACK;" if before else "")
            self.assertEqual({(index["way"], index["because"]) for index in few.values()}, {("row", why)})
            self.assertEqual({str(index["rows"]) for index in few.values()}, {str({"row": count})})

    def test_loads_and_tables_of_other_kinds(self):
        """Rejects and duplicates, partitions, stock COPY, no index at all, a COPY that failed."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c int, r int4range)")
        skipped = self.taken(lines(3000), options=", on_duplicate 'skip'")
        self.assertEqual(skipped["t_pkey"]["because"], "rows may be rejected, or be duplicates")
        self.assertEqual(skipped["t_pkey"]["rows"], {"row": 3000})
        self.sql("DROP TABLE IF EXISTS p, bare; CREATE TABLE bare (a int, b text, c int, r int4range);"
                 "CREATE TABLE p (LIKE bare) PARTITION BY RANGE (a); CREATE UNIQUE INDEX p_a ON p (a);"
                 "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1500); CREATE TABLE p2 PARTITION OF p DEFAULT")
        self.assertEqual(self.ways(False, "p"), {"p_a": ("leaves", None)})
        self.assertEqual(self.taken(lines(900), table="p"),
                         {"p_a": {"index": "p_a", "way": "row", "rows": {"row": 900}, "because": "no partition got many rows"}})
        self.assertGreater(self.taken(lines(3000, 901), table="p")["p_a"]["rows"]["leaves"], 2000)
        self.assertEqual(self.taken(lines(3000), table="bare"), {})
        self.assertEqual(self.sql("SELECT count(*) FROM pgsluice.index_ways('bare', false)"), "0")
        path = self.cluster.file("input", lines(3000, 10000).encode())
        self.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';"
                 "CREATE TRIGGER no BEFORE INSERT ON bare FOR EACH ROW EXECUTE FUNCTION no()")
        said = self.sql(f"SET pgsluice.copy = on; COPY p FROM '{path}' WITH (FORMAT csv); COPY bare FROM '{path}' WITH (FORMAT csv);"
                        "SELECT route, indexes IS NULL FROM pgsluice.last_copy")
        self.assertEqual(said, "stock|t")
        said, errors = self.cluster.session(
            f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv); COPY t FROM '{path}' WITH (FORMAT csv);"
            "SELECT indexes FROM pgsluice.last_copy")
        self.assertIn("23505", errors)
        self.assertEqual(said, "")


if __name__ == "__main__":
    unittest.main()
