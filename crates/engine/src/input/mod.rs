//! Files to chunks that end where records end. Knows no PostgreSQL.

mod ahead;
mod chunk;
mod content;
pub mod decompress;
mod file;
mod locate;
mod reader;
mod records;

pub use chunk::{Chunk, Counts, Part};
pub use file::HeaderLine;
pub use locate::{can_be_read_again, locate};
pub use reader::{BlankEnds, Reader};
pub use records::{Found, Layout, Records};
