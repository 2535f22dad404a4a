//! Facts about the partitions of a table.

/// A partitioned table or one of its partitions, at any level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partition {
    /// `pg_class.oid`
    pub oid: u32,
    /// the OID of its parent table; 0 for the table that is loaded
    pub parent: u32,
    /// quoted and qualified
    pub sql: String,
    /// `relkind`: `r` table, `p` partitioned, `f` foreign
    pub kind: char,
    /// `pg_get_expr` of `relpartbound`
    pub bound: String,
    /// the role may insert into it by name
    pub writable: bool,
    /// row-level security is in force for the session's role
    pub row_security: bool,
    /// it has triggers that fire once for each INSERT
    pub statement_triggers: bool,
    /// columns that get another value than from the root if they are left out
    pub other_defaults: Vec<String>,
    /// how its rows are distributed over its partitions
    pub key: Option<PartitionKey>,
}

/// How rows are distributed over partitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartitionKey {
    /// `pg_partitioned_table.partstrat`: `h`, `l` or `r`
    pub strategy: char,
    /// the columns and expressions that it is computed from
    pub columns: Vec<KeyColumn>,
}

/// One part of a partition key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyColumn {
    /// the column; `None` if it is an expression
    pub name: Option<String>,
    /// its operator class is the server's own and the default
    pub usual_class: bool,
    /// its collation compares bytes
    pub bytewise: bool,
    /// its collation is deterministic: equal texts have the same bytes
    pub deterministic: bool,
}
