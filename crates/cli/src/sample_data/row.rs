//! Writes rows in one of COPY's textual formats.

use super::SampleFormat;

/// Appends fields and rows to a buffer.
pub(super) struct RowWriter<'a> {
    out: &'a mut Vec<u8>,
    format: SampleFormat,
    in_row: bool,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, format: SampleFormat) -> Self {
        Self { out, format, in_row: false }
    }

    fn delimit(&mut self) {
        if self.in_row {
            self.out.push(match self.format {
                SampleFormat::Csv => b',',
                SampleFormat::Text => b'\t',
            });
        }
        self.in_row = true;
    }

    /// Writes a field of bytes that need no escapes in either format.
    pub(super) fn plain(&mut self, value: &[u8]) {
        self.delimit();
        self.out.extend_from_slice(value);
    }

    /// Writes an integer.
    pub(super) fn int(&mut self, value: i64) {
        self.delimit();
        push_int(self.out, value);
    }

    /// Writes NULL as COPY does in the format.
    pub(super) fn null(&mut self) {
        self.plain(match self.format {
            SampleFormat::Csv => b"",
            SampleFormat::Text => b"\\N",
        });
    }

    /// Writes a field of any bytes, quoted or escaped if necessary.
    pub(super) fn text(&mut self, value: &[u8]) {
        self.delimit();
        match self.format {
            SampleFormat::Csv => push_csv(self.out, value),
            SampleFormat::Text => push_text(self.out, value),
        }
    }

    /// Ends the row.
    pub(super) fn end(&mut self) {
        self.out.push(b'\n');
        self.in_row = false;
    }
}

/// Writes a value as COPY TO does. An empty value is quoted, because an unquoted one is NULL.
fn push_csv(out: &mut Vec<u8>, value: &[u8]) {
    let needs = value.iter().any(|b| matches!(b, b',' | b'"' | b'\n' | b'\r'));
    if !needs && !value.is_empty() && value != b"\\." {
        return out.extend_from_slice(value);
    }
    out.push(b'"');
    for part in value.split_inclusive(|b| *b == b'"') {
        out.extend_from_slice(part);
        if part.ends_with(b"\"") {
            out.push(b'"');
        }
    }
    out.push(b'"');
}

fn push_text(out: &mut Vec<u8>, value: &[u8]) {
    for byte in value {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => out.push(*byte),
        }
    }
}

/// Decimal digits of an integer.
pub(super) fn push_int(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// A number with leading zeros.
pub(super) fn push_padded(out: &mut Vec<u8>, value: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    let mut rest = value;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// An ISO date of a day counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
pub(super) fn push_date(out: &mut Vec<u8>, day: u64) {
    let day = day + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    push_padded(out, year + era * 400 + u64::from(month <= 2), 4);
    out.push(b'-');
    push_padded(out, month, 2);
    out.push(b'-');
    push_padded(out, of_year - (153 * shifted + 2) / 5 + 1, 2);
}

/// An ISO date and time of a second counted from 1970-01-01, with the given separator.
pub(super) fn push_time(out: &mut Vec<u8>, second: u64, separator: u8) {
    push_date(out, second / 86_400);
    out.push(separator);
    push_padded(out, second / 3_600 % 24, 2);
    out.push(b':');
    push_padded(out, second / 60 % 60, 2);
    out.push(b':');
    push_padded(out, second % 60, 2);
}

/// Lower-case hexadecimal digits, at most 16 of one number.
pub(super) fn push_hex(out: &mut Vec<u8>, value: u64, digits: u32) {
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(value >> (4 * digit)) as usize & 15]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(format: SampleFormat) -> String {
        let mut out = Vec::new();
        let mut row = RowWriter::new(&mut out, format);
        row.int(i64::MIN);
        row.text(b"a\"b,\\\tc");
        row.text(b"");
        row.null();
        row.plain(b"x");
        row.end();
        row.int(0);
        row.end();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_escaped_as_copy_does() {
        assert_eq!(row(SampleFormat::Csv), "-9223372036854775808,\"a\"\"b,\\\tc\",\"\",,x\n0\n");
        assert_eq!(row(SampleFormat::Text), "-9223372036854775808\ta\"b,\\\\\\tc\t\t\\N\tx\n0\n");
    }

    #[test]
    fn dates_know_leap_years() {
        let date = |day| {
            let mut out = Vec::new();
            push_date(&mut out, day);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(19_722), "2023-12-31");
        assert_eq!(date(47_540), "2100-02-28");
        assert_eq!(date(47_541), "2100-03-01");
    }
}
