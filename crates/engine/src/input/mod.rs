//! Files to chunks that end where records end. Knows no PostgreSQL.

mod chunk;
pub mod decompress;
mod file;
mod reader;

pub use chunk::{Chunk, Counts, Part};
pub use file::HeaderLine;
pub use reader::Reader;
