//! Costs of a filter, test, function or method, known from its arguments before it runs.

use crate::bounds::{Bound, ITEM, MAX_WIDTH, Meter};
use crate::values::{Size, weigh};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Filters that look only at the items of their argument, and return some of these.
pub(crate) const SHALLOW: &[&str] = &[
    "length",
    "count",
    "first",
    "last",
    "list",
    "default",
    "d",
    "reverse",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "attr",
    "map",
];
/// Filters and tests that compare, some twenty times an item.
const COMPARING: &[&str] = &["sort", "dictsort", "unique", "groupby", "min", "max"];
/// Filters whose numbers say how much they make.
const PADDING: &[&str] = &["indent", "slice", "batch", "tojson"];

/// Counts what `name` will look at, and refuses what would make too much. A method has the value that it is
/// called on as its first argument.
pub(crate) fn foresee(name: &str, args: &[Value], meter: &mut Meter) -> Result<(), Error> {
    let Some(value) = args.first() else { return Ok(()) };
    if PADDING.contains(&name) && args[1..].iter().any(|arg| named(arg).any(|arg| is_wide(&arg))) {
        return Err(Bound::Width.into());
    }
    if SHALLOW.contains(&name) {
        return meter.look(1 + n_items(value));
    }
    let size = weigh(value, meter)?;
    let mut rest = Size::default();
    for arg in &args[1..] {
        let more = weigh(arg, meter)?;
        rest.bytes = rest.bytes.saturating_add(more.bytes);
        rest.values = rest.values.saturating_add(more.values);
    }
    if COMPARING.contains(&name) {
        meter.look((size.values + size.bytes / 16).saturating_mul(20))?;
    }
    let text = |at: usize| args.get(at).and_then(Value::as_str);
    let makes = match name {
        "replace" => replaced(value, text(1), text(2)),
        // As a method, the text is the joiner.
        "join" if value.as_str().is_some() && args.get(1).is_some_and(|list| list.as_object().is_some()) => {
            let list = &args[1];
            size.printed().saturating_mul(n_items(list)).saturating_add(rest.printed())
        }
        "join" => rest.bytes.saturating_mul(n_items(value)).saturating_add(size.printed()),
        "format" => formatted(text(0).unwrap_or_default(), args, rest)?,
        "indent" => {
            let lines = value.as_str().map_or(0, |text| text.matches('\n').count() + 1);
            lines.saturating_mul(widest(args)).saturating_add(size.bytes)
        }
        "tojson" | "pprint" => {
            let indent = widest(args).saturating_mul(size.depth + 1).saturating_add(8);
            size.values.saturating_mul(indent).saturating_add(size.bytes.saturating_mul(2))
        }
        "trim" | "strip" | "lstrip" | "rstrip" => {
            meter.look(size.bytes.saturating_mul(rest.bytes) / 16)?;
            size.bytes
        }
        "sum" if value.as_object().is_some() => added(value, rest, size, meter)?,
        "split" | "lines" | "splitlines" => return meter.foresee_list(pieces(name, value, text(1))),
        _ => size.printed().saturating_add(rest.printed()),
    };
    meter.foresee(makes)
}

/// Answers a test at which minijinja would panic; `None`: minijinja answers it.
///
/// # Errors
/// It has no answer.
pub(crate) fn is_sound(name: &str, args: &[Value]) -> Result<Option<bool>, Error> {
    if name != "divisibleby" {
        return Ok(None);
    }
    let whole = |value: Option<&Value>| {
        value
            .filter(|value| value.is_integer() || value.kind() == ValueKind::Bool)
            .and_then(|value| i128::try_from(value.clone()).ok())
    };
    match (whole(args.first()), whole(args.get(1))) {
        (Some(_), Some(0)) => {
            let detail = "nothing is divisible by 0: ask whether it is 0 first";
            Err(Error::new(ErrorKind::InvalidOperation, detail))
        }
        (Some(_), Some(-1)) => Ok(Some(true)),
        _ => Ok(None),
    }
}

/// Bounds of a range whose length minijinja would compute with an overflow.
pub(crate) fn is_range(args: &[Value]) -> Result<(), Error> {
    let whole =
        |at: usize| args.get(at).filter(|value| value.is_integer()).and_then(Value::as_i64).map(i128::from);
    let (Some(first), second, step) = (whole(0), whole(1), whole(2)) else { return Ok(()) };
    let (from, to) = second.map_or((0, first), |second| (first, second));
    let step = step.unwrap_or(1);
    // One less than the least number has no counterpart above zero.
    let odd = step == i128::from(i64::MIN);
    if step != 0 && (odd || (to - from) / step > 100_000) {
        return Err(Error::new(ErrorKind::InvalidOperation, "range has too many elements"));
    }
    Ok(())
}

/// Maximum number of items of a list or map.
fn n_items(value: &Value) -> usize {
    match value.as_bytes() {
        Some(text) => text.len(),
        None => value.as_object().and_then(|object| object.enumerator_len()).unwrap_or(1),
    }
}

/// A value, or the values of named arguments.
fn named(value: &Value) -> impl Iterator<Item = Value> {
    let pairs = value.as_object().filter(|_| value.is_kwargs()).and_then(|object| object.try_iter_pairs());
    let alone = pairs.is_none().then(|| value.clone());
    pairs.into_iter().flatten().map(|(_, value)| value).chain(alone)
}

fn is_wide(value: &Value) -> bool {
    value.kind() == ValueKind::Number
        && value.as_i64().is_none_or(|n| n.unsigned_abs() > MAX_WIDTH.unsigned_abs())
}

/// The greatest number among the arguments.
fn widest(args: &[Value]) -> usize {
    args[1..].iter().flat_map(named).filter_map(|value| value.as_usize()).max().unwrap_or(4)
}

fn replaced(value: &Value, from: Option<&str>, to: Option<&str>) -> usize {
    let (Some(text), Some(from), Some(to)) = (value.as_str(), from, to) else { return 0 };
    text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len())
}

/// Bytes of a formatted text: each place may print every argument, `%0999999999d` asks for as many zeros, and
/// `%*d` takes a width from the arguments.
fn formatted(format: &str, args: &[Value], rest: Size) -> Result<usize, Error> {
    let long = format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
    let nested = format.contains('*') || format.contains(":{") || format.contains(".{");
    if long || nested && args[1..].iter().flat_map(named).any(|arg| is_wide(&arg)) {
        return Err(Bound::Width.into());
    }
    let places = format.matches(['%', '{']).count();
    let widths = if nested { MAX_WIDTH as usize } else { 0 };
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).max();
    let place = rest.printed().saturating_add(widths + numbers.unwrap_or(0));
    Ok(places.saturating_mul(place).saturating_add(format.len()))
}

/// Texts and lists are added up one by one: each sum is remade.
fn added(value: &Value, rest: Size, size: Size, meter: &mut Meter) -> Result<usize, Error> {
    let scalars = size.bytes == 0 && size.values <= n_items(value) + 1 && rest.bytes == 0 && rest.values <= 1;
    if scalars {
        return Ok(0);
    }
    let n = n_items(value);
    meter.look(n.saturating_mul(size.values + size.bytes / 16))?;
    Ok(size.printed().saturating_add(rest.printed()))
}

/// Pieces that a text falls into.
fn pieces(name: &str, value: &Value, separator: Option<&str>) -> usize {
    let Some(text) = value.as_str() else { return 0 };
    match (name, separator) {
        ("split", Some(separator)) => text.matches(separator).count() + 1,
        ("split", None) => text.split_whitespace().count(),
        _ => text.lines().count(),
    }
}

impl Meter {
    /// A list of this many pieces of text is about to be made.
    fn foresee_list(&mut self, pieces: usize) -> Result<(), Error> {
        self.look(pieces)?;
        self.foresee_made(pieces.saturating_mul(2 * ITEM))
    }
}
