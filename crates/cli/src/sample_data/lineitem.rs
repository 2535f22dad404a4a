//! Order lines: the seven columns of TPC-H's `lineitem` that "Load data in Postgres-XL at over 9M
//! rows/sec" loads. A row has about 60 bytes as CSV and 90 in the table.

use super::rng::Rng;
use super::row::{push_date, RowWriter};

/// The article's table, without its distribution clause.
pub(super) const DDL: &str = "\
CREATE TABLE lineitem (
    l_orderkey bigint NOT NULL,
    l_partkey bigint NOT NULL,
    l_suppkey bigint NOT NULL,
    l_linenumber bigint NOT NULL,
    l_shipdate date NOT NULL,
    l_receiptdate date NOT NULL,
    l_shipinstruct char(25) NOT NULL
);
";

/// A block holds whole orders, except that its last one is cut.
pub(super) const BLOCK_ROWS: u64 = 1 << 15;

/// TPC-H's table sizes at scale factor 500, as in the article.
const PARTS: u64 = 100_000_000;
const SUPPLIERS: u64 = 5_000_000;
/// Orders are placed from 1992-01-01 to 1998-08-02.
const FIRST_DAY: u64 = 8_035;
const ORDER_DAYS: u64 = 2_406;

const INSTRUCTIONS: [&str; 4] = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"];

pub(super) fn block(rng: &mut Rng, block: u64, rows: u64, row: &mut RowWriter) {
    let mut left = rows;
    let mut order = block * BLOCK_ROWS;
    let mut date = Vec::with_capacity(16);
    while left > 0 {
        // As dbgen does, only the first 8 of every 32 keys are used.
        let key = ((order >> 3) << 5 | (order & 7)) + 1;
        let ordered = FIRST_DAY + rng.below(ORDER_DAYS);
        let lines = (1 + rng.below(7)).min(left);
        for line in 1..=lines {
            let shipped = ordered + 1 + rng.below(121);
            row.int(key as i64);
            row.int(1 + rng.below(PARTS) as i64);
            row.int(1 + rng.below(SUPPLIERS) as i64);
            row.int(line as i64);
            for day in [shipped, shipped + 1 + rng.below(30)] {
                date.clear();
                push_date(&mut date, day);
                row.plain(&date);
            }
            row.plain(rng.pick(&INSTRUCTIONS).as_bytes());
            row.end();
        }
        left -= lines;
        order += 1;
    }
}
