//! Arrays: `array_in` of `src/backend/utils/adt/arrayfuncs.c`.
//!
//! The text is read twice: once for its dimensions, which precede the elements in both of the
//! server's forms, and once for the elements. Empty sub-arrays, backslashes outside quotes and all
//! malformed arrays are left to the server, because its major versions differ there.

use super::text::{is_space, trim};
use crate::error::Refusal;
use crate::memory::{Fallible, OutOfMemory};
use crate::shape::{ArrayOf, Env, Type};
use crate::sink::{ArrayHead, RowSink};
use std::borrow::Cow;

const MAX_DIM: usize = 6; // MAXDIM of src/include/utils/array.h
/// Less than `MaxArraySize` of the server.
const MOST_ITEMS: usize = 100_000_000;

/// Writes `text` as an array.
pub fn array<S: RowSink>(
    of: &ArrayOf,
    text: &[u8],
    env: &Env,
    sink: &mut S,
) -> Result<(), Refusal> {
    if matches!(of.element, Type::Array(_) | Type::Server) {
        return Err(Refusal::Ask);
    }
    let text = trim(text);
    let mut room = [(0, 0); MAX_DIM];
    let (bounds, body) = bounds(text, &mut room)?;
    let survey = Survey::of(body, of.delimiter)?;
    let dims = survey.dims(bounds)?;
    sink.array_begin(ArrayHead {
        element_oid: of.element_oid,
        has_null: survey.has_null,
        dims: &dims[..survey.ndim],
    });
    let mut at = 0;
    for _ in 0..survey.items {
        while body[at] == b'{' || body[at] == b'}' || body[at] == of.delimiter || is_space(body[at])
        {
            at += 1;
        }
        let (item, end) = Item::at(body, at, of.delimiter)?;
        if item.is_null() {
            sink.null();
        } else {
            super::put(&of.element, &item.value()?, env, sink)?;
        }
        at = end;
    }
    sink.array_end();
    Ok(())
}

/// The lower and the upper bound of each dimension.
type Bounds = [(i32, i32)];

/// Reads the explicit bounds before the `=`, if any, into `room`. Returns them and the remaining
/// text.
fn bounds<'t, 'r>(
    text: &'t [u8],
    room: &'r mut [(i32, i32); MAX_DIM],
) -> Result<(&'r Bounds, &'t [u8]), Refusal> {
    let mut count = 0;
    let mut rest = text;
    while let [b'[', inner @ ..] = rest {
        let end = inner.iter().position(|c| *c == b']').ok_or(Refusal::Ask)?;
        let colon = inner[..end].iter().position(|c| *c == b':').ok_or(Refusal::Ask)?;
        let pair = (bound(&inner[..colon])?, bound(&inner[colon + 1..end])?);
        if count == MAX_DIM || pair.0 > pair.1 {
            return Err(Refusal::Ask);
        }
        room[count] = pair;
        count += 1;
        rest = &inner[end + 1..];
    }
    if count > 0 {
        rest = rest.strip_prefix(b"=").ok_or(Refusal::Ask)?;
    }
    Ok((&room[..count], rest))
}

fn bound(text: &[u8]) -> Result<i32, Refusal> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if !(1..=9).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::Ask);
    }
    let value = digits.iter().fold(0, |v, c| v * 10 + i32::from(c - b'0'));
    Ok(if negative { -value } else { value })
}

/// One element in its written form.
#[derive(Debug, PartialEq)]
struct Item<'t> {
    raw: &'t [u8],
    quoted: bool,
}

impl<'t> Item<'t> {
    /// The element that begins at `at`, and its end.
    fn at(text: &'t [u8], at: usize, delimiter: u8) -> Result<(Self, usize), Refusal> {
        if text[at] == b'"' {
            let mut end = at + 1;
            loop {
                match text.get(end) {
                    Some(b'"') => break,
                    Some(b'\\') => end += 2,
                    Some(_) => end += 1,
                    None => return Err(Refusal::Ask),
                }
            }
            return Ok((Item { raw: &text[at + 1..end], quoted: true }, end + 1));
        }
        let stops = |c: &u8| *c == delimiter || matches!(c, b'{' | b'}' | b'"' | b'\\');
        let len = text[at..].iter().position(stops).ok_or(Refusal::Ask)?;
        let raw = trim(&text[at..at + len]);
        if raw.is_empty() || !(text[at + len] == delimiter || text[at + len] == b'}') {
            return Err(Refusal::Ask);
        }
        Ok((Item { raw, quoted: false }, at + len))
    }

    fn is_null(&self) -> bool {
        !self.quoted && self.raw.eq_ignore_ascii_case(b"null")
    }

    /// The value, with backslashes resolved.
    fn value(&self) -> Result<Cow<'t, [u8]>, OutOfMemory> {
        if !self.raw.contains(&b'\\') {
            return Ok(Cow::Borrowed(self.raw));
        }
        let mut value = Vec::with_room(self.raw.len())?;
        let mut bytes = self.raw.iter();
        while let Some(c) = bytes.next() {
            // A backslash is never the last byte.
            value.push_within(if *c == b'\\' { *bytes.next().unwrap_or(c) } else { *c });
        }
        Ok(Cow::Owned(value))
    }
}

/// The result of the first pass.
#[derive(Debug, Default)]
struct Survey {
    ndim: usize,
    lengths: [usize; MAX_DIM],
    items: usize,
    has_null: bool,
}

/// The things that may come next.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    /// an element or an opening brace
    Value,
    /// a delimiter or a closing brace
    Next,
}

impl Survey {
    fn of(text: &[u8], delimiter: u8) -> Result<Survey, Refusal> {
        let mut survey = Survey::default();
        if let [b'{', inner @ .., b'}'] = text {
            if inner.iter().all(|c| is_space(*c)) {
                return Ok(survey);
            }
        }
        if text.first() != Some(&b'{') {
            return Err(Refusal::Ask);
        }
        // Number of values so far within each open brace, from the outermost.
        let mut open = [0usize; MAX_DIM];
        let mut depth = 0;
        let mut expect = Expect::Value;
        let mut at = 0;
        while at < text.len() {
            match (text[at], expect) {
                (c, _) if is_space(c) => at += 1,
                (b'{', Expect::Value) => {
                    // All elements are at the same depth, that of the first.
                    if depth == MAX_DIM || (survey.items > 0 && depth == survey.ndim) {
                        return Err(Refusal::Ask);
                    }
                    open[depth] = 0;
                    depth += 1;
                    at += 1;
                }
                (b'}', Expect::Next) => {
                    depth -= 1;
                    let length = &mut survey.lengths[depth];
                    if *length != 0 && *length != open[depth] {
                        return Err(Refusal::Ask);
                    }
                    *length = open[depth];
                    at += 1;
                    if depth == 0 {
                        return if at == text.len() { Ok(survey) } else { Err(Refusal::Ask) };
                    }
                    open[depth - 1] += 1;
                }
                (c, Expect::Next) if c == delimiter => {
                    expect = Expect::Value;
                    at += 1;
                }
                (_, Expect::Value) => {
                    if survey.items == 0 {
                        survey.ndim = depth;
                    }
                    let (item, end) = Item::at(text, at, delimiter)?;
                    if depth != survey.ndim || survey.items == MOST_ITEMS {
                        return Err(Refusal::Ask);
                    }
                    survey.has_null |= item.is_null();
                    survey.items += 1;
                    open[depth - 1] += 1;
                    expect = Expect::Next;
                    at = end;
                }
                _ => return Err(Refusal::Ask),
            }
        }
        Err(Refusal::Ask)
    }

    /// The length and the lower bound of each dimension.
    fn dims(&self, bounds: &Bounds) -> Result<[(i32, i32); MAX_DIM], Refusal> {
        if !bounds.is_empty() && bounds.len() != self.ndim {
            return Err(Refusal::Ask);
        }
        let mut dims = [(0, 1); MAX_DIM];
        for (at, dim) in dims.iter_mut().enumerate().take(self.ndim) {
            dim.0 = i32::try_from(self.lengths[at]).map_err(|_| Refusal::Ask)?;
            if let Some((lower, upper)) = bounds.get(at) {
                if upper - lower + 1 != dim.0 {
                    return Err(Refusal::Ask);
                }
                dim.1 = *lower;
            }
        }
        Ok(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::PgCopySink;

    fn put(text: &str) -> Result<Vec<u8>, Refusal> {
        let of = ArrayOf { element: Type::Int4, element_oid: 23, delimiter: b',' };
        let mut sink = PgCopySink::new(1);
        array(&of, text.as_bytes(), &Env::default(), &mut sink)?;
        Ok(sink.bytes().to_vec())
    }

    fn words(bytes: &[u8]) -> Vec<i32> {
        bytes.chunks(4).map(|w| i32::from_be_bytes(w.try_into().unwrap())).collect()
    }

    #[test]
    fn shapes() {
        assert_eq!(words(&put("{}").unwrap()), [12, 0, 0, 23]);
        assert_eq!(words(&put(" { 1 , NULL } ").unwrap()), [32, 1, 1, 23, 2, 1, 4, 1, -1]);
        let square = put("{{1,2},{3,\"4\"}}").unwrap();
        assert_eq!(words(&square), [60, 2, 0, 23, 2, 1, 2, 1, 4, 1, 4, 2, 4, 3, 4, 4]);
        assert_eq!(words(&put("[-1:0]={1,2}").unwrap())[4..6], [2, -1]);
    }

    #[test]
    fn padded_elements_are_bounded() {
        let of =
            ArrayOf { element: Type::Bpchar(Some(10_485_760)), element_oid: 1042, delimiter: b',' };
        let mut sink = PgCopySink::new(1).within(1 << 20);
        array(&of, format!("{{{}a}}", "a,".repeat(1000)).as_bytes(), &Env::default(), &mut sink)
            .unwrap();
        assert!(sink.is_full() && sink.bytes().len() < 1 << 20);
    }

    #[test]
    fn what_is_left_to_the_server() {
        for unsure in [
            "",
            "1",
            "{",
            "{1",
            "{1}}",
            "{1,}",
            "{,1}",
            "{{}}",
            "{{1},{2,3}}",
            "{{1},2}",
            "{1,{2}}",
            "[1:2]={1}",
            "[2:1]={}",
            "{1} x",
            "{\\1}",
            "{\"1\"2}",
            "{{{{{{{1}}}}}}}",
            "[1]={1}",
            "{1\"2\"}",
        ] {
            assert_eq!(put(unsure), Err(Refusal::Ask), "{unsure}");
        }
        assert_eq!(put("{1,x}"), Err(Refusal::Syntax));
    }
}
