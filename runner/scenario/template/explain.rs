//! minijinja's errors in an author's words.

use super::{Code, TemplateError};
use crate::diagnostic::suggest;
use greenroom_jinja::{Bound, shortened};
use minijinja::ErrorKind;

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let detail = error.detail().unwrap_or_default();
        let place = error.template_source().zip(error.range()).and_then(|(text, range)| text.get(range));
        let message = match (error.kind(), place) {
            _ if Bound::of(&error).is_some() => detail.to_string(),
            (ErrorKind::UndefinedError, Some(name)) => format!("`{name}` is not defined"),
            (ErrorKind::OutOfFuel, _) => "this takes too many steps: it would not come to an end".to_string(),
            (ErrorKind::UnknownFilter, _) => {
                format!("there is no filter `{}`", detail.split(' ').nth(1).unwrap_or_default())
            }
            (kind, _) if detail.is_empty() => kind.to_string(),
            (kind, _) => format!("{kind}: {detail}"),
        };
        // The end of the text is not where a block that is not ended begins.
        let begun = error.template_source().filter(|_| message.contains("unexpected end of input"));
        let line = begun.and_then(unended).or(greenroom_jinja::line(&error)).unwrap_or(1);
        Self { message: shortened(message), line }
    }
}

impl TemplateError {
    fn bound(&self) -> Option<Bound> {
        Bound::ALL.into_iter().find(|bound| bound.to_string() == self.message)
    }
}

/// What to do about an error, where its cause can be told.
pub fn remedy(text: &str, error: &TemplateError) -> Option<String> {
    let message = error.message.as_str();
    if let Some(filter) = message.strip_prefix("there is no filter `").and_then(|rest| rest.strip_suffix('`'))
    {
        return suggest(filter, FILTERS.iter().copied())
            .or(Some(format!("filters are, among others, {}", FILTERS[..8].join(", "))));
    }
    if let Some(bound) = error.bound() {
        return Some(bound.remedy().into());
    }
    let code = Code::of(text);
    let bare = (!text.contains("{{") && !text.contains("{%")).then_some(text);
    let pieces: Vec<&str> = bare.into_iter().chain(code.pieces(text).map(|(_, piece)| piece)).collect();
    if message.ends_with("is not defined") {
        return Some(
            "what is printed or compared must exist: look at its spelling under `variables:`".into(),
        );
    }
    if message.contains("unexpected end of input") && text.contains("{%") {
        return Some("each `{% if %}` ends with `{% endif %}`, each `{% for %}` with `{% endfor %}`".into());
    }
    for (wrong, right) in [("&", "and"), ("||", "or")] {
        if pieces.iter().any(|code| code.contains(wrong)) {
            return Some(format!("write `{right}`"));
        }
    }
    for (wrong, help) in [
        ("`!`", "write `not`"),
        ("`?`", "write `A if CONDITION else B`"),
        ("quote", "put the same quote at the end of the text"),
    ] {
        if message.contains(wrong) {
            return Some(help.into());
        }
    }
    if message.contains("unexpected `}`") {
        return Some("what `{{` opens, `}}` closes".into());
    }
    let assigns = |code: &str| {
        let bytes = code.as_bytes();
        let alone = |at: usize| {
            let before = at.checked_sub(1).map_or(b' ', |at| bytes[at]);
            bytes[at] == b'=' && !b"=!<>".contains(&before) && bytes.get(at + 1) != Some(&b'=')
        };
        (0..bytes.len()).any(alone)
    };
    let syntax = message.starts_with("syntax error");
    (syntax && !text.contains("{%") && pieces.iter().any(|code| assigns(code)))
        .then(|| "to compare, write `==`".to_string())
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
    use crate::scenario::template::environment;

    #[test]
    fn every_filter_is_one() {
        for name in FILTERS {
            let text = format!("{{{{ 1 | {name} }}}}");
            let error = environment().template("t", &text).unwrap().render(()).err();
            assert!(error.is_none_or(|error| error.kind() != ErrorKind::UnknownFilter), "{name}");
        }
    }
}
