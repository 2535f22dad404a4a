"""The privileges of COPY and no more; limits on the length of a record."""

import os
import unittest

from .cluster import OnCluster, Refused
from .differential import _LOCATION, _PLACE

SOAK = "PGSLUICE_SOAK" in os.environ


class Security(OnCluster):
    """What a role may not do by stock COPY, it may not do by the extension."""

    prepared = "CREATE ROLE plain LOGIN; CREATE TABLE t (a int, b text); CREATE TABLE s (a int)"

    def refusal(self, sql, user="plain", stdin=None):
        """The server's error, or None."""
        try:
            self.cluster.sql(sql, user=user, stdin=stdin)
            return None
        except Refused as refused:
            return _PLACE.sub("", _LOCATION.sub("", str(refused)))

    def same(self, copy, grants=""):
        """Asserts equal errors, or none, for a role with these privileges."""
        self.cluster.sql(f"DROP OWNED BY plain; {grants}")
        stock, ours = (self.refusal(f"SET pgsluice.copy = {setting}; {copy}") for setting in ("off", "on"))
        self.assertEqual(stock, ours, copy)
        return ours

    def test_rights(self):
        """For privileges on the table, columns, WHERE, files and programs, errors are stock COPY's."""
        path = self.cluster.file("rows", b"1,x\n")
        files = "GRANT pg_read_server_files TO plain;"
        programs = "GRANT pg_execute_server_program TO plain;"
        for copy, grants, refused in (
            (f"COPY t FROM '{path}' WITH (FORMAT csv)", "GRANT INSERT ON t TO plain", True),
            (f"COPY t FROM '{path}' WITH (FORMAT csv)", files, True),
            (f"COPY t FROM '{path}' WITH (FORMAT csv)", files + "GRANT INSERT ON t TO plain", False),
            (f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv)", files + "GRANT INSERT (a) ON t TO plain", True),
            (f"COPY t FROM '{path}' WITH (FORMAT csv) WHERE a > 0", files + "GRANT INSERT ON t TO plain", None),
            (f"COPY t FROM PROGRAM 'cat {path}' WITH (FORMAT csv)", files + "GRANT INSERT ON t TO plain", None),
            (f"COPY t FROM PROGRAM 'cat {path}' WITH (FORMAT csv)", programs + "GRANT INSERT ON t TO plain", False),
        ):
            self.cluster.sql("REVOKE pg_read_server_files, pg_execute_server_program FROM plain")
            found = self.same(copy, grants)
            if refused is not None:
                self.assertEqual(found is not None, refused, f"{copy} with {grants}: {found}")
        self.cluster.sql("REVOKE pg_read_server_files, pg_execute_server_program FROM plain")

    def test_row_security(self):
        """Row-level security is an error, as it is for stock COPY."""
        self.cluster.sql("ALTER TABLE s ENABLE ROW LEVEL SECURITY")
        self.assertIn("row-level security", self.same("COPY s FROM '/dev/null'", "GRANT INSERT ON s TO plain; GRANT pg_read_server_files TO plain"))
        self.cluster.sql("REVOKE pg_read_server_files FROM plain")

    def test_definers(self):
        """Within a SECURITY DEFINER function, the owner's privileges count: for the file, the table and the reject table."""
        path = self.cluster.file("rows", b"1,x\ny,z\n")
        body = "LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN COPY {} FROM '%s' WITH (FORMAT csv{}); END $$;" % path
        self.cluster.sql("SET client_min_messages = error; CREATE SCHEMA hidden; CREATE TABLE hidden.x (a int, b text); CREATE TABLE hidden.bad (LIKE pgsluice.reject);"
                         f"CREATE FUNCTION up() RETURNS void {body.format('hidden.x', ', rejects_to $r$hidden.bad$r$')}"
                         f"CREATE FUNCTION down() RETURNS void {body.format('t', '')} ALTER FUNCTION down() OWNER TO plain; GRANT INSERT ON t TO plain")
        self.cluster.sql("SET client_min_messages = error; SELECT up()", user="plain")
        self.assertEqual(self.cluster.sql("SELECT * FROM hidden.x; SELECT line, record FROM hidden.bad"), "1|x\n2|y,z")
        self.assertIn("42501: permission denied for schema hidden", self.refusal("COPY hidden.x FROM STDIN WITH (rejects_to 'hidden.bad')"))
        stock, ours = (self.refusal(f"SET pgsluice.copy = {setting}; SELECT down()", "postgres") for setting in ("off", "on"))
        self.assertEqual(stock, ours)
        self.assertIn("42501", ours)

    def test_functions(self):
        """No function of the extension takes a path or a page; the only one with arguments takes a table. pgsluice.inside() cannot be called by hand."""
        self.assertEqual(
            self.cluster.sql("SELECT proname, proargtypes::regtype[] FROM pg_proc WHERE pronamespace = 'pgsluice'::regnamespace AND pronargs > 0"),
            "index_ways|[0:1]={regclass,boolean}")
        self.assertIsNotNone(self.refusal("SELECT pgsluice.inside()"))

    def test_objects_of_another_version(self):
        """Functions that are declared with other columns than the library returns are an error."""
        for number, (args, symbol) in enumerate((("", "last_copy"), ("", "last_index_build"), ("regclass, boolean, ", "index_ways"))):
            self.cluster.sql(f"CREATE FUNCTION other{number}({args}OUT a int, OUT b int) RETURNS SETOF record LANGUAGE C AS '$libdir/pgsluice', 'pgsluice_{symbol}'")
            called = f"other{number}({repr('t') + ', true' if args else ''})"
            self.assertIn("55000: the extension's objects and its library have different versions", self.refusal(f"SELECT * FROM {called}"))

    def test_wide_field(self):
        """A field of the greatest length loads as by stock COPY, with at most 32 MB more memory; a longer one is its error (soak only), with rejects_to, too."""
        wide = (300 if SOAK else 20) << 20
        script = self.cluster.file("wide.sh", b"printf 1,; head -c $1 /dev/zero | tr '\\0' x; echo\n")
        peaks = []
        for setting, route in (("off", ""), ("on", "insert")):
            said = self.cluster.sql(
                f"SET pgsluice.copy = {setting}; TRUNCATE t; COPY t FROM PROGRAM 'sh {script} {wide}' WITH (FORMAT csv);"
                "SELECT route FROM pgsluice.last_copy; SELECT a, length(b) FROM t;"
                "SELECT substring(pg_read_file('/proc/self/status') FROM 'VmHWM:\\s+(\\d+)')").split("\n")
            self.assertEqual(said[:-1], [line for line in (route, f"1|{wide}") if line])
            peaks.append(int(said[-1]) << 10)
        self.assertLess(peaks[1], peaks[0] + (32 << 20), "memory, over stock COPY's")
        if not SOAK:
            return
        self.cluster.sql("DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject)")
        endless = f"COPY t FROM PROGRAM 'sh {script} {1 << 31}' WITH (FORMAT csv"
        stock, ours = (self.refusal(f"SET pgsluice.copy = {setting}; {endless})", "postgres") for setting in ("off", "on"))
        self.assertIn("54000", ours)
        self.assertEqual(stock, ours)
        self.assertIn("54000", self.refusal(f"{endless}, rejects_to 'bad')", "postgres"))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1\n0")


if __name__ == "__main__":
    unittest.main()
