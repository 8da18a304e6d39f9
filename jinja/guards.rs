//! The environment: minijinja's filters, tests and functions, each of them guarded.
//!
//! It starts out empty, so that a filter of a newer minijinja which nobody has looked at is missing instead
//! of unguarded. `debug()` is left out: it prints the program's insides.

use crate::bounds::{Bound, MAX_FRAMES, MAX_STEPS, Meter};
use crate::foresee::{SHALLOW, foresee, is_range, is_sound};
use crate::values::{is_plain, settle, settle_shallow, weigh};
use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, Output, State, escape_formatter};
use minijinja::{filters, functions, tests};
use std::fmt::{self, Write};

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
pub(crate) fn add_test(env: &mut Environment<'static>, name: &'static str, plain: Value) {
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
pub(crate) fn called(
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

/// Bytes of a value's text, if there are at most `most`.
pub(crate) fn n_printed(value: &Value, most: usize) -> Result<usize, Error> {
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
            weigh(value, meter)?;
            n_printed(value, meter.left_to_write())?
        }
    };
    // Escaped, a character becomes six at most.
    let escaped = if *state.auto_escape() == AutoEscape::None { bytes } else { bytes.saturating_mul(6) };
    Meter::of(state).write(escaped)?;
    escape_formatter(out, state, value)
}
