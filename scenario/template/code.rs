//! The code and the text of a template, separated in one pass.

use std::ops::Range;

/// The parts of a template.
#[derive(Debug, Default)]
pub struct Code {
    /// The code in `{{ }}` and `{% %}`.
    inside: Vec<Range<usize>>,
    /// The text between `{% raw %}` and `{% endraw %}`.
    raw: Vec<Range<usize>>,
    /// Bytes at which lines end.
    line_ends: Vec<usize>,
}

impl Code {
    /// Scans a template.
    pub fn of(text: &str) -> Self {
        let mut code =
            Self { line_ends: text.match_indices('\n').map(|(at, _)| at).collect(), ..Self::default() };
        let mut at = 0;
        while let Some(open) = text[at..].find('{').map(|open| at + open) {
            let rest = &text[open..];
            let found = if rest.starts_with("{#") {
                // Unclosed, it is an error of the template.
                rest.find("#}").map(|end| open..open + end)
            } else if rest.starts_with("{{") || rest.starts_with("{%") {
                let inside = open + 2..open + 2 + end_of_code(&rest[2..], &rest[1..2]);
                code.inside.push(inside.clone());
                Some(inside)
            } else {
                Some(open..open + 1)
            };
            let Some(found) = found else { break };
            at = found.end;
            if rest.starts_with("{%") && is_raw(&text[found]) {
                let end = end_of_raw(text, at);
                code.raw.push(at..end.unwrap_or(text.len()));
                // Within the tag, which is no code that anything looks at.
                at = end.map_or(text.len(), |end| end + 2);
            }
        }
        code
    }

    /// True if a byte is in code.
    pub fn contains(&self, at: usize) -> bool {
        within(&self.inside, at)
    }

    /// True if a byte is in a raw part.
    pub fn is_raw(&self, at: usize) -> bool {
        within(&self.raw, at)
    }

    /// One-based line of a byte.
    pub fn line(&self, at: usize) -> usize {
        self.line_ends.partition_point(|end| *end < at) + 1
    }

    /// The pieces of code, each with its line.
    pub fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        self.inside.iter().map(|range| (self.line(range.start), &text[range.clone()]))
    }
}

/// True of the code of the tag after which all is text.
pub(super) fn is_raw(code: &str) -> bool {
    code.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_ascii_whitespace()) == "raw"
}

/// The start of the `{% endraw %}` after a place of a template.
pub(super) fn end_of_raw(text: &str, from: usize) -> Option<usize> {
    let is_sign = |c| matches!(c, '-' | '+');
    let mut opened = text[from..].match_indices("{%").map(|(at, _)| from + at);
    opened.find(|at| {
        let code = text[at + 2..].trim_start_matches(is_sign).trim_ascii_start();
        let rest =
            code.strip_prefix("endraw").map(|rest| rest.trim_ascii_start().trim_start_matches(is_sign));
        rest.is_some_and(|rest| rest.starts_with("%}"))
    })
}

fn within(ranges: &[Range<usize>], at: usize) -> bool {
    let next = ranges.partition_point(|range| range.end <= at);
    ranges.get(next).is_some_and(|range| range.contains(&at))
}

/// Bytes up to the end of code that has just begun: quotes and brackets in it hide what looks like its end.
pub(super) fn end_of_code(text: &str, opened_by: &str) -> usize {
    let end = if opened_by == "{" { "}}" } else { "%}" };
    let (mut quote, mut depth, mut escaped) = (None, 0usize, false);
    for (at, c) in text.char_indices() {
        if let Some(quoted) = quote {
            let closes = c == quoted && !escaped;
            escaped = c == '\\' && !escaped;
            quote = quote.filter(|_| !closes);
            continue;
        }
        match c {
            _ if depth == 0 && text[at..].starts_with(end) => return at,
            '"' | '\'' => (quote, escaped) = (Some(c), false),
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_distinguished_from_text() {
        for (text, pieces) in [
            ("a {{ b }} c", vec![" b "]),
            ("{{ '}}' }}{% if {'a': {'b': 1}} %}", vec![" '}}' ", " if {'a': {'b': 1}} "]),
            ("{# don't {{ x }} #}{{ y }}", vec![" y "]),
            ("{% raw %}{{ it's }}{% endraw %}{{ y }}", vec![" raw ", " y "]),
            ("{% raw %}endraw {{ x }}{% endraw %}{{ y }}", vec![" raw ", " y "]),
            ("${a} { {\n}} {{ open", vec![" open"]),
            (r"{{ 'it\'s' }}, {{ b }}", vec![r" 'it\'s' ", " b "]),
        ] {
            let code = Code::of(text);
            assert_eq!(code.pieces(text).map(|(_, piece)| piece).collect::<Vec<_>>(), pieces, "{text}");
        }
        let code = Code::of("a\n{% raw %}b{% endraw %}\n{{ c }}");
        assert!(code.is_raw(11) && !code.is_raw(0) && code.contains(28) && !code.contains(1));
        assert_eq!([0, 1, 2, 28].map(|at| code.line(at)), [1, 1, 2, 3]);
    }
}
