//! The columns of a plan, and the fields they are made from.

use super::Plan;
use crate::error::shown;
use crate::facts::InputFacts;
use crate::input::{PassedLines, Reader};
use crate::quote::quote_ident;
use crate::recast::Recast;
use crate::text::{text, Text};
use pgsluice_core::shape::Type;

/// The most fields that a note names.
const LISTED: usize = 5;

/// The most bytes of padding in the rows of a chunk: as many as the chunk itself has.
const MOST_PADDING: usize = 512 << 10;

impl Plan {
    /// Configures the reader for this plan. Returns the number of lines that are not records, which
    /// grows while the files are read.
    pub fn read_by(&self, reader: &mut Reader) -> PassedLines {
        reader.read_as(&self.layout);
        if self.recast.as_ref().is_some_and(Recast::counts_lines) {
            reader.count_lines();
        }
        let most = self.recast.as_ref().and_then(Recast::most_records);
        if let Some(most) = most.into_iter().chain(self.most_padded()).min() {
            reader.limit_chunks(most);
        }
        reader.pass_blank_ends(self.fields.len());
        reader.passed_lines()
    }

    /// Returns how many records a chunk may have, so that their padding fits in memory. `None` if
    /// nothing is padded, or chunks are not kept with their rows.
    fn most_padded(&self) -> Option<usize> {
        self.router.as_ref()?;
        let padding: usize = self.shape.columns.iter().map(|column| padding(&column.ty)).sum();
        MOST_PADDING.checked_div(padding)
    }

    /// The index of the field for a column.
    pub fn field_of(&self, column: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.as_deref() == Some(column))
    }

    /// A literal in the form in which an INSERT reads it for the column at this index.
    pub fn read(&self, column: usize, literal: String) -> String {
        match &self.readers[column] {
            Some(reader) => reader.replacen('$', &literal, 1),
            None => literal,
        }
    }

    /// The column list for a COPY statement.
    pub fn column_list(&self) -> String {
        let quoted: Vec<String> = self.columns.iter().map(|c| quote_ident(c)).collect();
        if quoted.is_empty() {
            String::new()
        } else {
            format!(" ({})", quoted.join(", "))
        }
    }
}

/// The most bytes that are added to a value of this type; of an array, to each element.
fn padding(ty: &Type) -> usize {
    match ty {
        Type::Bpchar(Some(length)) => *length as usize,
        Type::Array(of) => padding(&of.element),
        _ => 0,
    }
}

/// The note on fields that are left out.
pub(super) fn left_out(fields: &[Option<String>], input: &InputFacts) -> Option<Text> {
    let name = |field: usize| {
        let header = input.header.as_ref().and_then(|header| header.fields.get(field)?.as_deref());
        header.map_or(format!("field {}", field + 1), shown)
    };
    let all = fields.iter().enumerate().filter(|(_, column)| column.is_none());
    let names: Vec<String> = all.map(|(field, _)| name(field)).collect();
    let more = if names.len() > LISTED { " and others" } else { "" };
    let listed = names[..names.len().min(LISTED)].join(", ");
    let (left, of) = (names.len(), fields.len());
    (left > 0).then(|| text!("left out: {} of {} fields: {}{}", left, of, listed, more))
}
