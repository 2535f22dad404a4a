//! PostgreSQL's layouts on disk, as constants with assertions.

pub mod tuple;
