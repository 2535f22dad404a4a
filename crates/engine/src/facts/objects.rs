//! The indexes, constraints, foreign keys and triggers of a table, as the catalogs describe them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The table, and what the session's role may do with it.
#[derive(Clone, Debug, Deserialize)]
pub struct Relation {
    /// `pg_class.oid`
    pub oid: u32,
    /// quoted and qualified
    pub name: String,
    /// `relkind`
    pub kind: char,
    /// the role owns the table, or may act as its owner
    pub owner: bool,
    /// the role may create objects in the table's schema, as index builds do
    pub may_create: bool,
    /// bytes of the heap
    pub heap_bytes: u64,
    /// number of rows that the server estimates; negative if it has never counted them
    pub rows: f64,
    /// it is a plain table without indexes, triggers and foreign keys
    pub bare: bool,
    /// the role sees every row
    pub visible: bool,
    /// the lists of tables whose rows an extension keeps elsewhere, see `session::catalog::LISTS`
    pub lists: Option<String>,
    /// it is a plain table and has no row
    #[serde(default)]
    pub empty: bool,
}

/// One index, with the constraint that it backs.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    /// `pg_class.oid` of the index
    pub oid: u32,
    /// quoted and qualified
    pub name: String,
    /// its kind in words: `primary key`, `unique index`, `index`, …
    pub kind: String,
    /// the access method
    pub method: String,
    /// its build cannot fail because of a row
    pub certain: bool,
    /// a B-tree of columns for all rows; if it is unique, it checks at once
    pub plain: bool,
    /// it is complete and in use
    pub valid: bool,
    /// it belongs to a partitioned table, or to a partition's
    pub partitioned: bool,
    /// the extension that it belongs to or depends on
    pub extension: Option<String>,
    /// objects that need it, in words
    pub dependents: Vec<String>,
    /// a publication of updates or deletes identifies rows by it
    pub published: bool,
    /// a function of it may need the search_path, and the server builds indexes without it
    pub by_path: bool,
    /// it is in a tablespace where the role may not create
    pub foreign_tablespace: bool,
    /// another reason why it could not be recreated as it is
    pub odd: Option<String>,
    /// bytes on disk
    pub bytes: u64,
    /// names of its columns
    pub columns: Vec<String>,
    /// `attnum` of the table's columns that it is on; 0 for an expression
    pub attnums: Vec<i16>,
    /// how it is dropped and recreated
    #[serde(flatten)]
    pub steps: Steps,
}

impl Index {
    /// Whether rows can be rejected because of it.
    pub fn refuses(&self) -> bool {
        self.kind != "index"
    }
}

/// One foreign key of the table.
#[derive(Clone, Debug, Deserialize)]
pub struct ForeignKey {
    /// the constraint's name
    pub name: String,
    /// all rows are known to satisfy it
    pub validated: bool,
    /// it is checked at all
    pub enforced: bool,
    /// one of its tables is partitioned, or it is inherited
    pub partitioned: bool,
    /// the extension that it belongs to
    pub extension: Option<String>,
    /// objects that need it, in words
    pub dependents: Vec<String>,
    /// the role may refer to the other table's columns
    pub may_refer: bool,
    /// another reason why it could not be recreated as it is
    pub odd: Option<String>,
    /// the other table, quoted and qualified
    pub referenced: String,
    /// `pg_class.oid` of the other table
    pub referenced_oid: u32,
    /// how it is dropped and recreated
    #[serde(flatten)]
    pub steps: Steps,
}

/// One trigger of a user, on the table or on one of its partitions.
#[derive(Clone, Debug, Deserialize)]
pub struct Trigger {
    /// its name
    pub name: String,
    /// the table that it is on, quoted and qualified
    pub relation: String,
    /// `tgenabled`: `O` origin, `D` disabled, `R` replica, `A` always
    pub enabled: char,
    /// it fires for each inserted row, and its function has ON CONFLICT
    pub on_conflict: bool,
    /// the extension that it belongs to
    pub extension: Option<String>,
    /// the role owns that table
    pub owner: bool,
    /// if that table is partitioned: `pg_trigger.oid` of its copies on the table's own partitions
    pub copies: Option<Vec<u32>>,
    /// how it is disabled and enabled
    #[serde(flatten)]
    pub steps: Steps,
}

impl Trigger {
    /// The name with its table, which is unique.
    pub fn full_name(&self) -> String {
        format!("{} on {}", self.name, self.relation)
    }
}

/// Statements that drop or disable an object and restore it, and its state afterwards.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Steps {
    /// drops or disables it
    pub drop: String,
    /// builds it again without touching the table; may run at the same time as others
    #[serde(default)]
    pub build: Vec<String>,
    /// makes it part of the table again, with all its properties
    pub attach: Vec<String>,
    /// what must be the same as before; it is compared as a whole
    pub state: Value,
}

/// The objects of one table that make a load slower.
#[derive(Clone, Debug)]
pub struct TableObjects {
    /// the table
    pub relation: Relation,
    /// its indexes, oldest first
    pub indexes: Vec<Index>,
    /// its foreign keys, oldest first
    pub foreign_keys: Vec<ForeignKey>,
    /// users' triggers on it and on its partitions
    pub triggers: Vec<Trigger>,
}

impl TableObjects {
    /// Returns the steps of the object that a choice of this kind and name refers to.
    pub(crate) fn steps(&self, kind: &str, name: &str) -> Option<&Steps> {
        match kind {
            "index" => self.indexes.iter().find(|i| i.name == name).map(|i| &i.steps),
            "foreign key" => self.foreign_keys.iter().find(|k| k.name == name).map(|k| &k.steps),
            _ => self.triggers.iter().find(|t| t.full_name() == name).map(|t| &t.steps),
        }
    }
}
