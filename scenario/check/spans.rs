//! The places in the files that diagnostics point at.

use crate::template::{self, Code, TemplateError, TemplateFault};
use greenroom_yaml::diagnostic::{Diagnostic, Sources, Span};
use greenroom_yaml::{Path, Tree};

/// Most places at which a name is looked for in a text, to mark it.
const MAX_PLACES: usize = 200;

/// The place of a name on a line of a text value; the line, where it is not found.
pub fn name_span(sources: &Sources, tree: &Tree, path: &Path, line: usize, name: &str) -> Span {
    let span = tree.text_line(sources, path, line);
    let text = sources.of(span).text.get(span.start..span.end).unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let whole = |at: &usize| !text[..*at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word);
    let is_field = |at: &usize| text[..*at].ends_with('.');
    // Code may begin on an earlier line. What has no braces is an expression.
    let value = tree.value(path);
    let whole_text = sources.of(value).text.get(value.start..value.end).unwrap_or_default();
    let code = Code::of(whole_text);
    let is_template = ["{{", "{%", "${"].iter().any(|open| whole_text.contains(open));
    let is_code = |at: &usize| {
        let seed = || text[..*at].rfind("${").is_some_and(|open| !text[open..*at].contains('}'));
        let is_seed = text[*at..].starts_with("${");
        !is_template || is_seed || code.contains((span.start + at).saturating_sub(value.start)) || seed()
    };
    let places = || text.match_indices(name).map(|(at, _)| at).filter(whole).take(MAX_PLACES);
    let own = places().find(|at| is_code(at) && !is_field(at));
    match own.or_else(|| places().find(is_code)) {
        Some(at) if !name.is_empty() => {
            Span { start: span.start + at, end: span.start + at + name.len(), ..span }
        }
        _ => span,
    }
}

/// What a template's error points at, and how to remedy it.
pub fn name_of(error: &TemplateError) -> &str {
    match &error.kind {
        TemplateFault::Undefined(name) | TemplateFault::UnknownFilter(name) => name.as_str(),
        _ => "",
    }
}

/// The error of a template that can't be rendered.
pub fn template_error(path: &Path, text: &str, span: Span, error: TemplateError) -> Diagnostic {
    let help = template::remedy(text, &error);
    let help = help.unwrap_or("`{{ name }}` prints a value, `{% if … %} … {% endif %}` decides".into());
    Diagnostic::error("template", path.to_string(), span, error.message).help(help)
}
