//! Facts about the server, the table and the load: plain values, from which a plan is made.

use crate::causes::Causes;
use crate::infer::InferredColumns;
use crate::input::HeaderLine;
use crate::plan::policy::Choice;
use crate::text::Text;
use pgsluice_core::shape::{DateOrder, Env, Type};

mod nodes;
mod objects;
mod partitions;

pub use nodes::{Address, Node, Nodes, RemoteColumn, RemoteLeaf};
pub use objects::{ForeignKey, Index, Relation, Steps, TableObjects, Trigger};
pub use partitions::{KeyColumn, Partition, PartitionKey};

/// All facts that a plan is made from, in addition to the options.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// about the input
    pub input: InputFacts,
    /// about the server and the session
    pub server: ServerFacts,
    /// about the table
    pub table: TableFacts,
    /// the statement that creates the table, if the load creates it
    pub new: Option<NewTable>,
    /// what only advice needs
    pub advice: AdviceFacts,
    /// the objects that maintenance may drop; `None` if the plan is not for a load
    pub objects: Option<TableObjects>,
    /// the table and its partitions, if rows may be sent directly to them
    pub partitions: Vec<Partition>,
    /// the servers that hold the partitions, if rows are to be sent directly to them
    pub nodes: Option<Nodes>,
    /// whether dropped objects can be recorded
    pub ledger: LedgerState,
    /// what earlier loads left, in words
    pub left: Vec<String>,
    /// objects that an earlier load did not recreate, and that this one recreates first
    pub down: Vec<Choice>,
    /// likely causes of errors, from a sample
    pub causes: Causes,
    /// number of CPU cores of this machine
    pub cores: usize,
    /// what the plan is for
    pub purpose: Purpose,
}

/// The purpose of a plan.
#[derive(Clone, Debug, Default)]
pub enum Purpose {
    /// to load
    #[default]
    Load,
    /// to check values: rows are discarded after each chunk
    Check {
        /// the columns of the table that a load would create, if it may load records that were not
        /// examined for types
        inferred: Option<InferredColumns>,
    },
    /// to convert a file: nothing is sent
    Convert,
}

/// Facts about the input.
#[derive(Clone, Debug, Default)]
pub struct InputFacts {
    /// the first file's name, for messages
    pub name: String,
    /// the header line, if one was requested
    pub header: Option<HeaderLine>,
    /// the columns of the fields, if `--create` has created them
    pub names: Option<Vec<Option<String>>>,
    /// size of all files on disk in bytes; 0 if it is not known
    pub bytes: u64,
    /// the files can be read a second time
    pub again: bool,
    /// the first file is compressed; with headers, the first file that is not empty
    pub compressed: bool,
    /// records, estimated from a decompressed sample
    pub records: Option<u64>,
    /// notes for the user about how the files are read
    pub notes: Vec<String>,
}

/// Facts about the server and the session.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// 150020 for 15.20
    pub version: u32,
    /// `server_encoding`
    pub encoding: String,
    /// `wal_level`
    pub wal_level: String,
    /// `max_wal_size` in bytes
    pub max_wal_size: u64,
    /// `shared_buffers` in bytes
    pub shared_buffers: u64,
    /// `checkpoint_timeout` in seconds
    pub checkpoint_timeout: u64,
    /// `wal_compression` is not off
    pub wal_compression: bool,
    /// `max_connections`
    pub max_connections: u32,
    /// `max_prepared_transactions`
    pub max_prepared_transactions: u32,
    /// names of the replication slots, active or not
    pub slots: Vec<String>,
    /// `DateStyle`
    pub date_style: String,
    /// `TimeZone`
    pub time_zone: String,
    /// `timezone_abbreviations`
    pub abbreviations: String,
    /// `IntervalStyle`
    pub interval_style: String,
    /// `lc_monetary`
    pub lc_monetary: String,
    /// `array_nulls`
    pub array_nulls: bool,
    /// the process ID of this session
    pub process: u32,
    /// the version of the extension `pgsluice` in this database, if the role may use it
    pub extension: Option<String>,
    /// why the extension cannot be used, if it is installed but not usable
    pub extension_fault: Option<String>,
    /// the role may create schemas in this database
    pub can_create_schema: bool,
    /// transactions are read-only by default, not only for the role, the database or the session
    pub read_only: bool,
}

impl ServerFacts {
    /// 15 for 15.20.
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// How the session's settings affect the reading of values.
    pub fn env(&self) -> Env {
        let order = match self.date_style.rsplit(", ").next() {
            Some("DMY") => DateOrder::Dmy,
            Some("YMD") => DateOrder::Ymd,
            _ => DateOrder::Mdy,
        };
        let utc = ["UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Universal"];
        Env {
            utc: utc.contains(&self.time_zone.as_str()),
            date_order: order,
            // C.UTF-8 has the monetary formats of C (glibc's localedata/locales/C).
            money_c: ["C", "POSIX", "C.UTF-8", "C.utf8"].contains(&self.lc_monetary.as_str()),
            // The connection uses UTF-8. For all other encodings, the server converts the text of
            // binary COPY character by character.
            single_byte: self.encoding == "EUC_JIS_2004",
        }
    }

    /// Whether `UTC`, `Z`, `T` and `BC` have their usual meaning in dates. A zone that is a rule
    /// (`UTC+5`) defines abbreviations, and since PostgreSQL 18 the server looks them up first.
    pub fn plain_dates(&self) -> bool {
        let is_rule = self.time_zone.contains(|c: char| c.is_ascii_digit() || c == '<');
        !is_rule && self.abbreviations == "Default"
    }
}

/// Facts about one column.
#[derive(Clone, Debug)]
pub struct ColumnFacts {
    /// `attnum`
    pub number: i32,
    /// `attname`
    pub name: String,
    /// the type in SQL, including modifiers; whether its schema is named depends on the search path
    pub type_name: String,
    /// `atttypid` and `atttypmod`
    pub type_id: (u32, i32),
    /// the same without modifiers; for a domain, that of its base type
    pub plain_type: String,
    /// its base type and modifier, for a domain those of the type below
    pub base: (u32, i32),
    /// the base type in SQL, including modifiers
    pub base_name: String,
    /// the SQL that reads a text `$` as COPY does, if a cast would read another value from it
    pub reader: Option<String>,
    /// users have created a cast from text to its base type, and none from varchar, which therefore
    /// calls the input function
    pub cast_by_user: bool,
    /// the type as the core reads it
    pub ty: Type,
    /// the column or a domain forbids NULL
    pub not_null: bool,
    /// the expression of its default, or of the default of its type
    pub default: Option<String>,
    /// the default must be computed for each row, and is more than a `nextval`
    pub volatile_default: bool,
    /// `GENERATED ALWAYS AS … STORED` (or VIRTUAL)
    pub generated: bool,
    /// `GENERATED … AS IDENTITY`
    pub identity: bool,
}

/// Facts about one index.
#[derive(Clone, Debug)]
pub struct IndexFacts {
    /// quoted and qualified
    pub name: String,
    /// `UNIQUE`, including primary keys
    pub unique: bool,
    /// `PRIMARY KEY`
    pub primary: bool,
    /// the access method
    pub method: String,
}

/// Facts about one trigger that fires on INSERT.
#[derive(Clone, Debug)]
pub struct TriggerFacts {
    /// its name
    pub name: String,
    /// it fires for each row
    pub row: bool,
    /// it fires before the row or statement
    pub before: bool,
    /// the server has created it for a foreign key
    pub internal: bool,
}

/// Facts about the table.
#[derive(Clone, Debug, Default)]
pub struct TableFacts {
    /// `pg_class.oid`
    pub oid: u32,
    /// its schema
    pub schema: String,
    /// its name
    pub name: String,
    /// both, quoted
    pub sql: String,
    /// `relkind`: `r` table, `p` partitioned, `f` foreign, `v` view
    pub kind: char,
    /// `relpersistence`: `p` permanent, `u` unlogged, `t` temporary
    pub persistence: char,
    /// the session's role owns it, or may act as its owner
    pub owned: bool,
    /// the role may create tables in its schema
    pub schema_open: bool,
    /// the role may lock it by name against changes: its privileges are not only on columns
    pub lockable: bool,
    /// the load has created it
    pub created: bool,
    /// its comment
    pub comment: Option<String>,
    /// the extension that keeps its rows in other tables: `timescaledb` or `citus`
    pub rows_kept_by: Option<&'static str>,
    /// it has no rows, as far as can be seen
    pub empty: bool,
    /// it is empty, and the load may lock it for itself: `session::exclusive_table` does that
    pub private: bool,
    /// size of the heap and its indexes in bytes
    pub bytes: u64,
    /// its columns in order, without dropped ones
    pub columns: Vec<ColumnFacts>,
    /// its indexes
    pub indexes: Vec<IndexFacts>,
    /// triggers on INSERT, including those of foreign keys and row triggers of partitions
    pub triggers: Vec<TriggerFacts>,
    /// number of its foreign keys
    pub foreign_keys: u32,
    /// other tables refer to it, so the server does not truncate it alone
    pub referenced: bool,
    /// a publication sends its rows to subscribers
    pub published: bool,
    /// a publication sends the rows of each new table of its schema to subscribers
    pub publishes_new: bool,
    /// a DELETE of its rows may delete or change rows of other tables, by their foreign keys
    pub cascades: bool,
    /// it has a foreign key to itself, so whether a row is valid depends on other rows of the load
    pub refers_to_itself: bool,
    /// it, or a partition of it, has a unique index or an exclusion constraint
    pub keeps_apart: bool,
    /// row-level security is in force for the session's role
    pub row_security: bool,
    /// rules for INSERT, which COPY ignores
    pub rules: Vec<String>,
    /// number of leaf partitions
    pub partitions: u32,
    /// it is a partition of another table
    pub is_partition: bool,
}

impl TableFacts {
    /// Whether it is a table, plain or partitioned: no view and no foreign table.
    pub fn is_table(&self) -> bool {
        matches!(self.kind, 'r' | 'p')
    }

    /// Whether it is a plain table that has its rows itself.
    pub fn is_plain(&self) -> bool {
        self.kind == 'r' && self.rows_kept_by.is_none()
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&ColumnFacts> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// Returns the statement that locks the table as an INSERT does, so that its partitions stay
    /// attached.
    pub fn shared_lock(&self) -> String {
        match self.lockable {
            true => format!("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE", self.sql),
            // LOCK TABLE does not accept privileges on columns. This takes the same lock if the
            // role may write some column, and does nothing else.
            false => format!("EXPLAIN INSERT INTO {} DEFAULT VALUES", self.sql),
        }
    }

    /// Whether a user's trigger fires for each row, after all rows of the statement.
    pub fn after_row_triggers(&self) -> bool {
        self.triggers.iter().any(|t| t.row && !t.before && !t.internal)
    }

    /// Whether a user's trigger fires once for each statement.
    pub fn statement_triggers(&self) -> bool {
        self.triggers.iter().any(|t| !t.row && !t.internal)
    }
}

/// The size and alignment of a column in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnWidth {
    /// its name
    pub name: String,
    /// size of a value in bytes; `None` if it varies (`attlen`)
    pub length: Option<usize>,
    /// alignment in bytes (`attalign`)
    pub align: usize,
}

/// Facts that only advice needs.
#[derive(Clone, Debug, Default)]
pub struct AdviceFacts {
    /// the columns in the table's order
    pub columns: Vec<ColumnWidth>,
    /// the folder of the table's files and the free bytes there, if the server is on this machine
    /// and reports the folder
    pub room: Option<(String, u64)>,
}

/// The statement that creates the table, and notes for the user.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// `CREATE TABLE`, and a comment if the columns are packed
    pub statement: String,
    /// the columns in the order of the file's fields; `None` where a field is left out
    pub names: Vec<Option<String>>,
    /// the columns, if records may be loaded that were not examined for types
    pub unseen: Option<InferredColumns>,
    /// how many bytes the column order saves, and what the types were inferred from
    pub notes: Vec<Text>,
}

/// Whether the ledger can be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LedgerState {
    /// it exists
    #[default]
    Ready,
    /// it does not exist, and the role may create it
    Missing,
    /// it cannot be used, with the reason
    Unusable(String),
}
