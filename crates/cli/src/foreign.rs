//! The names that other tools use, and the names to write here instead.
//!
//! The text is the hint of the usage error and the row in `docs/guide/coming-from.md`. A name is
//! made an alias (`connection.rs`) only if it has exactly the same meaning.

/// A tool, with the names that its users know and a hint for each.
pub type Tool = (&'static str, &'static [(&'static str, &'static str)]);

const FILES: &str = "files are arguments without an option: pgsluice load FILE --table NAME";
const FIRST_LINES: &str =
    "--header=ignore passes over one line, --skip-lines N over N; --header reads column names";
const ONE_TRANSACTION: &str =
    "leave it out: a load is one transaction unless its options say otherwise";
const LANES: &str = "--method lanes --lanes N loads over N connections";
const PASSWORD: &str =
    "passwords come from PGPASSWORD or ~/.pgpass; the program never asks for one";
const DELIMITER: &str = "--delimiter CHAR; pgsluice sniff FILE detects it";
const DETECT: &str = "--dialect auto; pgsluice sniff FILE shows what is detected";
const NULL: &str = "--null TEXT, or --null COLUMN=TEXT for one column";
const DATES: &str =
    "--date-style STYLE, or --expr \"COLUMN=to_date(?, 'DD.MM.YYYY')\" for other forms";
// to_timestamp would move a time that the session's zone skips.
const TIMES: &str = "--date-style STYLE, or --expr \
    \"COLUMN=to_date(?, 'DD.MM.YYYY') + split_part(?, ' ', 2)::time\" for other forms";
const NUMBERS: &str = "--expr \"COLUMN=replace(replace(?, '.', ''), ',', '.')::numeric\"";
const GROUPS: &str = "for 1,234.50: --expr \"COLUMN=replace(?, ',', '')::numeric\"; \
    for 1.234,50: --expr \"COLUMN=replace(replace(?, '.', ''), ',', '.')::numeric\"";
const TRIM: &str = "--expr \"COLUMN=btrim(?)\"";
const LOG: &str =
    "messages go to standard error: 2>FILE, with --log-format text or --log-format json";
const BAD: &str = "--on-error reject puts bad records into --reject-file and loads the others";
const DUPLICATES: &str =
    "--on-error reject puts rows whose key exists into the reject file and loads the others";
const UPSERT: &str = "load into a staging table, then INSERT … SELECT … ON CONFLICT from it";
const TYPES: &str =
    "the table has the types; --create makes a table with types inferred from the input";
const NAMES: &str = "--columns A,B,… names the columns of the fields, in the file's order";
const OUTPUT: &str =
    "the target is --table NAME, the summary --summary FILE; convert and sample have --out FILE";
const TABLE: &str = "--table SCHEMA.TABLE";
const PLAN: &str = "--dry-run, or pgsluice plan with the same arguments";
const LINE_ENDS: &str = "leave it out: the line ends are detected";
const COMPRESSION: &str = "leave it out: gzip, zstd, lz4, bzip2 and xz are detected";
const NO_SQL: &str = "pgsluice runs no SQL of the user; psql does, before or after the load";
const VERBOSE: &str = "--verbose";
const LIMIT: &str = "--on-error reject --reject-limit N, or P% of the records";
const SSL: &str = "sslmode in --to or PGSSLMODE, as for psql";
const BATCHES: &str =
    "--once --commit-every SIZE commits in pieces; without it a load is one transaction";
const WIDE: &str = "leave it out: a record may have up to 1 GB";

/// The tools, in the order of the guide.
pub const TOOLS: &[Tool] = &[
    (
        "psql, COPY, pg_dump and pg_restore",
        &[
            ("--user", "--username USER or -U USER"),
            ("--password", PASSWORD),
            ("-W", PASSWORD),
            ("--no-password", PASSWORD),
            ("-w", PASSWORD),
            ("--command", NO_SQL),
            ("-c", NO_SQL),
            ("--file", FILES),
            ("-f", FILES),
            ("--csv", "leave it out: --format csv is the default"),
            ("--field-separator", DELIMITER),
            ("-F", DELIMITER),
            ("--single-transaction", ONE_TRANSACTION),
            ("-1", ONE_TRANSACTION),
            ("--no-psqlrc", "leave it out: no start-up file is read"),
            ("-X", "leave it out: no start-up file is read"),
            ("--output", OUTPUT),
            ("-o", OUTPUT),
            ("--schema", TABLE),
            ("-n", TABLE),
            ("--data-only", "leave it out: a load changes no definition unless --create is given"),
            ("--disable-triggers", "--triggers off"),
            ("--jobs", LANES),
            ("-j", LANES),
            ("--freeze", "leave it out: with --truncate or --create, rows are written frozen where the server allows it, unless its extension loads them"),
            ("--force-quote", "leave it out: it is an option of COPY TO"),
            ("--log-verbosity", VERBOSE),
            ("--analyze", "leave it out: the table is analyzed unless --no-analyze is given"),
            ("--sslmode", SSL),
        ],
    ),
    (
        "pgloader",
        &[
            ("--with", "each of pgloader's WITH options has an option here, such as --header or --truncate"),
            ("--type", "--format csv, --format text or --format binary"),
            ("--field", NAMES),
            ("--fields", NAMES),
            ("--cast", "--expr COLUMN=SQL computes a value from the text of its field"),
            ("--trim-unquoted-blanks", TRIM),
            ("--before", NO_SQL),
            ("--after", NO_SQL),
            ("--on-error-stop", "leave it out: --on-error stop is the default"),
            ("--logfile", LOG),
            ("--log-min-messages", "--quiet or --verbose"),
            ("--client-min-messages", "--quiet or --verbose"),
            ("--debug", VERBOSE),
            ("--root-dir", "--reject-file FILE says where rejects go"),
            ("--list-encodings", "the encodings are the server's; its documentation lists them"),
            ("--no-ssl-cert-verification", SSL),
            ("--skip-header", FIRST_LINES),
            ("--csv-header", "--header"),
            ("--fields-terminated-by", DELIMITER),
            ("--fields-enclosed-by", "--quote CHAR"),
            ("--fields-optionally-enclosed-by", "--quote CHAR"),
            ("--fields-escaped-by", "--escape CHAR"),
            ("--lines-terminated-by", LINE_ENDS),
            ("--null-if", NULL),
            ("--drop-indexes", "--indexes rebuild"),
            ("--batch-rows", BATCHES),
            ("--prefetch-rows", "leave it out: the memory of a load is limited"),
            ("--concurrency", LANES),
        ],
    ),
    (
        "timescaledb-parallel-copy",
        &[
            ("--connection", "--to URL"),
            ("--db-name", "--dbname NAME or -d NAME"),
            ("--copy-options", "each option of COPY has an option here, such as --null or --force-null"),
            ("--split", DELIMITER),
            ("--column-mapping", "--map NAME=COLUMN with --header, or --columns A,-,B,… by position"),
            ("--auto-column-mapping", "--header, which takes the columns from the first line"),
            ("--header-line-count", FIRST_LINES),
            ("--skip-batch-errors", BAD),
            ("--import-id", "--once records what is loaded by its content; for a stream, with --source-name NAME"),
            ("--workers", LANES),
            ("--batch-size", BATCHES),
            ("--batch-byte-size", BATCHES),
            ("--buffer-byte-size", WIDE),
            ("--log-batches", VERBOSE),
            ("--reporting-period", "leave it out: progress is reported by itself"),
            ("--on-conflict-do-nothing", DUPLICATES),
        ],
    ),
    (
        "DuckDB",
        &[
            ("--sep", DELIMITER),
            ("--delim", DELIMITER),
            ("--nullstr", NULL),
            ("--auto-detect", DETECT),
            ("--allow-quoted-nulls", "--force-null '*'"),
            ("--auto-type-candidates", TYPES),
            ("--sample-size", "leave it out: --create reads the beginning, and the whole input for columns without a value there"),
            ("--all-varchar", "create the table with columns of type text, then load without --create"),
            ("--names", NAMES),
            ("--types", TYPES),
            ("--dtypes", TYPES),
            ("--dateformat", DATES),
            ("--timestampformat", TIMES),
            ("--decimal-separator", NUMBERS),
            ("--thousands", GROUPS),
            ("--filename", "--set 'COLUMN={file}'"),
            ("--ignore-errors", BAD),
            ("--store-rejects", BAD),
            ("--rejects-table", "rejects go to files: --on-error reject --reject-file FILE"),
            ("--rejects-limit", LIMIT),
            ("--parallel", LANES),
            ("--new-line", LINE_ENDS),
            ("--max-line-size", WIDE),
            ("--maximum-line-size", WIDE),
            ("--compression", COMPRESSION),
            ("--preserve-insertion-order", "leave it out: the order is kept unless --method lanes is given"),
        ],
    ),
    (
        "pg_bulkload",
        &[
            ("--input", FILES),
            ("--infile", FILES),
            ("-i", FILES),
            ("-O", "--table NAME"),
            ("-l", LOG),
            ("--parse-badfile", "--on-error reject --reject-file FILE"),
            ("-P", "--on-error reject --reject-file FILE"),
            ("--duplicate-badfile", "--on-error reject --reject-file FILE"),
            ("-u", "--on-error reject --reject-file FILE"),
            ("--parse-errors", LIMIT),
            ("--duplicate-errors", LIMIT),
            ("--on-duplicate-keep", DUPLICATES),
            ("--option", "each key of the control file has an option here, such as --skip or --truncate"),
            ("--writer", "--method NAME"),
            ("--loader", "--method NAME"),
            ("--multi-process", LANES),
            ("--check-constraints", "leave it out: the server checks all constraints"),
            ("--filter", "--where SQL"),
            ("--offset", "--skip N"),
            ("--load", "--limit N"),
            ("--echo", VERBOSE),
            ("--elevel", "--quiet or --verbose"),
            ("--recovery", "pgsluice repair"),
            ("-r", "pgsluice repair"),
        ],
    ),
    (
        "Other names",
        &[
            ("--separator", DELIMITER),
            ("--sniff", DETECT),
            ("--trim", TRIM),
            ("--skip-comments", "--comment CHAR"),
            ("--rename", "--map NAME=COLUMN with --header"),
            ("--constant", "--set COLUMN=TEXT"),
            ("--transform", "--expr COLUMN=SQL"),
            ("--tsv", "--format text for COPY's format, or --delimiter '\\t' for CSV with tabs"),
            ("--upsert", UPSERT),
            ("--merge", UPSERT),
            ("--on-conflict", UPSERT),
            ("--replace", "--truncate empties the table first; rows with the same key are not replaced"),
            ("--overwrite", "--truncate"),
            ("--append", "leave it out: rows are added to the table unless --truncate is given"),
            ("--if-exists", "--create makes a new table; --truncate empties an existing one"),
            ("--threads", LANES),
            ("--max-errors", LIMIT),
            ("--error-file", "--on-error reject --reject-file FILE"),
            ("--bad-file", "--on-error reject --reject-file FILE"),
            ("--continue-on-error", BAD),
            ("--gzip", COMPRESSION),
            ("--charset", "--encoding NAME"),
            ("--progress", "leave it out: progress is reported unless --quiet is given"),
            ("--no-progress", "--quiet, or 2>FILE"),
            ("--timeout", "--lock-timeout TIME for locks; connect_timeout in --to for connections"),
            ("--connect-timeout", "connect_timeout=SECONDS in --to, or PGCONNECT_TIMEOUT"),
            ("--explain", PLAN),
            ("--validate", "pgsluice check with the same arguments"),
        ],
    ),
];

/// First words that are not commands here, each with the right command.
pub const COMMANDS: &[(&str, &str)] = &[
    ("import", "load"),
    ("copy", "load"),
    ("ingest", "load"),
    ("insert", "load"),
    ("upload", "load"),
    ("dry-run", "plan"),
    ("explain", "plan"),
    ("detect", "sniff"),
    ("guess", "sniff"),
    ("infer", "sniff"),
    ("validate", "check"),
    ("verify", "check"),
    ("recover", "repair"),
    ("restore", "repair"),
    ("generate", "sample"),
    ("to-binary", "convert"),
];

/// Values that options do not accept: the option, the value, the hint.
pub const VALUES: &[(&str, &str, &str)] = &[
    (
        "--format",
        "tsv",
        "--format csv --delimiter '\\t', or --format text for COPY's own text format",
    ),
    ("--format", "auto", DETECT),
    ("--on-error", "ignore", BAD),
    ("--on-error", "skip", BAD),
    ("--on-error", "continue", BAD),
    ("--on-error", "resume-next", BAD),
    ("--method", "copy", "leave it out: --method auto loads by COPY"),
];
