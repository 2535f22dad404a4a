//! `pgsluice_core.h` says what the Rust side says: sizes, offsets, constants.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use std::mem::{offset_of, size_of};
use std::process::Command;

use pgsluice_ffi::{
    AskDef, ColumnDef, DialectDef, EnvDef, IndexAttributeDef, IndexColumnDef, IndexRulesDef,
    IndexSpreadDef, IndexStatus, IndexStepDef, IndexValuesDef, LabelDef, LargePieces, Row, Slice,
    Status,
};

/// What a C program that includes the header prints for each expression.
fn in_c(expressions: &[String]) -> Vec<usize> {
    let dir = std::env::temp_dir().join(format!("pgsluice-header-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let prints: String =
        expressions.iter().map(|e| format!("printf(\"%zu\\n\", (size_t) ({e}));\n")).collect();
    let source = format!(
        "#include <stdio.h>\n#include \"{}/pgsluice_core.h\"\nint main(void) {{ {prints} return 0; }}\n",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::write(dir.join("a.c"), source).unwrap();
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-o", "a", "a.c"])
        .current_dir(&dir)
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let said = Command::new(dir.join("a")).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    String::from_utf8(said.stdout).unwrap().lines().map(|l| l.parse().unwrap()).collect()
}

macro_rules! layout {
    ($expected:ident, $rust:ty, $c:literal, $($field:ident $cfield:literal),*) => {
        $expected.push((format!("sizeof({})", $c), size_of::<$rust>()));
        $($expected.push((format!("offsetof({}, {})", $c, $cfield), offset_of!($rust, $field)));)*
    };
}

#[test]
fn the_header_is_in_step() {
    let mut expected: Vec<(String, usize)> = Vec::new();
    layout!(expected, LargePieces, "SluiceLargePieces", alloc "alloc", realloc "realloc", free "free");
    layout!(expected, LabelDef, "SluiceLabel", label "label", len "len", oid "oid");
    layout!(expected, ColumnDef, "SluiceColumn", type_oid "type_oid", typmod "typmod",
        source "source", labels "labels", nlabels "nlabels", given "given",
        given_len "given_len", len "len", align "align", element_align "element_align",
        packable "packable", not_null "not_null", force_null "force_null",
        force_not_null "force_not_null");
    layout!(expected, DialectDef, "SluiceDialect", null "null", null_len "null_len",
        default "default_marker", default_len "default_len", binary "binary", csv "csv", dot_ends "dot_ends",
        delimiter "delimiter", quote "quote", escape "escape");
    layout!(expected, EnvDef, "SluiceEnv", utc "utc", date_order "date_order", money_c "money_c", single_byte "single_byte");
    layout!(expected, Row, "SluiceRow", offset "offset", len "len", blank "blank",
        record "record", line "line", asks "asks");
    layout!(expected, AskDef, "SluiceAsk", offset "offset", len "len", column "column", row "row");
    layout!(expected, Slice, "SluiceSlice", input "input", input_len "input_len", arena "arena",
        arena_len "arena_len", arena_used "arena_used", rows "rows", rows_len "rows_len",
        asks "asks", asks_len "asks_len", rows_used "rows_used", consumed "consumed",
        lines "lines", eol "eol", last "last", pack "pack",
        page_longest "page_longest", page_reserve "page_reserve", page_limit "page_limit", pages "pages", paged "paged");
    for (name, status) in [
        ("SLUICE_MORE", Status::More),
        ("SLUICE_FULL", Status::Full),
        ("SLUICE_ASK", Status::Ask),
        ("SLUICE_ENDED", Status::Ended),
        ("SLUICE_PANIC", Status::Panic),
        ("SLUICE_MEMORY", Status::Memory),
    ] {
        expected.push((name.into(), status as usize));
    }
    expected.push(("sizeof(SluiceStatus)".into(), size_of::<Status>()));
    index_layout(&mut expected);
    let expressions: Vec<String> = expected.iter().map(|(e, _)| e.clone()).collect();
    for ((expression, rust), c) in expected.iter().zip(in_c(&expressions)) {
        assert_eq!(*rust, c, "{expression}");
    }
}

fn index_layout(expected: &mut Vec<(String, usize)>) {
    layout!(expected, IndexColumnDef, "SluiceIndexColumn", len "len", attribute "attribute",
        align "align");
    layout!(expected, IndexAttributeDef, "SluiceIndexAttribute", len "len", align "align",
        by_value "by_value", order "order", descending "descending", nulls_first "nulls_first",
        exact "exact");
    layout!(expected, IndexValuesDef, "SluiceIndexValues", images "images", starts "starts",
        count "count");
    layout!(expected, IndexRulesDef, "SluiceIndexRules", keys "keys", memory "memory",
        leaf_free "leaf_free", unique "unique", nulls_not_distinct "nulls_not_distinct",
        first_in_table "first_in_table", reports_pairs "reports_pairs", deduplicate "deduplicate",
        mixed "mixed", interrupted "interrupted");
    layout!(expected, IndexSpreadDef, "SluiceIndexSpread", rows "rows", prefix "prefix",
        place "place", varying_prefix "varying_prefix", varying_place "varying_place");
    layout!(expected, IndexStepDef, "SluiceIndexStep", bytes "bytes", len "len", start "start",
        end "end", rows "rows", root "root", level "level");
    for (name, status) in [
        ("GO", IndexStatus::Go),
        ("FULL", IndexStatus::Full),
        ("UNFIT", IndexStatus::Unfit),
        ("WRITE", IndexStatus::Write),
        ("READ", IndexStatus::Read),
        ("PAGES", IndexStatus::Pages),
        ("ADD", IndexStatus::Add),
        ("DONE", IndexStatus::Done),
        ("DUPLICATE", IndexStatus::Duplicate),
        ("NO_MEMORY", IndexStatus::NoMemory),
        ("CORRUPT", IndexStatus::Corrupt),
        ("PANIC", IndexStatus::Panic),
        ("CROWDED", IndexStatus::Crowded),
        ("INTERRUPTED", IndexStatus::Interrupted),
    ] {
        expected.push((format!("SLUICE_INDEX_{name}"), status as usize));
    }
    expected.push(("sizeof(SluiceIndexStatus)".into(), size_of::<IndexStatus>()));
}
