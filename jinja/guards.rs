//! The environment: minijinja's filters, tests and functions, each of them guarded, and what the rewritten
//! instructions call.
//!
//! It starts out empty, so that a filter of a newer minijinja which nobody has looked at is missing instead
//! of unguarded. `debug()` is left out: it prints the program's insides.

use crate::bounds::{Bound, MAX_FRAMES, MAX_STEPS, MAX_WIDTH, Meter};
use crate::foresee::{SHALLOW, foresee, is_range, is_sound};
use crate::values::{is_plain, settle, settle_shallow, weigh, weigh_within};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, escape_formatter};
use minijinja::{filters, functions, tests};
use std::fmt::{self, Write};

/// Names of the filters that the rewritten instructions apply: no template can write them.
pub(crate) mod names {
    /// A value that is compared.
    pub(crate) const COMPARED: &str = "\u{1}compared";
    /// A value that becomes part of a text.
    pub(crate) const PRINTED: &str = "\u{1}printed";
    /// The operands of `*`, as a tuple; given back the other way around, as `UnpackList` needs them.
    pub(crate) const FACTORS: &str = "\u{1}factors";
    /// The operands of `**`, likewise.
    pub(crate) const POWER: &str = "\u{1}power";
    /// The operands of a slice, likewise.
    pub(crate) const SLICED: &str = "\u{1}sliced";
    /// A value of which one item is taken.
    pub(crate) const INDEXED: &str = "\u{1}indexed";
    /// A list or map that was written out.
    pub(crate) const BUILT: &str = "\u{1}built";
    /// A value that an operator made.
    pub(crate) const MADE: &str = "\u{1}made";
    /// A value that a namespace is to hold.
    pub(crate) const HELD: &str = "\u{1}held";
    /// A value that is iterated.
    pub(crate) const ITERATED: &str = "\u{1}iterated";
    /// A value that is about to be used: steps are counted.
    pub(crate) const PASSED: &str = "\u{1}passed";
    /// A value that is called by a name, or is to be called `loop`.
    pub(crate) const NAMED: &str = "\u{1}named";
    /// Bytes that the next instruction takes.
    pub(crate) const TAKEN: &str = "\u{1}taken";
    /// A method's call: the value, the arguments, the method's name.
    pub(crate) const METHOD: &str = "\u{1}method";
}

macro_rules! add {
    ($env:expr, $guard:ident, $module:ident: $($name:literal => $function:ident,)*) => {
        $($guard($env, $name, Value::from_function($module::$function));)*
    };
}

/// An environment with everything that minijinja's own has, guarded.
pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::empty();
    let env_mut = &mut env;
    add!(env_mut, add_filter, filters:
        "safe" => safe, "escape" => escape, "e" => escape, "lower" => lower, "upper" => upper, "title" => title,
        "capitalize" => capitalize, "replace" => replace, "length" => length, "count" => length,
        "dictsort" => dictsort, "items" => items, "reverse" => reverse, "trim" => trim, "join" => join,
        "split" => split, "lines" => lines, "default" => default, "d" => default, "round" => round, "abs" => abs,
        "int" => int, "float" => float, "attr" => attr, "first" => first, "last" => last, "min" => min, "max" => max,
        "sort" => sort, "list" => list, "string" => string, "bool" => bool, "batch" => batch, "slice" => slice,
        "sum" => sum, "indent" => indent, "select" => select, "reject" => reject, "selectattr" => selectattr,
        "rejectattr" => rejectattr, "map" => map, "groupby" => groupby, "unique" => unique, "chain" => chain,
        "zip" => zip, "pprint" => pprint, "format" => format, "tojson" => tojson,
    );
    add!(env_mut, add_test, tests:
        "undefined" => is_undefined, "defined" => is_defined, "none" => is_none, "safe" => is_safe,
        "escaped" => is_safe, "boolean" => is_boolean, "odd" => is_odd, "even" => is_even,
        "divisibleby" => is_divisibleby, "number" => is_number, "integer" => is_integer, "int" => is_integer,
        "float" => is_float, "string" => is_string, "sequence" => is_sequence, "iterable" => is_iterable,
        "mapping" => is_mapping, "startingwith" => is_startingwith, "endingwith" => is_endingwith,
        "lower" => is_lower, "upper" => is_upper, "sameas" => is_sameas, "eq" => is_eq, "equalto" => is_eq,
        "==" => is_eq, "ne" => is_ne, "!=" => is_ne, "lt" => is_lt, "lessthan" => is_lt, "<" => is_lt,
        "le" => is_le, "<=" => is_le, "gt" => is_gt, "greaterthan" => is_gt, ">" => is_gt, "ge" => is_ge,
        ">=" => is_ge, "in" => is_in, "true" => is_true, "false" => is_false, "filter" => is_filter,
        "test" => is_test,
    );
    add!(env_mut, add_function, functions: "range" => range, "dict" => dict, "namespace" => namespace,);
    add_own(env_mut);
    env.set_formatter(write_value);
    env.set_fuel(Some(MAX_STEPS));
    env.set_recursion_limit(MAX_FRAMES);
    env
}

/// Adds a filter, guarded.
pub(crate) fn add_filter(env: &mut Environment<'static>, name: &'static str, plain: Value) {
    env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let result = called(state, name, &args, |state, args| plain.call(state, args))?;
        settled(state, name, result)
    });
}

/// Adds a test, guarded.
fn add_test(env: &mut Environment<'static>, name: &'static str, plain: Value) {
    env.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        match is_sound(name, &args)? {
            Some(held) => Ok(held),
            None => {
                called(state, name, &args, |state, args| plain.call(state, args)).map(|held| held.is_true())
            }
        }
    });
}

/// Adds a function, guarded.
pub(crate) fn add_function(env: &mut Environment<'static>, name: &'static str, plain: Value) {
    env.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        if name == "range" {
            is_range(&args)?;
        }
        let within =
            args.iter().filter(|arg| arg.is_kwargs()).filter_map(|arg| arg.as_object()?.try_iter_pairs());
        within.flatten().try_for_each(|(_, value)| is_plain(&value))?;
        let result = called(state, name, &args, |state, args| plain.call(state, args))?;
        settled(state, name, result)
    });
}

/// Calls what a template calls by name, within bounds.
fn called(
    state: &mut State,
    name: &str,
    args: &[Value],
    plain: impl FnOnce(&mut State, &[Value]) -> Result<Value, Error>,
) -> Result<Value, Error> {
    let meter = Meter::of(state);
    meter.enter()?;
    foresee(name, args, meter)?;
    let result = plain(state, args);
    Meter::of(state).leave();
    result
}

fn settled(state: &mut State, name: &str, value: Value) -> Result<Value, Error> {
    let meter = Meter::of(state);
    if SHALLOW.contains(&name) && name != "map" { settle_shallow(value, meter) } else { settle(value, meter) }
}

/// Adds the filters that the rewritten instructions apply.
fn add_own(env: &mut Environment<'static>) {
    env.add_filter(names::COMPARED, |state: &mut State, value: Value| {
        weigh(&value, Meter::of(state)).map(|_| value)
    });
    env.add_filter(names::PRINTED, |state: &mut State, value: Value| {
        if value.as_str().is_none() {
            n_printed(&value, Meter::of(state).left_to_write())?;
        }
        Ok::<_, Error>(value)
    });
    env.add_filter(names::FACTORS, factors);
    env.add_filter(names::POWER, |operands: Value| power(&operands));
    env.add_filter(names::SLICED, sliced);
    env.add_filter(names::INDEXED, |state: &mut State, value: Value| {
        match value.kind() {
            ValueKind::String | ValueKind::Bytes => {
                Meter::of(state).read(value.as_bytes().map_or(0, <[u8]>::len))?
            }
            ValueKind::Iterable => Meter::of(state).look(value.len().unwrap_or(1))?,
            _ => {}
        }
        Ok::<_, Error>(value)
    });
    env.add_filter(names::BUILT, |state: &mut State, value: Value| settle(value, Meter::of(state)));
    env.add_filter(names::MADE, |state: &mut State, value: Value| settle_shallow(value, Meter::of(state)));
    env.add_filter(names::HELD, |value: Value| is_plain(&value).map(|()| value));
    env.add_filter(names::ITERATED, |state: &mut State, value: ValueOrKwargs| {
        let bytes = |value: &Value| value.as_bytes().map_or(0, <[u8]>::len);
        let within = value.downcast_object_ref::<Vec<Value>>().map_or(0, |list| list.iter().map(bytes).sum());
        Meter::of(state).read(bytes(&value).max(within)).map(|()| value.into_value())
    });
    env.add_filter(names::PASSED, |state: &mut State, value: Value| {
        Meter::of(state);
        value
    });
    env.add_filter(names::NAMED, |value: ValueOrKwargs| {
        let value = value.into_value();
        if value.as_object().is_some_and(|object| object.type_name().ends_with("::Loop")) {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                "`loop(…)` stands directly within its loop: it has no other name, and no macro or block \
                 calls it",
            ))
        } else {
            Ok(value)
        }
    });
    env.add_filter(names::TAKEN, |state: &mut State, bytes: usize| Meter::of(state).make(bytes));
    env.add_filter(names::METHOD, |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let Some((name, args)) = args.split_last() else {
            return Err(Error::from(ErrorKind::MissingArgument));
        };
        method(state, name.as_str().unwrap_or_default(), args)
    });
}

fn method(state: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some((value, args_alone)) = args.split_first() else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
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

/// Bytes of a value's text.
fn n_printed(value: &Value, most: usize) -> Result<usize, Error> {
    struct Counter {
        n: usize,
        most: usize,
    }
    impl Write for Counter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.n += text.len();
            if self.n > self.most { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut counter = Counter { n: 0, most };
    match write!(counter, "{value}") {
        Ok(()) => Ok(counter.n),
        Err(fmt::Error) => Err(Bound::Written.into()),
    }
}

/// Prints a value as minijinja does, once it is known to be within bounds.
fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let meter = Meter::of(state);
    let bytes = match value.as_str() {
        Some(text) => text.len(),
        None => {
            let size = weigh(value, meter)?;
            meter.foresee(size.bytes)?;
            n_printed(value, meter.left_to_write())?
        }
    };
    // Escaped, a character becomes six at most.
    let escaped = if *state.auto_escape() == AutoEscape::None { bytes } else { bytes.saturating_mul(6) };
    Meter::of(state).write(escaped)?;
    escape_formatter(out, state, value)
}
