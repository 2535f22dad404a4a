//! PostgreSQL's on-disk layouts, as constants with assertions.

pub mod btree;
pub mod btree_build;
pub mod btree_load;
pub mod heap;
pub mod tuple;
