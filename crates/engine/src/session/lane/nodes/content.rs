//! The content of each source: its bytes are hashed in order, however they are divided into chunks.
//! Nodes record and recognise their slices by this hash.

use super::Fanout;
use crate::error::Error;
use crate::input::Chunk;
use crate::once::record::Recording;
use crate::once::slices::{Content, NodeSlice};
use crate::session::lane::Lane;
use blake3::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// The contents of the sources so far.
pub(super) struct Contents {
    pub recording: Arc<Recording>,
    /// the completed sources that have bytes, in order
    done: Vec<Content>,
    /// the source that is being read
    current: Option<(usize, Range<u64>, Box<Hasher>)>,
}

impl Contents {
    pub fn of(recording: &Arc<Recording>) -> Contents {
        Contents { recording: recording.clone(), done: Vec::new(), current: None }
    }

    /// Adds a chunk, which follows the last one.
    pub fn add(&mut self, chunk: &Chunk) {
        if self.current.as_ref().is_some_and(|(source, ..)| *source != chunk.file) {
            self.end();
        }
        let begun = || (chunk.file, chunk.offset..chunk.offset, Box::new(Hasher::new()));
        let (_, bytes, hasher) = self.current.get_or_insert_with(begun);
        bytes.end += chunk.bytes.len() as u64;
        hasher.update(&chunk.bytes);
    }

    fn end(&mut self) {
        let Some((source, bytes, hasher)) = self.current.take() else { return };
        self.done.push(Content { source, bytes, hash: hasher.finalize() });
    }

    /// Returns all contents, at the end of the input.
    pub fn all(&mut self) -> &[Content] {
        self.end();
        &self.done
    }
}

impl Fanout {
    /// A slice that a node already had, of a source that has other bytes now.
    fn other_slice(&mut self) -> Option<&NodeSlice> {
        let contents = self.contents.as_mut()?.all();
        self.slices.iter().find(|slice| !contents.contains(&slice.content))
    }
}

impl Lane {
    /// Checks before any commit that the content of slices that nodes already had is that of the
    /// input.
    ///
    /// # Errors
    ///
    /// A source has changed since then.
    pub(super) fn check_slices(&mut self) -> Result<(), Error> {
        let Some(fanout) = &mut self.nodes else { return Ok(()) };
        let Some(slice) = fanout.other_slice().cloned() else { return Ok(()) };
        let Some(contents) = &fanout.contents else { return Ok(()) };
        Err(contents.recording.other_content(&slice))
    }
}
