//! The C interface of the core for the server extension.
