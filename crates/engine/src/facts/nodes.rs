//! Facts about the servers that hold the leaves of a partitioned table (`postgres_fdw`).

use crate::error::Error;
use std::fmt;

/// The servers and the tables on them.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// the servers
    pub nodes: Vec<Node>,
    /// the leaves
    pub leaves: Vec<RemoteLeaf>,
    /// the role may truncate the partitioned table
    pub may_truncate: bool,
    /// triggers of the table and its partitions that fire for TRUNCATE
    pub truncate_triggers: Option<String>,
}

/// A server.
#[derive(Clone, Debug)]
pub struct Node {
    /// `pg_foreign_server.srvname`
    pub name: String,
    /// how to connect to it
    pub address: Address,
    /// the node's setting of this name
    pub max_prepared_transactions: u32,
    /// why it cannot be reached, if so
    pub down: Option<Error>,
    /// an earlier node, or the coordinator, that is the same database, in words
    pub same_as: Option<String>,
}

/// The connection string, with a password if there is one. It is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Address(pub String);

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address")
    }
}

/// A leaf and the table on the node that holds its rows.
#[derive(Clone, Debug)]
pub struct RemoteLeaf {
    /// `pg_class.oid` of the leaf
    pub oid: u32,
    /// the leaf, quoted and qualified
    pub partition: String,
    /// an index into [`Nodes::nodes`]
    pub node: usize,
    /// the table on the node, quoted and qualified
    pub table: String,
    /// the same, as the server names it in the context of an error
    pub relation: String,
    /// the columns in the order of the leaf
    pub columns: Vec<RemoteColumn>,
    /// the CHECK constraints that the table on the node must have
    pub checks: Vec<String>,
    /// the condition that holds for each row of the leaf, if any
    pub constraint: Option<String>,
    /// a crash of the node empties the table
    pub unlogged: bool,
    /// the option of postgres_fdw: TRUNCATE through the coordinator empties the table
    pub truncatable: bool,
}

/// A column of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteColumn {
    /// its name
    pub name: String,
    /// its name on the node
    pub remote: String,
    /// its type, and its collation if that is not the default of the type, in SQL
    pub sql_type: String,
    /// its type
    pub type_name: String,
    /// the types and constraints of the domains that the type consists of
    pub domains: String,
    /// it does not accept NULL
    pub not_null: bool,
    /// it is generated
    pub generated: bool,
    /// the node fills it if it is left out: it has a default, is generated, or is an identity
    /// column
    pub filled_by_node: bool,
}
