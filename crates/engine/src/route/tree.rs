//! Builds the router from the partitions in the catalog.

use super::bounds::{parse, Bound, Datum};
use super::{Edge, Key, Kind, Node, Router, Rule, Span, Target, Value, MOST};
use crate::facts::{ColumnFacts, KeyColumn, Partition, PartitionKey, ServerFacts};
use pgsluice_core::shape::{Env, Type};
use pgsluice_core::sink::{PgCopySink, RowSink};
use pgsluice_core::types;
use std::cmp::Ordering;
use std::collections::HashMap;

/// The maximum modulus for which a table of remainders is created.
const MODULUS: u64 = 1 << 20;

/// Why rows of a partition are not sent directly to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRouted {
    /// quoted and qualified
    pub partition: String,
    /// the reason
    pub why: String,
}

/// Returns the router for rows of these columns, and the partitions that it leaves to the server.
///
/// # Errors
///
/// The reason why the server must route every row.
pub fn router(
    partitions: &[Partition],
    table: &[ColumnFacts],
    sent: &[String],
    server: &ServerFacts,
) -> Result<(Router, Vec<NotRouted>), String> {
    let root = partitions.iter().find(|p| p.parent == 0).ok_or("its partitions are not known")?;
    let mut tree = Tree {
        partitions,
        table,
        sent,
        env: server.env(),
        leaves: Vec::new(),
        needed: Vec::new(),
        refused: Vec::new(),
    };
    let node = tree.node(root)?;
    let Tree { leaves, needed, refused, .. } = tree;
    let mut sorted = needed.clone();
    sorted.sort_unstable();
    let slots: Vec<usize> =
        needed.iter().map(|n| sorted.iter().position(|s| s == n).unwrap_or(0)).collect();
    let mut node = node;
    renumber(&mut node, &slots);
    match (leaves.is_empty(), refused.first()) {
        (true, Some(NotRouted { partition, why })) => Err(format!("{partition}: {why}")),
        (true, None) => Err("it has no partitions".into()),
        _ => {
            let ascii_only = server.encoding != "UTF8";
            let partitions = partitions.to_vec();
            let needed = sorted;
            let freeze = false;
            let router = Router { leaves, partitions, freeze, node, needed, ascii_only };
            Ok((router, refused))
        }
    }
}

/// Adapts the slots of the keys: they were assigned in the order in which the columns were found,
/// but rows are read from left to right.
fn renumber(node: &mut Node, slots: &[usize]) {
    node.keys.iter_mut().for_each(|key| key.slot = slots[key.slot]);
    let within = |target: &mut Target| {
        if let Target::Table(node) = target {
            renumber(node, slots);
        }
    };
    within(&mut node.default);
    match &mut node.rule {
        Rule::Hash { targets, .. } | Rule::List { targets, .. } => {
            targets.iter_mut().for_each(within);
        }
        Rule::Range(spans) => spans.iter_mut().for_each(|span| within(&mut span.target)),
    }
}

struct Tree<'a> {
    partitions: &'a [Partition],
    table: &'a [ColumnFacts],
    sent: &'a [String],
    env: Env,
    leaves: Vec<String>,
    needed: Vec<usize>,
    refused: Vec<NotRouted>,
}

impl Tree<'_> {
    fn node(&mut self, table: &Partition) -> Result<Node, String> {
        let key = table.key.as_ref().ok_or("its partition key is not known")?;
        if key.columns.len() > MOST {
            return Err(format!("its key has more than {MOST} columns"));
        }
        let (keys, types): (Vec<Key>, Vec<Type>) = key
            .columns
            .iter()
            .map(|column| self.key(key, column))
            .collect::<Result<Vec<_>, String>>()?
            .into_iter()
            .unzip();
        if self.needed.len() > MOST {
            return Err(format!("its keys have more than {MOST} columns"));
        }
        let mut default = Target::Root;
        let mut bounds = Vec::new();
        for child in self.partitions.iter().filter(|p| p.parent == table.oid) {
            let bound = parse(&child.bound);
            let bound =
                bound.ok_or_else(|| format!("the bound of {} is not understood", child.sql))?;
            let target = self.target(child);
            match bound {
                Bound::Default => default = target,
                bound => bounds.push((child, bound, target)),
            }
        }
        let rule = match key.strategy {
            'h' => hash(bounds)?,
            'l' => self.list(bounds, &keys, &types)?,
            'r' => self.range(bounds, &keys, &types)?,
            _ => return Err("its partition strategy is not known".into()),
        };
        Ok(Node { keys, rule, default })
    }

    /// Returns the target for the rows of a partition. If they cannot be routed, it is the root.
    fn target(&mut self, child: &Partition) -> Target {
        let before = (self.leaves.len(), self.needed.len());
        let made = match self.obstacle(child) {
            Some(why) => Err(why),
            None if child.kind == 'p' => self.node(child).map(|node| Target::Table(Box::new(node))),
            None => {
                self.leaves.push(child.sql.clone());
                Ok(Target::Leaf(self.leaves.len() - 1))
            }
        };
        made.unwrap_or_else(|why| {
            self.leaves.truncate(before.0);
            self.needed.truncate(before.1);
            self.refused.push(NotRouted { partition: child.sql.clone(), why });
            Target::Root
        })
    }

    /// Why a COPY into this leaf would have another effect than one into the root.
    fn obstacle(&self, leaf: &Partition) -> Option<String> {
        if leaf.kind == 'p' {
            return None;
        }
        let left_out = |name: &&String| !self.sent.contains(name);
        let other = leaf.other_defaults.iter().find(left_out);
        match leaf.kind {
            'f' => Some("it is a foreign table".into()),
            'r' if !leaf.writable => Some("the role may not insert into it by name".into()),
            'r' if leaf.row_security => Some("row-level security applies to it".into()),
            'r' if leaf.statement_triggers => {
                Some("it has statement triggers, which fire only for rows sent to it".into())
            }
            'r' => {
                other.map(|name| format!("column {name} may get another value than by the root"))
            }
            _ => Some("it is not a table".into()),
        }
    }

    /// Returns a column of a key, if it is certain how the server reads its values.
    fn key(&mut self, key: &PartitionKey, column: &KeyColumn) -> Result<(Key, Type), String> {
        let name = column.name.as_ref().ok_or("its partition key has an expression")?;
        let place = self.sent.iter().position(|sent| sent == name);
        let place = place.ok_or_else(|| format!("column {name} of the key is not in the input"))?;
        let facts = self.table.iter().find(|c| c.name == *name);
        let ty = facts.map_or(Type::Server, |c| c.ty.clone());
        let ordered = key.strategy == 'r';
        let kind = kind(&ty).filter(|kind| match kind {
            Kind::Text => column.deterministic && (!ordered || column.bytewise),
            Kind::Label => key.strategy == 'l',
            _ => true,
        });
        let Some(kind) = kind.filter(|_| column.usual_class) else {
            let ty = facts.map_or("", |c| c.type_name.as_str());
            return Err(format!("keys such as column {name} ({ty}) are left to the server"));
        };
        let slot = self.needed.iter().position(|needed| *needed == place).unwrap_or_else(|| {
            self.needed.push(place);
            self.needed.len() - 1
        });
        Ok((Key { slot, kind }, ty))
    }

    /// Returns the value of a literal in a bound, as it would be sent.
    fn value(&self, kind: Kind, ty: &Type, text: &str) -> Option<Value<Vec<u8>>> {
        // The literal is stored after domains, precision and so on were applied.
        let mut sink = PgCopySink::new(1);
        sink.begin();
        types::put(ty, text.as_bytes(), &self.env, &mut sink).ok()?;
        // Skip the number of fields and the length.
        match kind.value(sink.bytes().get(6..)?)? {
            Value::Number(number) => Some(Value::Number(number)),
            Value::Bytes(bytes) => Some(Value::Bytes(bytes.to_vec())),
        }
    }

    fn list(&self, bounds: Bounds<'_>, keys: &[Key], types: &[Type]) -> Result<Rule, String> {
        let (mut numbers, mut texts, mut null) = (HashMap::new(), HashMap::new(), None);
        let mut targets = Vec::new();
        for (child, bound, target) in bounds {
            let unclear = || format!("the bound of {} is not surely understood", child.sql);
            let (Bound::List(datums), [key], [ty]) = (bound, keys, types) else {
                return Err(unclear());
            };
            for datum in datums {
                let value = match datum {
                    Datum::Null => {
                        null = Some(targets.len());
                        continue;
                    }
                    Datum::Text(text) => self.value(key.kind, ty, &text),
                    Datum::Min | Datum::Max => None,
                };
                match value.ok_or_else(unclear)? {
                    Value::Number(number) => {
                        numbers.insert(number, targets.len());
                    }
                    Value::Bytes(bytes) => {
                        texts.insert(bytes, targets.len());
                    }
                }
            }
            targets.push(target);
        }
        Ok(Rule::List { numbers, texts, null, targets })
    }

    fn range(&self, bounds: Bounds<'_>, keys: &[Key], types: &[Type]) -> Result<Rule, String> {
        let mut spans = Vec::new();
        for (child, bound, target) in bounds {
            let edges = |datums: &[Datum]| -> Option<Vec<Edge>> {
                let columns = datums.iter().zip(keys.iter().zip(types));
                let edge = |(datum, (key, ty)): (&Datum, (&Key, &Type))| match datum {
                    Datum::Min => Some(Edge::Min),
                    Datum::Max => Some(Edge::Max),
                    Datum::Null => None,
                    Datum::Text(text) => self.value(key.kind, ty, text).map(Edge::Value),
                };
                columns.map(edge).collect::<Option<Vec<_>>>().filter(|e| e.len() == keys.len())
            };
            let both = match &bound {
                Bound::Range(from, to) => edges(from).zip(edges(to)),
                _ => None,
            };
            let Some((from, to)) = both else {
                return Err(format!("the bound of {} is not surely understood", child.sql));
            };
            spans.push(Span { from, to, target });
        }
        spans.sort_by(|a, b| order(&a.from, &b.from));
        Ok(Rule::Range(spans))
    }
}

/// The partitions without the default partition.
type Bounds<'a> = Vec<(&'a Partition, Bound, Target)>;

/// Compares two lower bounds.
fn order(a: &[Edge], b: &[Edge]) -> Ordering {
    for pair in a.iter().zip(b) {
        let order = match pair {
            (Edge::Min, Edge::Min) | (Edge::Max, Edge::Max) => return Ordering::Equal,
            (Edge::Min, _) | (_, Edge::Max) => return Ordering::Less,
            (Edge::Max, _) | (_, Edge::Min) => return Ordering::Greater,
            (Edge::Value(a), Edge::Value(b)) => a.cmp(b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

/// The rule for hash partitions. Each modulus divides the greatest one; the server ensures that.
fn hash(bounds: Bounds<'_>) -> Result<Rule, String> {
    let modulus_of = |bound: &Bound| match bound {
        Bound::Hash { modulus, remainder } if remainder < modulus => Some(*modulus),
        _ => None,
    };
    let greatest = bounds.iter().filter_map(|(_, bound, _)| modulus_of(bound)).max().unwrap_or(1);
    if greatest > MODULUS {
        return Err(format!("its greatest modulus is {greatest}"));
    }
    // The server routes rows whose remainder has no partition.
    let (mut places, mut targets) = (vec![0; greatest as usize], vec![Target::Root]);
    for (child, bound, target) in bounds {
        let modulus = modulus_of(&bound).filter(|modulus| greatest % modulus == 0);
        let (Some(modulus), Bound::Hash { remainder, .. }) = (modulus, bound) else {
            return Err(format!("the bound of {} is not understood", child.sql));
        };
        let own = (remainder..greatest).step_by(modulus as usize);
        own.for_each(|at| places[at as usize] = targets.len());
        targets.push(target);
    }
    Ok(Rule::Hash { places, targets })
}

fn kind(ty: &Type) -> Option<Kind> {
    match ty {
        Type::Int2 => Some(Kind::Short(2)),
        Type::Int4 | Type::Date => Some(Kind::Short(4)),
        Type::Int8 | Type::Time(_) | Type::Timestamp(_) | Type::TimestampTz(_) => Some(Kind::Long),
        Type::Bool => Some(Kind::Unsigned(1)),
        Type::Oid => Some(Kind::Unsigned(4)),
        Type::Text | Type::Varchar(_) => Some(Kind::Text),
        Type::Uuid => Some(Kind::Uuid),
        Type::Enum(_) => Some(Kind::Label),
        _ => None,
    }
}
