//! Filters for what scenarios count: votes, scores, who is left.
//!
//! Keys of a mapping and items of a list may be agents themselves (`me`), which are replaced by their keys.

use super::context::AgentObject;
use crate::chance::Draws;
use greenroom_jinja::Jinja;
use minijinja::value::{Enumerator, Object, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The filters by name, and what each gives.
pub const FILTERS: &[(&str, &str)] = &[
    (
        "counts",
        "how often each item of a list (or value of a mapping) occurs, as a mapping; nulls are not counted",
    ),
    (
        "plurality",
        "the most frequent item of a list (or value of a mapping); null if two are equally frequent, or if \
         there are none",
    ),
    ("argmax", "the key of the largest number in a mapping; null if two are tied, or if there are none"),
    ("argmin", "the key of the smallest number in a mapping; null as for `argmax`"),
    ("ranking", "the keys of a mapping, largest number first; ties in the order of the keys"),
    ("sum_by_key", "the sum for each key over a list of mappings to numbers; null counts as 0"),
    ("with", "a mapping with an entry added or replaced: `scores | with(me, 3)`"),
    (
        "without",
        "a list without an item, or without the items of another list; a mapping without the given keys",
    ),
    (
        "only",
        "the items of a list that are also in another list; the entries of a mapping with the given keys",
    ),
    ("keys_with", "the keys of a mapping that have a value: `place | keys_with('market')`"),
    ("shuffle", "the items of a list, in a random order"),
    ("sample", "some of a list's items, drawn without putting any back: `players | sample(3)`"),
    ("choose", "one of a list's items, drawn at random"),
    (
        "weighted",
        "one key of a mapping to numbers, drawn with chances in proportion to these: `{'rain': 3, 'sun': 1} \
         | weighted`",
    ),
    (
        "deal",
        "a mapping from each agent of a list to one of the items, shuffled: `roles | deal(players)`; to a list \
         of `n` of them: `cards | deal(players, 5)`",
    ),
];

/// Functions by name, and what each gives.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("random", "a random number from 0 up to, but without, 1: `random() < 0.25`"),
    ("randint", "a random whole number between two, either included: `randint(1, 6)`"),
];

/// Those of both that draw by chance.
pub const DRAWING: &[&str] = &["shuffle", "sample", "choose", "weighted", "deal", "random", "randint"];

/// Adds the filters.
pub(super) fn added(jinja: Jinja) -> Jinja {
    jinja
        .with_filter("counts", |of: Value| Ok::<_, Error>(ByKey::value(counts(&of)?)))
        .with_filter("plurality", |of: Value| {
            Ok::<_, Error>(most(&numbers(&ByKey::value(counts(&of)?))?, Ordering::Greater))
        })
        .with_filter("argmax", |of: Value| Ok::<_, Error>(most(&numbers(&of)?, Ordering::Greater)))
        .with_filter("argmin", |of: Value| Ok::<_, Error>(most(&numbers(&of)?, Ordering::Less)))
        .with_filter("ranking", ranking)
        .with_filter("sum_by_key", sum_by_key)
        .with_filter("with", with)
        .with_filter("without", |of: Value, those: Value| select(&of, &those, false))
        .with_filter("only", |of: Value, those: Value| select(&of, &those, true))
        .with_filter("keys_with", keys_with)
        .with_filter("shuffle", |state: &State<'_, '_>, of: Value| {
            let mut items = items(&of)?;
            drawn(state, |draws| draws.shuffle(&mut items, usize::MAX))?;
            Ok::<_, Error>(Value::from(items))
        })
        .with_filter("sample", sample)
        .with_filter("choose", |state: &State<'_, '_>, of: Value| {
            let mut one = sampled(state, &of, 1)?;
            one.pop().ok_or_else(|| wrong("items to choose from", &of))
        })
        .with_filter("weighted", weighted)
        .with_filter("deal", deal)
        .with_function("random", |state: &State<'_, '_>| drawn(state, |draws| Value::from(draws.share())))
        .with_function("randint", randint)
}

/// What is drawn at the place that is being computed.
fn drawn<T>(state: &State<'_, '_>, draw: impl FnOnce(&Draws) -> T) -> Result<T, Error> {
    let draws = Draws::of(state)?;
    let draws = draws.downcast_object_ref::<Draws>();
    Ok(draw(draws.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "nothing can be drawn here"))?))
}

/// `n` items of a list, in the order in which they are drawn.
fn sampled(state: &State<'_, '_>, of: &Value, n: usize) -> Result<Vec<Value>, Error> {
    let mut items = items(of)?;
    if n > items.len() {
        let message = format!("expected {n} items or more to draw from, found {}", items.len());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    drawn(state, |draws| draws.shuffle(&mut items, n))?;
    items.truncate(n);
    Ok(items)
}

fn sample(state: &State<'_, '_>, of: Value, n: usize) -> Result<Value, Error> {
    sampled(state, &of, n).map(Value::from)
}

fn weighted(state: &State<'_, '_>, of: Value) -> Result<Value, Error> {
    let weights = numbers(&of)?;
    let bad = weights.iter().find(|(_, weight)| !(0.0..f64::INFINITY).contains(weight));
    if let Some((key, weight)) = bad {
        let message = format!("the weight of `{key}` is {weight}, expected a number that is not negative");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut rest = drawn(state, Draws::share)? * total;
    let key = weights.iter().find(|(_, weight)| {
        rest -= weight;
        rest < 0.0
    });
    // A sum may be rounded up: then the last one that has a chance.
    let key = key.or(weights.iter().rfind(|(_, weight)| *weight > 0.0));
    let (key, _) = key.ok_or_else(|| wrong("a mapping with a weight above 0", &of))?;
    Ok(Value::from(key.as_str()))
}

fn deal(state: &State<'_, '_>, of: Value, to: Value, n: Option<usize>) -> Result<Value, Error> {
    let to = items(&to)?;
    let all = to.len().saturating_mul(n.unwrap_or(1));
    let mut dealt = sampled(state, &of, all)?.into_iter();
    let hand = |key: Value| {
        let hand = match n {
            None => dealt.next().unwrap_or_default(),
            Some(n) => Value::from(dealt.by_ref().take(n).collect::<Vec<Value>>()),
        };
        (key_of(key), hand)
    };
    Ok(ByKey::value(to.into_iter().map(hand).collect()))
}

fn randint(state: &State<'_, '_>, least: i64, most: i64) -> Result<Value, Error> {
    let n = most.checked_sub(least).and_then(|n| u64::try_from(n).ok()?.checked_add(1)).ok_or_else(|| {
        let message = format!("expected the smaller number first, found {least} and {most}");
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    Ok(Value::from(drawn(state, |draws| least + draws.below(n) as i64)?))
}

/// Values by key: looked up by key, by a number or truth value that is written like it, or by an agent
/// itself.
#[derive(Debug)]
pub(crate) struct ByKey(BTreeMap<String, Value>);

impl ByKey {
    pub(crate) fn value(values: BTreeMap<String, Value>) -> Value {
        Value::from_object(Self(values))
    }
}

impl Object for ByKey {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.downcast_object_ref::<AgentObject>() {
            Some(agent) => self.0.get(agent.key()).cloned(),
            None => match key.kind() {
                ValueKind::Number => self.0.get(&key.to_string()).cloned(),
                ValueKind::Bool => self.0.get(if key.is_true() { "true" } else { "false" }).cloned(),
                _ => self.0.get(key.as_str()?).cloned(),
            },
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|key| Value::from(key.as_str())).collect())
    }
}

/// An item as it is compared: an agent is its key.
fn plain(item: Value) -> Value {
    let key = item.downcast_object_ref::<AgentObject>().map(|agent| Value::from(agent.key()));
    key.unwrap_or(item)
}

fn key_of(item: Value) -> String {
    plain(item).to_string()
}

fn wrong(expected: &str, found: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("expected {expected}, found {}", found.kind()))
}

/// The items of a list, or the values of a mapping.
fn items(of: &Value) -> Result<Vec<Value>, Error> {
    match of.kind() {
        ValueKind::Map => Ok(of.try_iter()?.map(|key| of.get_item(&key)).collect::<Result<_, _>>()?),
        ValueKind::Seq | ValueKind::Iterable => Ok(of.try_iter()?.map(plain).collect()),
        _ => Err(wrong("a list or a mapping", of)),
    }
}

fn counts(of: &Value) -> Result<BTreeMap<String, Value>, Error> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for item in items(of)?.into_iter().filter(|item| !item.is_none() && !item.is_undefined()) {
        *counts.entry(key_of(item)).or_default() += 1;
    }
    Ok(counts.into_iter().map(|(key, n)| (key, Value::from(n))).collect())
}

/// The numbers of a mapping by key; null is left out.
fn numbers(of: &Value) -> Result<Vec<(String, f64)>, Error> {
    if of.kind() != ValueKind::Map {
        return Err(wrong("a mapping to numbers", of));
    }
    let mut numbers = Vec::new();
    for key in of.try_iter()? {
        let value = of.get_item(&key)?;
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let number = f64::try_from(value.clone()).map_err(|_| wrong("a number", &value))?;
        numbers.push((key_of(key), number));
    }
    Ok(numbers)
}

/// The one key whose number is the greatest, or the least.
fn most(numbers: &[(String, f64)], wanted: Ordering) -> Value {
    let better = |one: &(String, f64), other: &(String, f64)| one.1.total_cmp(&other.1) == wanted;
    let best = numbers.iter().find(|one| numbers.iter().all(|other| other.0 == one.0 || better(one, other)));
    best.map_or(Value::from(()), |(key, _)| Value::from(key.as_str()))
}

fn ranking(of: Value) -> Result<Value, Error> {
    let mut numbers = numbers(&of)?;
    numbers.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    Ok(numbers.into_iter().map(|(key, _)| Value::from(key)).collect())
}

fn keys_with(of: Value, value: Value) -> Result<Value, Error> {
    if of.kind() != ValueKind::Map {
        return Err(wrong("a mapping", &of));
    }
    let (mut keys, value) = (Vec::new(), plain(value));
    for key in of.try_iter()? {
        if plain(of.get_item(&key)?) == value {
            keys.push(plain(key));
        }
    }
    Ok(Value::from(keys))
}

fn sum_by_key(of: Value) -> Result<Value, Error> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for mapping in items(&of)? {
        for key in mapping.try_iter()? {
            sums.entry(key_of(key)).or_default();
        }
        for (key, number) in numbers(&mapping)? {
            *sums.entry(key).or_default() += number;
        }
    }
    Ok(ByKey::value(sums.into_iter().map(|(key, sum)| (key, super::number(sum))).collect()))
}

fn with(of: Value, key: Value, value: Value) -> Result<Value, Error> {
    if of.kind() != ValueKind::Map {
        return Err(wrong("a mapping", &of));
    }
    let entry = |key: Value| Ok::<_, Error>((key_of(key.clone()), of.get_item(&key)?));
    let mut entries = of.try_iter()?.map(entry).collect::<Result<BTreeMap<String, Value>, _>>()?;
    entries.insert(key_of(key), value);
    Ok(ByKey::value(entries))
}

/// What is, or is not, one of those.
fn select(of: &Value, those: &Value, is_among: bool) -> Result<Value, Error> {
    let those: Vec<Value> = match those.kind() {
        ValueKind::Seq | ValueKind::Iterable => items(those)?,
        ValueKind::Map => those.try_iter()?.collect(),
        _ => vec![plain(those.clone())],
    };
    match of.kind() {
        ValueKind::Map => {
            let keys = of.try_iter()?.filter(|key| those.contains(key) == is_among);
            let entry = |key: Value| Ok::<_, Error>((key_of(key.clone()), of.get_item(&key)?));
            Ok(ByKey::value(keys.map(entry).collect::<Result<_, _>>()?))
        }
        _ => Ok(items(of)?.into_iter().filter(|item| those.contains(item) == is_among).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment;
    use super::*;
    use crate::chance::DRAWS;
    use minijinja::context;

    #[test]
    fn filters_count() {
        let names = context! {
            votes => context! { ann => "ben", ben => "cas", cas => "ben", dan => () },
            scores => context! { ann => 3, ben => 5, cas => 5 },
            alive => ["ann", "ben", "cas"],
        };
        for (code, expected) in [
            ("votes | counts", r#"{"ben":2,"cas":1}"#),
            ("votes | plurality", r#""ben""#),
            ("['a', 'b'] | plurality", "null"),
            ("[] | plurality", "null"),
            ("scores | argmax", "null"),
            ("scores | argmin", r#""ann""#),
            ("scores | ranking", r#"["ben","cas","ann"]"#),
            ("[scores, {'ann': 1, 'dan': 0.5}] | sum_by_key", r#"{"ann":4,"ben":5,"cas":5,"dan":0.5}"#),
            ("scores | with('ann', 9)", r#"{"ann":9,"ben":5,"cas":5}"#),
            ("votes | keys_with('ben')", r#"["ann","cas"]"#),
            ("scores | keys_with(5)", r#"["ben","cas"]"#),
            ("{'ann': true, 'ben': false} | keys_with(true)", r#"["ann"]"#),
            ("votes | keys_with(none)", r#"["dan"]"#),
            ("alive | without('ben')", r#"["ann","cas"]"#),
            ("alive | without(none)", r#"["ann","ben","cas"]"#),
            ("alive | only(['cas', 'ann', 'dan'])", r#"["ann","cas"]"#),
            ("scores | only(alive | without('ann'))", r#"{"ben":5,"cas":5}"#),
        ] {
            let value = environment().expression(code).and_then(|code| code.value(names.clone()));
            let json = value.ok().and_then(|value| serde_json::to_string(&value).ok());
            assert_eq!(json.as_deref(), Some(expected), "{code}");
        }
        assert!(environment().expression("3 | ranking").and_then(|code| code.value(names)).is_err());
    }

    /// What is listed as drawing by chance needs a place to draw at, and nothing else does.
    #[test]
    fn what_draws_is_listed() {
        let all = FILTERS.iter().chain(FUNCTIONS).map(|(name, _)| *name);
        for name in all {
            let code = match name {
                "random" => "random()".to_string(),
                "randint" => "randint(1, 6)".to_string(),
                "deal" => "['a'] | deal(['b'])".to_string(),
                "sample" => "['a'] | sample(1)".to_string(),
                "with" => "{'a': 1} | with('b', 2)".to_string(),
                "keys_with" => "{'a': 1} | keys_with(1)".to_string(),
                "without" | "only" => format!("['a'] | {name}('a')"),
                "shuffle" | "choose" | "counts" | "plurality" => format!("['a'] | {name}"),
                "sum_by_key" => "[{'a': 1}] | sum_by_key".to_string(),
                name => format!("{{'a': 1}} | {name}"),
            };
            let value = |names| environment().expression(&code).and_then(|code| code.value(names));
            let draws = BTreeMap::from([(DRAWS.to_string(), Draws::at(0, "here"))]);
            assert!(value(Value::from(draws)).is_ok(), "{code}");
            assert_eq!(value(context! {}).is_err(), DRAWING.contains(&name), "{code}");
        }
    }
}
