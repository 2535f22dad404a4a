//! Facts about the server, the table and the load: plain values, from which a plan is made.

use crate::causes::Causes;
use crate::infer::NewColumn;
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

/// All that a plan is made from, beside the options.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// about the input
    pub input: InputFacts,
    /// about the server and the session
    pub server: ServerFacts,
    /// about the table
    pub table: TableFacts,
    /// the table's statement, if the load has made it
    pub new: Option<NewTable>,
    /// what only advice needs
    pub advice: AdviceFacts,
    /// the objects that maintenance may take down; `None` where there is none
    pub objects: Option<TableObjects>,
    /// the table and its partitions, where rows may go straight to them
    pub partitions: Vec<Partition>,
    /// the servers that hold these, where rows are to go straight to them
    pub nodes: Option<Nodes>,
    /// whether what is taken down can be recorded
    pub ledger: LedgerState,
    /// what earlier loads left, in words
    pub left: Vec<String>,
    /// objects that an earlier load left down and this one recreates first
    pub down: Vec<Choice>,
    /// likely causes of errors, from a sample
    pub causes: Causes,
    /// the machine's
    pub cores: usize,
    /// what the plan is for
    pub purpose: Purpose,
}

/// What a plan is for.
#[derive(Clone, Debug, Default)]
pub enum Purpose {
    /// to load
    #[default]
    Load,
    /// to check values: what is sent is thrown away chunk by chunk
    Check {
        /// the columns of the table that a load would make, if their types were inferred from
        /// some records only
        inferred: Option<Vec<NewColumn>>,
    },
    /// to convert a file: nothing is sent
    Convert,
}

/// Facts about the input.
#[derive(Clone, Debug, Default)]
pub struct InputFacts {
    /// the first file's name, for messages
    pub name: String,
    /// the header line, if one was asked for
    pub header: Option<HeaderLine>,
    /// the columns of the fields, where `--create` has made them
    pub names: Option<Vec<Option<String>>>,
    /// bytes of all files as they are on disk; 0 where nobody knows
    pub bytes: u64,
    /// the files can be read a second time
    pub again: bool,
    /// some file is compressed
    pub compressed: bool,
    /// records, estimated from a decompressed sample
    pub records: Option<u64>,
    /// what the user should know of how the files are read
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
    /// replication slots, active or not, each with its name
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
    /// the process of this session
    pub process: u32,
    /// the version of the extension `pgsluice` in this database, if the role may use it
    pub extension: Option<String>,
    /// why it cannot be used, where it is there and cannot
    pub extension_fault: Option<String>,
    /// the role may create schemas in this database
    pub can_create_schema: bool,
}

impl ServerFacts {
    /// 15 for 15.20.
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// What the session's settings mean to the reading of values.
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
            // The connection speaks UTF-8, and COPY binary of it is converted by the server,
            // character by character but for this encoding.
            single_byte: self.encoding == "EUC_JIS_2004",
        }
    }

    /// Whether `UTC`, `Z`, `T` and `BC` mean in dates what they mean everywhere. A zone that is a
    /// rule (`UTC+5`) defines abbreviations, and since 18 the server looks at those first.
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
    /// the type as SQL names it, modifiers included
    pub type_name: String,
    /// the same without modifiers, seen through domains
    pub plain_type: String,
    /// how SQL reads a text `$` as COPY does, where a cast would read another value from it
    pub reader: Option<String>,
    /// the type as the core reads it
    pub ty: Type,
    /// NULL is forbidden, by the column or by a domain
    pub not_null: bool,
    /// the default's expression, or that of the column's domain
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
    /// `UNIQUE`, primary keys among them
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
    /// fires for each row
    pub row: bool,
    /// fires before
    pub before: bool,
    /// made by the server for a foreign key
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
    /// the role may lock it by name against changes: its rights are not on columns alone
    pub lockable: bool,
    /// the load has made it
    pub created: bool,
    /// its comment
    pub comment: Option<String>,
    /// it holds no row, as far as can be seen
    pub empty: bool,
    /// it is empty and may be the load's own: `session::exclusive_table` locks it
    pub private: bool,
    /// bytes of the heap and its indexes
    pub bytes: u64,
    /// its columns in order, dropped ones left out
    pub columns: Vec<ColumnFacts>,
    /// its indexes
    pub indexes: Vec<IndexFacts>,
    /// triggers on INSERT, those of foreign keys among them
    pub triggers: Vec<TriggerFacts>,
    /// foreign keys that it has
    pub foreign_keys: u32,
    /// tables that refer to it
    pub referenced: bool,
    /// it has a foreign key to itself: whether a row is good depends on others
    /// of the load
    pub refers_to_itself: bool,
    /// it, or a partition of it, has an index that keeps rows apart: unique, or
    /// of an exclusion constraint
    pub keeps_apart: bool,
    /// row-level security is in force for the session's role
    pub row_security: bool,
    /// rules for INSERT, which COPY passes by
    pub rules: Vec<String>,
    /// leaf partitions
    pub partitions: u32,
    /// it is a partition of another table
    pub is_partition: bool,
}

impl TableFacts {
    /// The statement that locks the table as an INSERT does, so that its partitions stay attached.
    pub fn shared_lock(&self) -> String {
        match self.lockable {
            true => format!("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE", self.sql),
            // LOCK TABLE does not accept rights on columns. This takes the same lock if the role
            // may write some column, and does nothing else.
            false => format!("EXPLAIN INSERT INTO {} DEFAULT VALUES", self.sql),
        }
    }

    /// Whether there is a user's trigger that fires once for each statement.
    pub fn statement_triggers(&self) -> bool {
        self.triggers.iter().any(|t| !t.row && !t.internal)
    }
}

/// How a column lies in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnWidth {
    /// its name
    pub name: String,
    /// bytes of a value; `None` where it varies (`attlen`)
    pub length: Option<usize>,
    /// bytes (`attalign`)
    pub align: usize,
}

/// Facts that only advice needs.
#[derive(Clone, Debug, Default)]
pub struct AdviceFacts {
    /// the columns in the table's order
    pub columns: Vec<ColumnWidth>,
    /// the folder that the table's files are in and the bytes free under it,
    /// where the server is on this machine and says where it lies
    pub room: Option<(String, u64)>,
}

/// The statement that makes the table, and what the user should know of it.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// `CREATE TABLE`, and a comment if the columns are packed
    pub statement: String,
    /// the columns in the order of the file's fields; `None` where a field is left out
    pub names: Vec<Option<String>>,
    /// the columns, where there are records that the types were not inferred from
    pub unseen: Option<Vec<NewColumn>>,
    /// how much the order of columns saves, and what was inferred from what
    pub notes: Vec<Text>,
}

/// Whether the ledger can be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LedgerState {
    /// it is there
    #[default]
    Ready,
    /// it is not, and the role may make it
    Missing,
    /// it cannot be used, and why
    Unusable(String),
}
