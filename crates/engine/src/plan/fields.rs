//! The columns of a plan, and the fields that they are made of.

use super::Plan;
use crate::error::shown;
use crate::facts::InputFacts;
use crate::input::{PassedLines, Reader};
use crate::quote::quote_ident;
use crate::recast::Recast;
use crate::text::{text, Text};

/// At most so many fields are named in a note.
const LISTED: usize = 5;

impl Plan {
    /// Has the files read as this plan needs them. Gives the number of lines that are no records,
    /// as it grows.
    pub fn read_by(&self, reader: &mut Reader) -> PassedLines {
        reader.read_as(&self.layout);
        if self.recast.as_ref().is_some_and(Recast::counts_lines) {
            reader.count_lines();
        }
        if let Some(most) = self.recast.as_ref().and_then(Recast::most_records) {
            reader.limit_chunks(most);
        }
        reader.pass_blank_ends(self.fields.len());
        reader.passed_lines()
    }

    /// The index of the field that goes to a column.
    pub fn field_of(&self, column: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.as_deref() == Some(column))
    }

    /// A literal as the column with this index reads it in an INSERT.
    pub fn read(&self, column: usize, literal: String) -> String {
        match &self.readers[column] {
            Some(reader) => reader.replacen('$', &literal, 1),
            None => literal,
        }
    }

    /// The columns as a COPY statement lists them.
    pub fn column_list(&self) -> String {
        let quoted: Vec<String> = self.columns.iter().map(|c| quote_ident(c)).collect();
        if quoted.is_empty() {
            String::new()
        } else {
            format!(" ({})", quoted.join(", "))
        }
    }
}

/// What is noted of fields that are left out.
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
