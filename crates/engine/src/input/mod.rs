//! Files to chunks that end where records end. Knows no PostgreSQL.

mod chunk;
pub mod decompress;
mod giant;
mod reader;

pub use chunk::{Chunk, Counts, Part};
pub use reader::{HeaderLine, InputFile, Reader};
