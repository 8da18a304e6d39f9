//! What a template may take: steps, and sizes that steps don't count.
//!
//! minijinja counts instructions, and one of them may run a filter over a list that is only announced
//! (`[1] * 100000000`) or pad a text to any width. Filters refuse both before they begin.

use super::explain::FILTERS;
use super::{Code, TemplateError};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use std::sync::LazyLock;

/// Steps that one template may take before it is called endless.
const FUEL: u64 = 2_000_000;
/// Most items of lists and bytes of texts that the filters of one template take together.
const MAX_WORK: usize = 5_000_000;
/// Widest padding that a filter makes.
const MAX_WIDTH: i64 = 10_000;
/// Filters whose numbers say how much they make.
const PADDING: &[&str] = &["indent", "slice", "batch"];

/// Longest piece of code, in bytes. A parser goes down a level at each link of a chain (`1+1+1…`, `a.b.c…`).
const MAX_CODE: usize = 2_000;
/// Most branches of one template, for the same reason.
const MAX_BRANCHES: usize = 100;

/// Refuses code that is too long to be parsed.
pub(super) fn is_short_code(code: &str, line: usize) -> Result<(), TemplateError> {
    if code.len() <= MAX_CODE {
        return Ok(());
    }
    let message = format!("this is too long: {} bytes of code, at most {MAX_CODE} are read", code.len());
    Err(TemplateError { message, line })
}

/// Refuses a template with code that is too long to be parsed.
pub(super) fn is_short(code: &Code, text: &str) -> Result<(), TemplateError> {
    let mut branches = 0;
    for (line, piece) in code.pieces(text) {
        is_short_code(piece, line)?;
        branches += usize::from(piece.trim_start_matches(['-', '+', ' ']).starts_with("elif"));
    }
    if branches > MAX_BRANCHES {
        let message = format!("this is too long: {branches} branches, at most {MAX_BRANCHES} are read");
        return Err(TemplateError { message, line: 1 });
    }
    Ok(())
}

/// The environment all scenario templates are parsed and rendered in.
pub fn environment() -> Environment<'static> {
    static LIMITED: LazyLock<Environment<'static>> = LazyLock::new(|| {
        let mut env = plain();
        for name in FILTERS {
            env.add_filter(*name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
                limited(state, name, &args.into_values())
            });
        }
        env
    });
    LIMITED.clone()
}

fn plain() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default());
    env.set_fuel(Some(FUEL));
    env.set_debug(true);
    env
}

fn limited(state: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
    static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(plain);
    let counts = |value: &Value| value.kind() == ValueKind::Number && PADDING.contains(&name);
    let wide = |value: &Value| counts(value) && value.as_i64().is_none_or(|n| n.abs() > MAX_WIDTH);
    let long = |value: &Value| name == "format" && value.as_str().is_some_and(has_long_number);
    let size = |value: &Value| value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
    let done = state.get_temp("work").and_then(|work| work.as_usize()).unwrap_or(0);
    let work = args.iter().map(size).fold(done, usize::saturating_add);
    state.set_temp("work", work.into());
    let named = |value: &Value| match value.is_kwargs() {
        true => value
            .try_iter()
            .into_iter()
            .flatten()
            .any(|key| value.get_item(&key).is_ok_and(|value| wide(&value))),
        false => false,
    };
    if work > MAX_WORK || args.iter().any(|value| wide(value) || named(value) || long(value)) {
        let message = format!("`{name}` would make or read too much");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    PLAIN.empty_state().apply_filter(name, args)
}

/// `%0999999999d` asks for as many zeros.
fn has_long_number(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_is_one() {
        let env = plain();
        for name in FILTERS {
            let error = env.empty_state().apply_filter(name, &[]).err();
            assert!(error.is_none_or(|error| error.kind() != ErrorKind::UnknownFilter), "{name}");
        }
    }

    #[test]
    fn filters_work_as_before() {
        let text = "{{ [3, 1, 2] | sort(reverse=true) | join('-') }} {{ 'a' | indent(2, first=true) }} \
                    {{ [{'n': 1}] | map(attribute='n') | list }} {{ x | default('none') }} {{ 2.345 | round(1) }}";
        assert_eq!(environment().render_str(text, ()).unwrap(), "3-2-1   a [1] none 2.3");
    }

    #[test]
    fn what_would_be_huge_is_refused() {
        for text in [
            "{{ 'a' | indent(10 ** 15) }}",
            "{{ 'a' | indent(width=10 ** 15) }}",
            "{{ ([1] * 90000000) | list }}",
            "{{ [1] | slice(10 ** 12) | list }}",
            "{{ '%0999999999d' | format(1) }}",
            "{{ ('a' * 90000000) | upper }}",
            "{% for i in range(100000) %}{{ range(99999) | sort | length }}{% endfor %}",
            "{{ range(10 ** 9) }}",
            "{{ 'a' * 10 ** 9 }}",
            "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        ] {
            assert!(environment().render_str(text, ()).is_err(), "{text}");
        }
    }
}
