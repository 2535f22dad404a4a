use super::*;
use crate::page::heap::SIZE;

fn column(len: i16, align: u8) -> HeapColumn {
    HeapColumn { len, align, packable: true, element_align: 4, given: None }
}

/// The output of `heap_page_items` of pageinspect for
/// `CREATE TABLE t (a int, b text, c bigint); INSERT INTO t VALUES (1, 'xy', NULL), (2, NULL, 3)`.
#[test]
fn tuples_are_as_the_server_forms_them() {
    let columns = [column(4, 4), column(-1, 4), column(8, 8)];
    let mut out = [0xaa; 128];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    sink.put_i32(1);
    sink.put_bytes(b"xy");
    sink.null();
    sink.end();
    assert_eq!(sink.formed(), Some(Formed { offset: 0, len: 31, blank: 0, asks: 0 }));
    sink.begin();
    sink.put_i32(2);
    sink.null();
    sink.put_i64(3);
    sink.end();
    assert_eq!(sink.formed(), Some(Formed { offset: 32, len: 40, blank: 0, asks: 0 }));
    // natts, infomask (HASNULL | HASVARWIDTH), hoff, bitmap
    assert_eq!(out[18..24], [3, 0, 3, 0, 24, 0b011]);
    assert_eq!(out[24..32], [1, 0, 0, 0, 0x07, b'x', b'y', 0]);
    assert_eq!(out[32 + 18..32 + 24], [3, 0, 1, 0, 24, 0b101]);
    assert_eq!(out[56..72], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_row_that_does_not_fit_leaves_room_for_none() {
    let columns = [column(-1, 4)];
    let mut out = [0; 40];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    for (len, fits) in [(16, false), (15, true), (0, false)] {
        sink.begin();
        sink.put_bytes(&vec![b'z'; len]);
        sink.end();
        assert_eq!(sink.formed().is_some(), fits, "{len} bytes");
    }
    assert_eq!(sink.position(), 40);
}

#[test]
fn a_wide_bitmap_moves_the_values() {
    let columns: Vec<_> = (0..17).map(|_| column(2, 2)).collect();
    let mut out = [0xaa; 128];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    for value in 0..16 {
        sink.put_i16(value);
    }
    sink.null();
    sink.end();
    assert_eq!(sink.formed(), Some(Formed { offset: 0, len: 64, blank: 0, asks: 0 }));
    assert_eq!(out[22..32], [32, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[32..36], [0, 0, 1, 0]);
}

#[test]
fn a_value_for_the_server_that_does_not_fit_is_a_column_all_the_same() {
    let columns = [HeapColumn { element_align: 0, ..column(-1, 4) }, column(-1, 4)];
    let mut out = [0; 96];
    let (mut asks, mut scratch) = ([Ask::default()], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    sink.ask(&[b'1'; 96]).unwrap();
    sink.array_begin(ArrayHead { element_oid: 23, has_null: false, dims: &[(1, 1)] });
    sink.put_i32(7);
    sink.array_end();
    sink.end();
    assert_eq!(sink.formed(), None);
}

#[test]
fn without_room_for_any_value_of_the_server_s_the_row_is_refused() {
    let columns = [column(-1, 4)];
    let mut out = [0; 96];
    let mut scratch = scratch(64);
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut [], &mut scratch);
    sink.begin();
    assert_eq!(sink.ask(b"(1,2)"), Err(Refusal::Ask));
}

#[test]
fn what_only_the_server_reads_is_kept_as_text() {
    let columns = [column(4, 4), column(-1, 4)];
    let mut out = [0; 96];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    sink.ask(b"undone").unwrap();
    sink.undo();
    sink.begin();
    sink.put_i32(7);
    sink.ask(b"12:00 noon").unwrap();
    sink.end();
    assert_eq!(sink.formed(), Some(Formed { offset: 0, len: 28, blank: 0, asks: 1 }));
    assert_eq!(asks[0], Ask { offset: 85, len: 10, column: 1, row: 0 });
    assert_eq!(&out[85..], b"12:00 noon\0");
    assert_eq!(out[23], 0b01);
}

#[test]
fn an_array_that_does_not_fit_makes_no_tuple() {
    let columns = [column(-1, 4)];
    let mut out = [0; 4096];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    for (items, fits) in [(8, true), (9, true), (1000, false), (1, true)] {
        sink.begin();
        let dims = [(items, 1)];
        sink.array_begin(ArrayHead { element_oid: 23, has_null: true, dims: &dims });
        for item in 0..items - 1 {
            sink.put_i32(item);
        }
        sink.null();
        sink.array_end();
        sink.end();
        assert_eq!(sink.formed().is_some(), fits, "{items} items");
    }
    assert_eq!(scratch.array.capacity(), 64);
}

/// Scratch memory for arrays of `array` bytes.
fn scratch(array: usize) -> Scratch {
    Scratch { array: Vec::with_capacity(array), ..Scratch::default() }
}

#[test]
fn jsonb_is_formed_and_what_is_not_json_leaves_nothing() {
    let columns = [column(-1, 4)];
    let mut out = [0; 96];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(0));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    sink.begin();
    assert_eq!(sink.put_jsonb(b"{\"a\":"), Err(Refusal::Syntax));
    sink.undo();
    sink.begin();
    assert_eq!(sink.put_jsonb(b"{\"a\": 1}"), Ok(()));
    sink.end();
    // A header of one byte; one pair; a key of one byte at its end; 3 bytes of padding and a number
    // of 8 bytes.
    let words = [0x2000_0001, 0x8000_0001, 0x1000_000b_u32];
    let mut expected = vec![(1 + 24) << 1 | 1];
    expected.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    expected.extend([b'a', 0, 0, 0, 8 << 2, 0, 0, 0, 0, 0x80, 1, 0]);
    assert_eq!(sink.formed().map(|f| f.len), Some(24 + 25));
    assert_eq!(out[24..24 + 25], expected);
}

#[test]
fn padding_is_written_and_what_cannot_fit_takes_no_memory() {
    let columns = [column(-1, 4)];
    let mut out = [0xaa; 1024];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(0));
    let mut sink = HeapSink::new(&columns, &mut out, 0, &mut asks, &mut scratch);
    for (spaces, fits) in [(2, true), (300, true), (1 << 50, false), (257, true)] {
        sink.begin();
        sink.put_padded(b"x", spaces);
        sink.end();
        assert_eq!(sink.formed().is_some(), fits, "{spaces} spaces");
    }
    assert_eq!(out[24..28], [4 << 1 | 1, b'x', b' ', b' ']);
    assert!(out[32 + 29..][..300].iter().all(|c| *c == b' '));
}

/// Packs rows of one `text` column of these lengths. Returns the memory, the pages and each row's
/// position.
fn packed(lengths: &[usize], reserve: usize) -> (Vec<u8>, HeapPages, Vec<Formed>) {
    let columns = [column(-1, 4)];
    let mut out = vec![0xaa; 40 * SIZE];
    let (mut asks, mut scratch) = ([Ask::default(); 2], scratch(64));
    let mut pages = HeapPages::new(2032, reserve);
    let mut sink = HeapSink::new(&columns, &mut out, pages.start(), &mut asks, &mut scratch);
    let mut places = Vec::new();
    for &len in lengths {
        sink.begin();
        sink.put_bytes(&vec![b'z'; len]);
        sink.end();
        places.push(*sink.pack(&mut pages).expect("room"));
    }
    (out, pages, places)
}

/// The output of `page_header` and `heap_page_items` of pageinspect for
/// `INSERT INTO t SELECT repeat('z', 60) FROM generate_series(1, 300)` into a new table.
#[test]
fn pages_are_filled_as_the_server_fills_them() {
    let (out, pages, places) = packed(&[60; 300], 0);
    assert_eq!((pages.whole(), pages.begun(), pages.rows(), pages.all()), (3, 4, 264, true));
    for page in out[..3 * SIZE].chunks(SIZE) {
        let words: Vec<_> =
            page[12..20].chunks(2).map(|w| u16::from_le_bytes([w[0], w[1]])).collect();
        assert_eq!(words, [376, 448, 8192, 8192 | 4]);
        assert!(page[..12].iter().chain(&page[20..24]).chain(&page[376..448]).all(|b| *b == 0));
        // lp_off 8104, LP_NORMAL, lp_len 85
        assert_eq!(page[24..28], (8104u32 | 1 << 15 | 85 << 17).to_le_bytes());
        assert_eq!(page[8104 + 24..8104 + 88], [&[0x7b][..], &[b'z'; 60], &[0; 3]].concat());
    }
    assert_eq!(places[88].offset, SIZE + 8104);
    assert_eq!(places[264].offset, 3 * SIZE + 8104);
    // WITH (fillfactor = 50)
    let (out, pages, _) = packed(&[60; 300], SIZE / 2);
    assert_eq!((pages.whole(), pages.rows()), (6, 264));
    assert_eq!(out[12..16], [200, 0, 0xe0, 0x10]);
}

#[test]
fn a_row_that_no_page_takes_ends_them() {
    let mut lengths = [60; 300];
    (lengths[100], lengths[200]) = (3000, 3000);
    let (out, pages, places) = packed(&lengths, 0);
    assert_eq!((pages.whole(), pages.rows(), pages.all()), (1, 88, false));
    assert!(places[100..].windows(2).all(|w| w[0].offset < w[1].offset));
    assert_eq!(out[places[299].offset + 24], 0x7b);
}
