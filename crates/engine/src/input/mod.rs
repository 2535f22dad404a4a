//! Files to blocks of bytes. Knows no PostgreSQL.

pub mod decompress;
