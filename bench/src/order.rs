//! The order of the methods in a round.

/// The order of `n` methods in a round, as indexes: a row of a Williams square. In `n` rounds, or
/// in `2 n` if `n` is odd, each method follows each other one equally often. A run leaves work for
/// the disk that slows down the next run, so the next method must not be the same one each time.
/// Every second round reverses the order of the one before it. So each of two methods comes first in
/// half of the rounds, even if there are fewer rounds than the square has rows.
///
/// Source: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
/// treatments", Australian Journal of Scientific Research A 2 (1949).
pub fn of_round(n: usize, round: u32) -> Vec<usize> {
    let round = round as usize;
    // The sequence 0, 1, n - 1, 2, n - 2 …: the distance of each adjacent pair is different.
    let zigzag = (0..n).map(|i| if i % 2 == 1 { i.div_ceil(2) } else { n - i / 2 });
    // If n is even, the second half of the rows is the first half reversed.
    let row = if n.is_multiple_of(2) { round / 2 % (n / 2).max(1) } else { round / 2 };
    let mut order: Vec<usize> = zigzag.map(|place| (place + row) % n).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The order of methods in a round, where each method belongs to a group. The methods of a group
/// run together. The groups follow one another in the order of [`of_round`], and so do the methods
/// within each. Methods that are compared with each other are in one group, so that a drift of the
/// machine within a round affects both alike.
pub fn of_groups(groups: &[&str], round: u32) -> Vec<usize> {
    let mut names: Vec<&str> = Vec::new();
    for name in groups {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut order = Vec::with_capacity(groups.len());
    for at in of_round(names.len(), round) {
        let of_group: Vec<usize> = (0..groups.len()).filter(|i| groups[*i] == names[at]).collect();
        order.extend(of_round(of_group.len(), round).into_iter().map(|i| of_group[i]));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::{of_groups, of_round};
    use std::collections::BTreeMap;

    #[test]
    fn everybody_comes_once_in_a_round_and_follows_everybody_equally_often() {
        for n in 1..16 {
            let rounds = if n % 2 == 0 { n } else { 2 * n };
            let mut follows = BTreeMap::new();
            for round in 0..rounds {
                let order = of_round(n, round as u32);
                let mut all = order.clone();
                all.sort_unstable();
                assert_eq!(all, (0..n).collect::<Vec<_>>(), "{n} methods, round {round}");
                for pair in order.windows(2) {
                    *follows.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            assert_eq!(follows.len(), n * (n - 1), "{n} methods: {follows:?}");
            let often = rounds / n;
            assert!(follows.values().all(|times| *times == often), "{n} methods: {follows:?}");
        }
    }

    #[test]
    fn a_group_runs_as_one() {
        let groups = ["a", "b", "a", "c", "b", "a"];
        for round in 0..12 {
            let order = of_groups(&groups, round);
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..groups.len()).collect::<Vec<_>>(), "round {round}");
            let changes = order.windows(2).filter(|w| groups[w[0]] != groups[w[1]]).count();
            assert_eq!(changes, 2, "round {round}: {order:?}");
        }
        assert_eq!(of_groups(&["a"; 5], 3), of_round(5, 3));
    }

    #[test]
    fn of_two_methods_each_is_first_in_half_of_the_rounds() {
        assert_eq!([0, 1, 2].map(|round| of_round(2, round)), [[0, 1], [1, 0], [0, 1]]);
        for n in 2..33 {
            let orders: Vec<Vec<usize>> = (0..5).map(|round| of_round(n, round)).collect();
            let place = |order: &Vec<usize>, method| order.iter().position(|m| *m == method);
            for (a, b) in (0..n).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let first = orders.iter().filter(|o| place(o, a) < place(o, b)).count();
                assert!(first == 2 || first == 3, "{n} methods: {a} is before {b} {first} times");
            }
        }
    }
}
