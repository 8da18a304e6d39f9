//! Values as a template makes them: how large they are, and laid out at once instead of lazily.
//!
//! Every result of an operator, filter, function or method is a scalar, or a container whose items lie in
//! memory and are nested less than [`MAX_DEPTH`] deep. minijinja would leave many of them lazy (`a + b`,
//! slices, `items`), and a loop could wrap one lazy list in another until reading or dropping it overflows
//! the stack.

use crate::bounds::{Bound, ITEM, MAX_DEPTH, Meter};
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Size of a value with its contents; contents that occur twice are counted twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Values.
    pub(crate) values: usize,
    /// Bytes of texts.
    pub(crate) bytes: usize,
    /// Lists and maps within each other.
    pub(crate) depth: usize,
}

impl Size {
    /// Bytes that making it takes.
    pub(crate) fn made(self) -> usize {
        self.bytes.saturating_add(self.values.saturating_mul(ITEM))
    }

    /// Bytes that its text has, about.
    pub(crate) fn printed(self) -> usize {
        self.bytes.saturating_add(self.values.saturating_mul(8))
    }
}

/// Looks through a value.
pub(crate) fn weigh(value: &Value, meter: &mut Meter) -> Result<Size, Error> {
    let mut size = Size::default();
    look(value, 0, &mut size, meter)?;
    Ok(size)
}

/// Weighs, as [`weigh`], what becomes part of a list or map: a loop or a namespace can't, for these could
/// come to lie in themselves.
pub(crate) fn weigh_within(value: &Value, meter: &mut Meter) -> Result<Size, Error> {
    is_plain(value)?;
    weigh(value, meter)
}

/// Rejects loops and namespaces.
pub(crate) fn is_plain(value: &Value) -> Result<(), Error> {
    let kind = match value.as_object().map(|object| object.type_name()) {
        Some("minijinja::vm::loop_object::Loop") => "`loop`",
        Some("minijinja::value::namespace_object::Namespace") => "a namespace",
        _ => return Ok(()),
    };
    let detail = format!("{kind} can't be kept in a list, a map or a namespace: keep what it holds");
    Err(Error::new(ErrorKind::InvalidOperation, detail))
}

fn look(value: &Value, depth: usize, size: &mut Size, meter: &mut Meter) -> Result<(), Error> {
    size.values += 1;
    size.depth = size.depth.max(depth);
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => {
            let bytes = value.as_bytes().map_or(0, <[u8]>::len);
            size.bytes = size.bytes.saturating_add(bytes);
            return meter.read(bytes);
        }
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => meter.look(1)?,
        _ => return meter.look(1),
    }
    if depth == MAX_DEPTH {
        return Err(Bound::Depth.into());
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    if value.kind() == ValueKind::Map {
        // What a loop knows is a few numbers and its own items; asking for the next one would move it on.
        if is_plain(value).is_err() && object.type_name().ends_with("Loop") {
            return Ok(());
        }
        for (key, value) in object.try_iter_pairs().into_iter().flatten() {
            look(&key, depth + 1, size, meter)?;
            look(&value, depth + 1, size, meter)?;
        }
        return Ok(());
    }
    let laid_out = value.downcast_object_ref::<Vec<Value>>();
    match laid_out.or_else(|| Some(&value.downcast_object_ref::<Items>()?.values)) {
        Some(items) => items.iter().try_for_each(|item| look(item, depth + 1, size, meter)),
        None => {
            object.try_iter().into_iter().flatten().try_for_each(|item| look(&item, depth + 1, size, meter))
        }
    }
}

/// The result of a filter, function or method: laid out, looked through and counted.
pub(crate) fn settle(value: Value, meter: &mut Meter) -> Result<Value, Error> {
    let value = lay_out(value, meter)?;
    let mut size = Size::default();
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.as_object().and_then(|object| object.try_iter()).into_iter().flatten() {
                is_plain(&item)?;
                look(&item, 1, &mut size, meter)?;
            }
        }
        ValueKind::Map if is_plain(&value).is_ok() => size = held(&value, meter)?,
        ValueKind::String | ValueKind::Bytes => size = weigh(&value, meter)?,
        _ => return Ok(value),
    }
    meter.make(size.made())?;
    Ok(value)
}

/// Size of a map's contents.
fn held(map: &Value, meter: &mut Meter) -> Result<Size, Error> {
    let mut size = Size::default();
    let pairs = map.as_object().and_then(|object| object.try_iter_pairs());
    for (key, value) in pairs.into_iter().flatten() {
        is_plain(&key)?;
        is_plain(&value)?;
        look(&key, 1, &mut size, meter)?;
        look(&value, 1, &mut size, meter)?;
    }
    Ok(size)
}

/// Settles, as [`settle`], what holds only items that its operands held: these need not be looked through
/// again.
pub(crate) fn settle_shallow(value: Value, meter: &mut Meter) -> Result<Value, Error> {
    let value = lay_out(value, meter)?;
    match value.kind() {
        ValueKind::String | ValueKind::Bytes => meter.make(value.as_bytes().map_or(0, <[u8]>::len))?,
        ValueKind::Seq | ValueKind::Iterable => {
            let n = value.len().unwrap_or_default();
            meter.look(n)?;
            meter.make(n.saturating_mul(ITEM))?;
        }
        _ => {}
    }
    Ok(value)
}

/// A lazy list, laid out; its kind and what is known of its length stay what they are.
fn lay_out(value: Value, meter: &mut Meter) -> Result<Value, Error> {
    match value.as_object() {
        Some(object) if object.type_name() == "minijinja::value::merge_object::MergeDict" => {
            let mut map = BTreeMap::new();
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                meter.look(8)?;
                meter.make(4 * ITEM)?;
                map.insert(key, value);
            }
            Ok(Value::from(map))
        }
        Some(object) if is_lazy(object) => {
            let sized = object.enumerator_len().is_some();
            let mut values = Vec::new();
            for item in object.try_iter().into_iter().flatten() {
                meter.look(1)?;
                meter.make(ITEM)?;
                values.push(item);
            }
            Ok(Value::from_object(Items { values, repr: object.repr(), sized }))
        }
        _ => Ok(value),
    }
}

fn is_lazy(object: &DynObject) -> bool {
    let merged = object.type_name() == "minijinja::value::merge_object::MergeSeq";
    merged || object.repr() == ObjectRepr::Iterable && object.downcast_ref::<Items>().is_none()
}

/// A list that minijinja would have left lazy.
struct Items {
    values: Vec<Value>,
    repr: ObjectRepr,
    /// True if its length was known before it was read.
    sized: bool,
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<iterator>")
    }
}

impl Object for Items {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.repr
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.sized {
            return Enumerator::Seq(self.values.len());
        }
        let (items, mut next) = (self.clone(), 0);
        Enumerator::Iter(Box::new(std::iter::from_fn(move || {
            next += 1;
            items.values.get(next - 1).cloned()
        })))
    }
}
