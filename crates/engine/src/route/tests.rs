//! Tests of routes without a server; `crates/cli/tests/program/routes/` compares them with servers.

use super::*;
use crate::facts::{ColumnFacts, KeyColumn, Partition, PartitionKey, ServerFacts};
use pgsluice_core::shape::Type;

fn column(name: &str, ty: Type) -> ColumnFacts {
    ColumnFacts {
        number: 1,
        name: name.into(),
        type_name: "any".into(),
        type_id: (0, -1),
        plain_type: "any".into(),
        base: (0, -1),
        base_name: "any".into(),
        reader: None,
        cast_by_user: false,
        ty,
        not_null: false,
        default: None,
        volatile_default: false,
        generated: false,
        identity: false,
    }
}

fn parent(strategy: char, columns: &[&str]) -> Partition {
    let column = |name: &&str| KeyColumn {
        name: Some(name.to_string()),
        usual_class: true,
        bytewise: false,
        deterministic: true,
    };
    let columns = columns.iter().map(column).collect();
    let key = Some(PartitionKey { strategy, columns });
    Partition { oid: 1, kind: 'p', sql: "root".into(), key, ..Partition::default() }
}

fn leaf(sql: &str, bound: &str) -> Partition {
    let (sql, bound) = (sql.to_owned(), bound.to_owned());
    Partition { oid: 2, parent: 1, sql, kind: 'r', bound, writable: true, ..Partition::default() }
}

/// The columns `a` (integer) and `b` (text) in the order `b`, `a`.
fn made(partitions: &[Partition]) -> Result<(Router, Vec<NotRouted>), String> {
    let table = [column("a", Type::Int4), column("b", Type::Text)];
    let server = ServerFacts { encoding: "UTF8".into(), ..ServerFacts::default() };
    router(partitions, &table, &["b".into(), "a".into()], &server)
}

/// The router of a table that is partitioned by `a`.
fn router_of(strategy: char, leaves: &[Partition]) -> Router {
    made(&[&[parent(strategy, &["a"])], leaves].concat()).unwrap().0
}

/// A row in the binary form.
fn row(b: Option<&str>, a: Option<i32>) -> Vec<u8> {
    let mut row = vec![0, 2];
    for value in [b.map(|b| b.as_bytes().to_vec()), a.map(|a| a.to_be_bytes().to_vec())] {
        let length = value.as_ref().map_or(-1, |v| v.len() as i32);
        row.extend_from_slice(&length.to_be_bytes());
        row.extend(value.unwrap_or_default());
    }
    row
}

/// The leaf of a row by its index; the number of leaves stands for the root.
fn to(router: &Router, b: Option<&str>, a: Option<i32>) -> usize {
    router.split(&row(b, a), Vec::new()).unwrap().parts[0].0
}

#[test]
fn rows_keep_their_order_within_a_table() {
    let leaves = [leaf("one", "FOR VALUES IN (1)"), leaf("two", "FOR VALUES IN (2, NULL)")];
    let router = router_of('l', &leaves);
    let rows = [(Some(2), "x"), (Some(1), "yy"), (None, ""), (Some(3), "zzz"), (Some(1), "w")];
    let bytes: Vec<u8> = rows.iter().flat_map(|(a, b)| row(Some(b), *a)).collect();
    let split = router.split(&bytes, vec![9; 3]).unwrap();
    let of = |rows: &[(Option<i32>, &str)]| -> Vec<u8> {
        rows.iter().flat_map(|(a, b)| row(Some(b), *a)).collect()
    };
    assert_eq!(split.rows_of(0), Some(&of(&[(Some(1), "yy"), (Some(1), "w")])[..]));
    assert_eq!(split.rows_of(1), Some(&of(&[(Some(2), "x"), (None, "")])[..]));
    assert_eq!(split.rows_of(2), Some(&of(&[(Some(3), "zzz")])[..]));
    assert_eq!((split.rows_of(3), split.for_root), (None, 1));
    assert!(router.split(&bytes[..bytes.len() - 1], Vec::new()).is_none(), "cut off");
}

#[test]
fn ranges_take_their_lower_end_and_no_more_than_they_say() {
    let leaves = [
        leaf("upper", "FOR VALUES FROM (10) TO (MAXVALUE)"),
        leaf("lower", "FOR VALUES FROM ('-5') TO (5)"),
        leaf("rest", "DEFAULT"),
    ];
    let router = router_of('r', &leaves);
    let cases = [(-6, 2), (-5, 1), (4, 1), (5, 2), (9, 2), (10, 0), (i32::MAX, 0)];
    for (a, table) in cases {
        assert_eq!(to(&router, None, Some(a)), table, "{a}");
    }
    assert_eq!(to(&router, None, None), 2, "NULL is in no range");
}

#[test]
fn what_is_not_surely_understood_is_the_servers_to_route() {
    let unread = [parent('r', &["a"]), leaf("odd", "FOR VALUES FROM ('one') TO ('two')")];
    assert!(made(&unread).unwrap_err().contains("odd"));
    let by_text = [parent('r', &["b"]), leaf("p", "FOR VALUES FROM ('a') TO ('b')")];
    assert!(made(&by_text).is_err(), "a collation orders text");
    let foreign = Partition { kind: 'f', ..leaf("far", "FOR VALUES IN (1)") };
    let (router, refused) =
        made(&[parent('l', &["a"]), foreign, leaf("near", "FOR VALUES IN (2)")]).unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!((to(&router, None, Some(1)), to(&router, None, Some(2))), (1, 0));
    let other = Partition { other_defaults: vec!["c".into()], ..leaf("p", "DEFAULT") };
    assert!(made(&[parent('l', &["a"]), other]).is_err(), "column c is not in the input");
}

/// The server computes the same hash for a number in all integer types.
#[test]
fn integers_of_any_width_have_one_hash() {
    for number in [0, 1, -1, 42, i32::MAX, i32::MIN] {
        assert_eq!(hash::of_u32(number as u32), hash::of_i64(i64::from(number)), "{number}");
    }
}
