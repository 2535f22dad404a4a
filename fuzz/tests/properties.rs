//! Fast equals naive, and any chunking equals the whole, on generated input.

use pgsluice_core::scan::binary::HEADER_LEN;
use pgsluice_core::scan::{
    quote_strays, Cuts, Dialect, Eol, Format, Next, Record, Scanner, Splitter, StrayQuotes,
    MAX_FIELDS,
};
use pgsluice_core::shape::{Env, Type};
use pgsluice_core::sink::{PgCopySink, RowSink};
use pgsluice_core::types::receive::receive;
use pgsluice_fuzz::damaged::Damaged;
use pgsluice_fuzz::hostile::{self, ReadCase};
use pgsluice_fuzz::rng::Random;
use pgsluice_fuzz::{binary, scan, split, types};

const STRAY_QUOTES: [StrayQuotes; 3] =
    [StrayQuotes::Copy, StrayQuotes::Error, StrayQuotes::Literal];

#[test]
fn hostile_files_are_scanned_alike_however_it_is_done() {
    for seed in 0..20_000 {
        let mut rng = Random::new(seed);
        let mut case = ReadCase::new(&mut rng, if seed % 2 == 0 { 15 } else { 18 });
        case.dialect.stray_quotes = rng.pick(&STRAY_QUOTES);
        let size = 1 + rng.below(90);
        scan::check(&case.dialect, &case.data, size);
        split::check(&case.dialect, &case.data, size);
    }
}

/// Where special bytes stand so close, every one meets every edge of a block.
#[test]
fn soups_of_special_bytes_are_scanned_alike() {
    for seed in 0..20_000 {
        let mut rng = Random::new(seed);
        let format = if rng.once_in(3) { Format::Text } else { Format::Csv };
        let major = rng.pick(&[15, 18]);
        let mut dialect = hostile::dialect(&mut rng, format, major);
        dialect.stray_quotes = rng.pick(&STRAY_QUOTES);
        // Encodings in which ASCII bytes end characters are scanned as they are.
        let wide = rng.once_in(3);
        if wide {
            dialect = dialect.in_encoding(rng.pick(&["SJIS", "GB18030"]));
        }
        let eol: &[u8] = rng.pick(&[b"\n", b"\r\n", b"\r"]);
        let mut soup = eol.to_vec();
        for _ in 0..rng.below(200) {
            match rng.below(9) {
                _ if wide && rng.once_in(3) => {
                    soup.extend_from_slice(&[rng.pick(b"\x95\xb1"), rng.pick(b"\\\\a|~0\n\"")]);
                }
                0 => soup.extend_from_slice(eol),
                1 => soup.push(dialect.delimiter),
                2 | 3 => soup.push(dialect.quote),
                4 => soup.push(dialect.escape),
                5 => soup.extend_from_slice(&[dialect.escape, dialect.quote]),
                6 => soup.extend_from_slice(b"\\n"),
                7 => soup.push(b'\\'),
                _ => soup.extend(std::iter::repeat_n(b'a', rng.below(40))),
            }
        }
        let size = 1 + rng.below(200);
        scan::check(&dialect, &soup, size);
        split::check(&dialect, &soup, size);
    }
}

/// Stray quotes cost the lines that have them, and no other record, however the file is cut.
#[test]
fn damaged_lines_are_refused_and_all_good_records_found() {
    let (mut damaged, mut good) = (0, 0);
    for seed in 0..10_000 {
        let mut rng = Random::new(seed);
        let every = rng.pick(&[1, 2, 3, 10, 100]);
        let file = Damaged::new(&mut rng, 40, every);
        let text = String::from_utf8_lossy(&file.data);
        let found = scan::naive(&file.dialect, &file.data).found();
        assert_eq!(found, (file.records, file.places.clone()), "seed {seed}: {text:?}");
        let size = 1 + rng.below(200);
        scan::check(&file.dialect, &file.data, size);
        split::check(&file.dialect, &file.data, size);
        // Where they are characters, they are where they were.
        let literal = Dialect { stray_quotes: StrayQuotes::Literal, ..file.dialect };
        let found = scan::naive(&literal, &file.data);
        assert_eq!(found.found().0, file.records + file.places.len(), "seed {seed}: {text:?}");
        let quoted = quote_strays(&file.data, &literal, Eol::Unknown);
        let as_copy = scan::naive(&Dialect::csv(), quoted.as_deref().unwrap_or(&file.data));
        assert_eq!(as_copy.values(), found.values(), "seed {seed}: {text:?}");
        split::check(&literal, &file.data, size);
        damaged += file.places.len();
        good += file.records;
    }
    assert!(damaged > 10_000 && good > 10_000, "the generator has lost its balance");
}

#[test]
fn binary_streams_are_read_alike_in_any_blocks() {
    let (mut tuples, mut faults) = (0, 0);
    for seed in 0..20_000 {
        let mut rng = Random::new(seed);
        let columns = rng.below(5) as i16;
        let stream = binary::stream(&mut rng, columns);
        let data = &stream[HEADER_LEN.min(stream.len())..];
        let whole = binary::whole(data, columns);
        assert_eq!(binary::in_blocks(data, columns, 1 + rng.below(40)), whole);
        tuples += whole.0;
        faults += usize::from(whole.1.is_some());
    }
    assert!(tuples > 10_000 && faults > 2000, "the generator has lost its balance");
}

/// What nests is bounded by a refusal, not by the stack; what is long is just long.
#[test]
fn deep_and_long_values_end_in_an_answer() {
    let array = &types::family("array")[1];
    for (open, ty) in [("[", Type::Jsonb), ("{\"a\":", Type::Json), ("{", array.clone())] {
        for depth in [10, 5000, 1_000_000] {
            types::check(&ty, open.repeat(depth).as_bytes());
        }
    }
    for ty in [Type::Numeric(-1), Type::Float8, Type::Int8, Type::Interval(-1), Type::Varbit(None)]
    {
        types::check(&ty, "1".repeat(3_000_000).as_bytes());
    }
}

#[test]
fn a_record_of_a_million_columns_and_one_without_end_are_bounded() {
    let (mut record, dialect) = (Record::default(), Dialect::csv());
    for line in ["x\n".to_string() + &",".repeat(1_000_000) + "\n", "\"".repeat(2_000_001)] {
        let mut scanner = Scanner::new(line.as_bytes(), true, &dialect, Eol::Unknown);
        while scanner.next(&mut record) == Ok(Next::Record) {}
        assert!(record.len() <= MAX_FIELDS);
    }
    let mut splitter = Splitter::new(&dialect, Eol::Nl);
    for _ in 0..100 {
        assert_eq!(splitter.feed(&[b'x'; 1 << 16]), Cuts::default());
    }
}

/// The binary form of a value is taken as it is or not at all; the ends of numbers are where
/// mistakes are made.
#[test]
fn binary_values_are_taken_unchanged_or_not_at_all() {
    let families = ["integer", "datetime", "interval", "network", "float", "bits"];
    let all: Vec<Type> = families.iter().flat_map(|name| types::family(name)).collect();
    let mut taken = 0;
    for seed in 0..50_000 {
        let mut rng = Random::new(seed);
        let ty = &all[rng.below(all.len())];
        let length = rng.pick(&[1, 2, 4, 6, 8, 12, 16]);
        let mut value = Vec::new();
        while value.len() < length {
            match rng.below(5) {
                0 => value.extend_from_slice(&i32::MIN.to_be_bytes()),
                1 => value.extend_from_slice(&i32::MAX.to_be_bytes()),
                2 => value.extend_from_slice(&[0; 4]),
                3 => value.extend_from_slice(&57_599i32.to_be_bytes()),
                _ => value.push(rng.bits() as u8),
            }
        }
        value.truncate(length);
        let mut sink = PgCopySink::new(1);
        sink.begin();
        if receive(ty, &value, &Env::default(), &mut sink).is_err() {
            continue;
        }
        sink.end();
        assert!(*ty == Type::Bool || sink.bytes()[6..] == value, "{ty:?}: {value:?}");
        if let (Type::TimeTz(_), Some(zone)) = (ty, value.last_chunk()) {
            assert!(i32::from_be_bytes(*zone).unsigned_abs() < 57_600, "{value:?}");
        }
        taken += 1;
    }
    assert!(taken > 2000, "{taken} were taken");
}
