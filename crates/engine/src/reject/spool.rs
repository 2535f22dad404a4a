//! Rejects of a transaction that is not committed yet, in an unnamed file.

use super::{Amount, Reject, RejectFile, Rejects};
use crate::error::Error;
use pgsluice_core::scan::Eol;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

/// The maximum size in bytes of a record that is read into memory when it is added to the reject
/// file.
const HELD: u64 = 8 << 20;

/// The rejects of the transaction of one lane: alternately the reason and the bytes of each record.
#[derive(Debug, Default)]
pub struct Spool {
    file: Option<BufWriter<File>>,
    amount: Amount,
}

impl Spool {
    /// The number of rejects.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// Adds a record. Its reason has the length of `bytes`.
    ///
    /// # Errors
    ///
    /// As for [`Rejects::spool`], or the disk is full, or the record cannot be read.
    pub fn add(
        &mut self,
        rejects: &Rejects,
        reject: &Reject,
        bytes: &mut dyn Read,
        eol: Eol,
    ) -> Result<(), Error> {
        if self.file.is_none() {
            self.file = rejects.spool()?.map(BufWriter::new);
        }
        let added = self.write(reject, bytes, eol);
        added.map_err(|e| Error::io("write", "the rejects beside the reject file", &e))
    }

    fn write(&mut self, reject: &Reject, bytes: &mut dyn Read, eol: Eol) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        let reason = serde_json::to_vec(&(reject, eol.bytes()))?;
        file.write_all(&(reason.len() as u64).to_le_bytes())?;
        file.write_all(&reason)?;
        let written = io::copy(&mut bytes.take(reject.length), file)?;
        if written != reject.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.amount += Amount { records: 1, lines: reject.lines };
        Ok(())
    }

    /// Moves all rejects to the reject file.
    pub(super) fn empty_into(&mut self, to: &mut RejectFile) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.flush()?;
        file.get_mut().rewind()?;
        let mut from = BufReader::new(file.get_ref());
        for _ in 0..self.amount.records {
            let mut length = [0; 8];
            from.read_exact(&mut length)?;
            let mut reason = Vec::new();
            (&mut from).take(u64::from_le_bytes(length)).read_to_end(&mut reason)?;
            let (reject, end): (Reject, Option<Vec<u8>>) = serde_json::from_slice(&reason)?;
            let eol = eol_of(end.as_deref());
            if reject.length > HELD {
                to.add_from(&reject, &mut (&mut from).take(reject.length), eol)?;
                continue;
            }
            let mut bytes = Vec::new();
            (&mut from).take(reject.length).read_to_end(&mut bytes)?;
            to.add(&reject, &bytes, eol)?;
        }
        self.amount = Amount::default();
        file.get_mut().set_len(0)?;
        file.get_mut().rewind()
    }
}

fn eol_of(bytes: Option<&[u8]>) -> Eol {
    match bytes {
        Some(b"\n") => Eol::Nl,
        Some(b"\r") => Eol::Cr,
        Some(b"\r\n") => Eol::CrNl,
        _ => Eol::Unknown,
    }
}
