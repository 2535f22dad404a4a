//! The bulk loader for PostgreSQL.
fn main() {}
