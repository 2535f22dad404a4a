//! Options for the columns and the objects of the table.

use std::fmt;
use std::str::FromStr;

/// The columns to which an option of COPY applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ColumnSet {
    /// none
    #[default]
    None,
    /// `*`
    All,
    /// the named columns
    Named(Vec<String>),
}

impl ColumnSet {
    /// Whether the column is among them.
    pub fn has(&self, column: &str) -> bool {
        match self {
            ColumnSet::None => false,
            ColumnSet::All => true,
            ColumnSet::Named(names) => names.iter().any(|n| n == column),
        }
    }
}

/// `--indexes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexes {
    /// all indexes stay
    Keep,
    /// all indexes that can be rebuilt are rebuilt
    Rebuild,
    /// indexes are rebuilt if the table is empty
    #[default]
    Auto,
}

/// `--triggers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Triggers {
    /// they fire
    #[default]
    Keep,
    /// they are disabled for the load
    Off,
}

/// `--foreign-keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignKeys {
    /// each row is checked when it is inserted
    #[default]
    Keep,
    /// they are dropped, and all rows are checked at once after the load
    Revalidate,
}

/// `--route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// as `Leaf` if measurements show that leaves are faster, otherwise as `Root`
    #[default]
    Auto,
    /// directly to the leaf to which each row belongs
    Leaf,
    /// directly to the server that holds the leaf, not through the coordinator
    Nodes,
    /// to the table; the server routes the rows
    Root,
}

macro_rules! named {
    ($type:ty, $($name:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                match s {
                    $($name => Ok($value),)+
                    _ => Err(format!("{s:?} is not one of {}", [$($name),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if *self == $value { return f.write_str($name); })+
                Ok(())
            }
        }
    };
}

named!(Indexes, "keep" => Indexes::Keep, "rebuild" => Indexes::Rebuild, "auto" => Indexes::Auto);
named!(Triggers, "keep" => Triggers::Keep, "off" => Triggers::Off);
named!(ForeignKeys, "keep" => ForeignKeys::Keep, "revalidate" => ForeignKeys::Revalidate);
named!(
    Route,
    "auto" => Route::Auto,
    "leaf" => Route::Leaf,
    "nodes" => Route::Nodes,
    "root" => Route::Root
);
