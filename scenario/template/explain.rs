//! minijinja's errors in an author's words.

use super::{Code, TemplateError, TemplateFault};
use greenroom_jinja::{Bound, shortened};
use greenroom_yaml::diagnostic::suggest;
use minijinja::ErrorKind;

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let detail = error.detail().unwrap_or_default();
        let kind = mistake(&error, detail);
        let message = match (&kind, error.kind()) {
            (TemplateFault::Bound(_), _) => detail.to_string(),
            (TemplateFault::Undefined(name), _) => format!("`{name}` is not defined"),
            (TemplateFault::UnknownFilter(name), _) => format!("there is no filter `{name}`"),
            (_, ErrorKind::OutOfFuel) => "this takes too many steps: it would not come to an end".to_string(),
            (_, kind) if detail.is_empty() => kind.to_string(),
            (_, kind) => format!("{kind}: {detail}"),
        };
        // The end of the text is not where a block that is not ended begins.
        let begun = error.template_source().filter(|_| kind == TemplateFault::Unended);
        let line = begun.and_then(unended).or(greenroom_jinja::line(&error)).unwrap_or(1);
        Self { kind, message: shortened(message), line }
    }
}

/// The kind of an error. minijinja has one for all of syntax; which sign is wrong is in its detail alone.
fn mistake(error: &minijinja::Error, detail: &str) -> TemplateFault {
    if let Some(bound) = Bound::of(error) {
        return TemplateFault::Bound(bound);
    }
    let place = error.template_source().zip(error.range()).and_then(|(text, range)| text.get(range));
    match (error.kind(), place) {
        (ErrorKind::UndefinedError, Some(name)) => TemplateFault::Undefined(name.to_string()),
        (ErrorKind::UnknownFilter, _) => {
            TemplateFault::UnknownFilter(detail.split(' ').nth(1).unwrap_or_default().to_string())
        }
        (ErrorKind::SyntaxError, _) if detail.contains("unexpected end of input") => TemplateFault::Unended,
        (ErrorKind::SyntaxError, _) if detail.contains("unexpected `}`") => TemplateFault::Character('}'),
        (ErrorKind::SyntaxError, _) => TemplateFault::Syntax,
        _ => TemplateFault::Other,
    }
}

/// The remedy for an error, if its cause is known.
pub fn remedy(text: &str, error: &TemplateError) -> Option<String> {
    let has_blocks = text.contains("{%");
    match &error.kind {
        TemplateFault::UnknownFilter(filter) => {
            let some = || format!("available filters include {}", FILTERS[..8].join(", "));
            return Some(suggest(filter, FILTERS.iter().copied()).unwrap_or_else(some));
        }
        TemplateFault::Bound(bound) => return Some(bound.remedy().into()),
        TemplateFault::Undefined(_) => {
            let help = "what is printed or compared must exist: check its spelling under `variables:`";
            return Some(help.into());
        }
        TemplateFault::Unended if has_blocks => {
            let help = "end each `{% if %}` with `{% endif %}` and each `{% for %}` with `{% endfor %}`";
            return Some(help.into());
        }
        TemplateFault::Unended
        | TemplateFault::Character(_)
        | TemplateFault::Syntax
        | TemplateFault::Other => {}
    }
    let code = Code::of(text);
    let bare = (!text.contains("{{") && !has_blocks).then_some(text);
    let pieces: Vec<&str> = bare.into_iter().chain(code.pieces(text).map(|(_, piece)| piece)).collect();
    for (wrong, right) in [("&", "and"), ("||", "or")] {
        if pieces.iter().any(|code| code.contains(wrong)) {
            return Some(format!("write `{right}`"));
        }
    }
    let help = match error.kind {
        TemplateFault::Character('!') => "write `not`",
        TemplateFault::Character('?') => "write `A if CONDITION else B`",
        TemplateFault::Character('"' | '\'') => "put the same quote at the end of the text",
        TemplateFault::Character('}') => "close each `{{` with `}}`",
        TemplateFault::Syntax | TemplateFault::Unended
            if !has_blocks && pieces.iter().any(|code| assigns(code)) =>
        {
            "to compare, write `==`"
        }
        _ => return None,
    };
    Some(help.to_string())
}

/// True if code has a `=` that is not a comparison.
fn assigns(code: &str) -> bool {
    let bytes = code.as_bytes();
    let alone = |at: usize| {
        let before = at.checked_sub(1).map_or(b' ', |at| bytes[at]);
        bytes[at] == b'=' && !b"=!<>".contains(&before) && bytes.get(at + 1) != Some(&b'=')
    };
    (0..bytes.len()).any(alone)
}

/// The line of the last `{% … %}` that is not ended.
fn unended(text: &str) -> Option<usize> {
    const BLOCKS: &[&str] = &["if", "for", "with", "macro", "filter", "call", "block", "raw", "autoescape"];
    let mut open = Vec::new();
    for (at, _) in text.match_indices("{%") {
        let rest = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let word = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if BLOCKS.contains(&word) {
            open.push(at);
        } else if word.starts_with("end") {
            open.pop();
        }
    }
    open.pop().map(|at| text[..at].matches('\n').count() + 1)
}

/// Filters by name, those that scenarios need most first.
const FILTERS: &[&str] = &[
    "upper",
    "lower",
    "capitalize",
    "join",
    "length",
    "default",
    "first",
    "last",
    "title",
    "trim",
    "replace",
    "round",
    "abs",
    "int",
    "float",
    "list",
    "sort",
    "reverse",
    "unique",
    "sum",
    "min",
    "max",
    "items",
    "dictsort",
    "split",
    "lines",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "groupby",
    "batch",
    "slice",
    "indent",
    "string",
    "bool",
    "attr",
    "chain",
    "zip",
    "count",
    "format",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::environment;

    #[test]
    fn every_filter_is_one() {
        for name in FILTERS {
            let text = format!("{{{{ 1 | {name} }}}}");
            let error = environment().template("t", &text).unwrap().render(()).err();
            assert!(error.is_none_or(|error| error.kind() != ErrorKind::UnknownFilter), "{name}");
        }
    }
}
