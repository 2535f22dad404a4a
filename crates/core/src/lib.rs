//! Bytes → fields → typed values → rows in PostgreSQL's own formats.
