//! What the rewritten instructions apply to the operands and results of others: filters by names that no
//! template can write. They look at a value, count what it takes, and give it back.

use crate::bounds::{MAX_WIDTH, Meter};
use crate::guards::{called, n_printed};
use crate::values::{is_plain, settle, settle_shallow, weigh, weigh_within};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident = $filter:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: &str = concat!("\u{1}", stringify!($name));)*

        /// Adds them all.
        pub(crate) fn add_to(env: &mut Environment<'static>) {
            $(env.add_filter($name, $filter);)*
        }
    };
}

filters! {
    /// A value that is compared.
    COMPARED = |state: &mut State, value: Value| weigh(&value, Meter::of(state)).map(|_| value);
    /// A value that becomes part of a text.
    PRINTED = |state: &mut State, value: Value| {
        if value.as_str().is_none() {
            n_printed(&value, Meter::of(state).left_to_write())?;
        }
        Ok::<_, Error>(value)
    };
    /// The operands of `*`, as a tuple; given back the other way around, as `UnpackList` needs them.
    FACTORS = factors;
    /// The operands of `**`, likewise.
    POWER = |operands: Value| power(&operands);
    /// The operands of a slice, likewise.
    SLICED = sliced;
    /// A value of which one item is taken.
    INDEXED = |state: &mut State, value: Value| {
        match value.kind() {
            ValueKind::String | ValueKind::Bytes => Meter::of(state).read(n_bytes(&value))?,
            ValueKind::Iterable => Meter::of(state).look(value.len().unwrap_or(1))?,
            _ => {}
        }
        Ok::<_, Error>(value)
    };
    /// A list or map that was written out.
    BUILT = |state: &mut State, value: Value| settle(value, Meter::of(state));
    /// A value that an operator made.
    MADE = |state: &mut State, value: Value| settle_shallow(value, Meter::of(state));
    /// A value that a namespace is to hold.
    HELD = |value: Value| is_plain(&value).map(|()| value);
    /// A value that is iterated.
    ITERATED = |state: &mut State, value: ValueOrKwargs| {
        let list = value.downcast_object_ref::<Vec<Value>>();
        let within = list.map_or(0, |list| list.iter().map(n_bytes).sum());
        Meter::of(state).read(n_bytes(&value).max(within)).map(|()| value.into_value())
    };
    /// A value that is about to be used: steps are counted.
    PASSED = |state: &mut State, value: Value| {
        Meter::of(state);
        value
    };
    /// A value that is called by a name.
    NAMED = |value: ValueOrKwargs| {
        let value = value.into_value();
        let is_loop = value.as_object().is_some_and(|object| object.type_name().ends_with("::Loop"));
        let detail = "`loop(…)` stands directly within its loop: it has no other name, and no macro or block \
                      calls it";
        if is_loop { Err(Error::new(ErrorKind::InvalidOperation, detail)) } else { Ok(value) }
    };
    /// Bytes that the next instruction takes.
    TAKEN = |state: &mut State, bytes: usize| Meter::of(state).make(bytes);
    /// A method's call: the value, the arguments, the method's name.
    METHOD = |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = args.split_last().ok_or(ErrorKind::MissingArgument)?;
        method(state, name.as_str().unwrap_or_default(), args)
    };
}

fn n_bytes(value: &Value) -> usize {
    value.as_bytes().map_or(0, <[u8]>::len)
}

fn method(state: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (value, args_alone) = args.split_first().ok_or(ErrorKind::MissingArgument)?;
    match name {
        "cycle" if args_alone.is_empty() && is_plain(value).is_err() => {
            return Err(Error::from(ErrorKind::MissingArgument));
        }
        "changed" => args_alone.iter().try_for_each(|arg| weigh_within(arg, Meter::of(state)).map(drop))?,
        _ => {}
    }
    let result = called(state, name, args, |state, args| value.call_method(state, name, &args[1..]))?;
    settle(result, Meter::of(state))
}

/// Checks how much a text or list times a number would be.
fn factors(state: &mut State, operands: Value) -> Result<Value, Error> {
    let (a, b) = (operands.get_item_by_index(0)?, operands.get_item_by_index(1)?);
    let meter = Meter::of(state);
    for (value, times) in [(&a, &b), (&b, &a)] {
        let Some(times) = times.as_usize() else { continue };
        if let Some(text) = value.as_str() {
            meter.foresee(text.len().saturating_mul(times))?;
        } else if let Some(object) = value.as_object() {
            let n = object.enumerator_len().unwrap_or(1).saturating_mul(times);
            meter.foresee_made(n.saturating_mul(crate::bounds::ITEM))?;
        }
    }
    Ok(Value::from(Tuple::from([b, a])))
}

/// Works fractional powers out with libm: the platform's own differ in last digits. What is not a constant
/// comes here.
fn power(operands: &Value) -> Result<Value, Error> {
    let (base, exponent) = (operands.get_item_by_index(0)?, operands.get_item_by_index(1)?);
    let number =
        |value: &Value| f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number);
    let (base, exponent) = match (number(&base), number(&exponent)) {
        // Whole numbers have exact powers, and zero has none below zero.
        (Some(_), Some(b)) if base.is_integer() && exponent.is_integer() && b >= 0.0 => (base, exponent),
        (Some(a), Some(b)) if a != 0.0 || b >= 0.0 => (Value::from(libm::pow(a, b)), Value::from(1.0)),
        _ => (base, exponent),
    };
    Ok(Value::from(Tuple::from([exponent, base])))
}

/// Checks the bounds of a slice. Backwards, minijinja computes with what overflows where the bounds cross,
/// and then gives back nothing; so does this.
fn sliced(state: &mut State, operands: Value) -> Result<Value, Error> {
    let at = |place| operands.get_item_by_index(place);
    let (value, mut start, mut stop, mut step) = (at(0)?, at(1)?, at(2)?, at(3)?);
    let length = value.len().unwrap_or(0);
    Meter::of(state).look(1 + length)?;
    let number = |value: &Value| value.as_i64().map(i128::from);
    if let Some(backwards) = number(&step).filter(|step| *step < 0) {
        let length = length as i128;
        let place = |value: &Value, none: i128| match number(value) {
            _ if value.is_none() => Some(none),
            Some(n) if n < 0 => Some((length + n).max(0)),
            Some(n) => Some(n),
            None => None,
        };
        let crossed = match (place(&start, length - 1), place(&stop, 0)) {
            (Some(start), Some(stop)) => start.min(length - 1) < stop,
            _ => false,
        };
        if crossed {
            (start, stop, step) = (Value::from(0), Value::from(0), Value::from(1));
        } else if backwards < -i128::from(MAX_WIDTH) - length {
            // Any step that leaves the list gives its first item.
            step = Value::from(-(length as i64) - 1);
        }
    }
    Ok(Value::from(Tuple::from(vec![step, stop, start, value])))
}
