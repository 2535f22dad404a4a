//! Files to chunks that end where records end. Knows no PostgreSQL.

mod chunk;
pub mod decompress;
mod file;
mod locate;
mod reader;

pub use chunk::{Chunk, Counts, Part};
pub use file::HeaderLine;
pub use locate::locate;
pub use reader::Reader;
