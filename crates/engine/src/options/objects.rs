//! What is to be done with the columns and the objects of the table.

use std::fmt;
use std::str::FromStr;

/// Which columns an option of COPY is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ColumnSet {
    /// none
    #[default]
    None,
    /// `*`
    All,
    /// these
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
    /// all stay
    Keep,
    /// all are rebuilt that can be
    Rebuild,
    /// rebuilt where the table is empty
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
    /// each row is checked as it comes
    #[default]
    Keep,
    /// dropped, and all rows are checked at once after the load
    Revalidate,
}

/// `--route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// as `Leaf` where leaves are measured to be faster, else as `Root`
    #[default]
    Auto,
    /// straight to the leaf that each row belongs to
    Leaf,
    /// straight to the server that holds the leaf, past the one that is loaded
    Nodes,
    /// to the table, where the server routes them
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
