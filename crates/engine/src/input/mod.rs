//! Reads files into chunks that end where records end. Uses no server.

mod ahead;
mod chunk;
mod content;
pub mod decompress;
mod file;
mod footer;
mod held;
mod known;
mod locate;
mod peek;
mod reader;
mod records;

pub use chunk::{Chunk, Counts, Part};
pub use content::other_content;
pub use file::HeaderLine;
pub use known::{changed, compare, outside, Compared, KnownPiece, StoppableRead, CORRECTION};
pub use locate::{can_be_read_again, locate};
pub use peek::{peek, Peek};
pub use reader::{HeldStart, PassedLines, Reader};
pub use records::{lines_of_first, Found, Layout};
