//! Line breaks of templates: a line of tags alone leaves no line, and every other line stays a line.
//!
//! Jinja keeps all line breaks, unless its `trim_blocks` takes each one after a tag. The first leaves empty
//! lines where `{% for … %}` is alone on its line; the second joins lines that end in `{% endif %}`, and
//! those of a list whose tags already take the line break before them (`{%- for … %}`). Here what
//! `trim_blocks` and `lstrip_blocks` do is limited to lines without any text: elsewhere Jinja's own `+` is
//! added to the tags, which keeps what is beside them.
//!
//! Recordings from before this rule are read with the options alone ([`FIRST_RULES`]).

use super::code::{end_of_code, end_of_raw, is_raw};
use std::borrow::Cow;

/// The override with which a scenario is read for a recording by the first rules; no variable can have this
/// name.
pub const FIRST_RULES: &str = "{% %}";

/// A `{% … %}` or `{# … #}`.
struct Tag {
    start: usize,
    end: usize,
}

/// A template that keeps its line breaks, and the tags that now do, each with its line.
pub fn keep_lines(text: &str) -> (Cow<'_, str>, Vec<(usize, String)>) {
    let (mut marks, mut kept) = (Vec::new(), Vec::new());
    let mut line = TemplateLine::default();
    let mut at = 0;
    while at < text.len() {
        let end_of_text = match next(text, at) {
            TemplatePiece::Tag(tag, end) => {
                at = tag.end;
                line.tags.push(tag);
                end
            }
            TemplatePiece::Text(end) => end,
            TemplatePiece::Value(end) => {
                line.has_text = true;
                at = end;
                end
            }
        };
        for piece in text[at..end_of_text].split_inclusive('\n') {
            line.has_text |= !piece.trim().is_empty();
            if piece.ends_with('\n') {
                std::mem::take(&mut line).keep(text, at, &mut marks, &mut kept);
            }
            at += piece.len();
        }
    }
    line.keep(text, at, &mut marks, &mut kept);
    if marks.is_empty() {
        return (text.into(), kept);
    }
    let (mut out, mut done) = (String::with_capacity(text.len() + marks.len()), 0);
    for mark in marks {
        out.push_str(&text[done..mark]);
        out.push('+');
        done = mark;
    }
    out.push_str(&text[done..]);
    (out.into(), kept)
}

/// A line of a template: its own text, and its tags.
#[derive(Default)]
struct TemplateLine {
    has_text: bool,
    tags: Vec<Tag>,
}

impl TemplateLine {
    /// Marks what is to be kept of the line that ends in the piece at `at`.
    fn keep(self, text: &str, at: usize, marks: &mut Vec<usize>, kept: &mut Vec<(usize, String)>) {
        let (Some(first), Some(last)) = (self.tags.first(), self.tags.last()) else { return };
        let sign = text[first.start + 2..].chars().next().filter(|c| "-+".contains(*c));
        let before = &text[..first.start];
        let is_indented =
            before.ends_with([' ', '\t']) && before.trim_end_matches([' ', '\t']).ends_with('\n');
        if self.has_text && is_indented && sign.is_none() {
            marks.push(first.start + 2);
        }
        // A tag that takes the line break before it leaves the one after it.
        let is_own = self.has_text || sign == Some('-');
        let ends_line = last.end == at && text[at..].trim_start_matches('\r').starts_with('\n');
        let is_signed = text[..last.end - 2].ends_with(['-', '+']);
        if is_own && ends_line && !is_signed {
            marks.push(last.end - 2);
            let number = text[..last.start].matches('\n').count() + 1;
            kept.push((number, text[last.start..last.end].to_string()));
        }
    }
}

enum TemplatePiece {
    /// A tag, and the end of the raw text after it; for any tag but `{% raw %}` there is none.
    Tag(Tag, usize),
    /// Text up to there.
    Text(usize),
    /// `{{ … }}` up to there.
    Value(usize),
}

/// Element at a position of a template.
fn next(text: &str, at: usize) -> TemplatePiece {
    let rest = &text[at..];
    let closed = |inner: usize, end: &str| {
        let end = at + 2 + inner + end.len();
        // One that is not closed is an error of the template.
        if end <= text.len() { end } else { text.len() }
    };
    if let Some(code) = rest.strip_prefix("{{") {
        return TemplatePiece::Value(closed(end_of_code(code, "{"), "}}"));
    }
    if let Some(comment) = rest.strip_prefix("{#") {
        return comment.find("#}").map_or(TemplatePiece::Text(text.len()), |inner| {
            let end = closed(inner, "#}");
            TemplatePiece::Tag(Tag { start: at, end }, end)
        });
    }
    if let Some(code) = rest.strip_prefix("{%") {
        let end = closed(end_of_code(code, "%"), "%}");
        if !text[..end].ends_with("%}") || end < at + 4 {
            return TemplatePiece::Text(text.len());
        }
        let tag = Tag { start: at, end };
        if !is_raw(&text[at + 2..end - 2]) {
            return TemplatePiece::Tag(tag, end);
        }
        return end_of_raw(text, end)
            .map_or(TemplatePiece::Text(text.len()), |end| TemplatePiece::Tag(tag, end));
    }
    let open = rest
        .match_indices('{')
        .map(|(open, _)| open)
        .find(|open| *open > 0 && rest[open + 1..].starts_with(['{', '%', '#']));
    TemplatePiece::Text(at + open.unwrap_or(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::environment;
    use minijinja::context;

    fn rendered(text: &str) -> String {
        let (text, _) = keep_lines(text);
        let names = context! { items => ["bread", "milk"], yes => true, n => 3 };
        environment().template("t", &text).unwrap().render(names).unwrap()
    }

    #[test]
    fn a_list_has_a_line_for_each_item_in_either_idiom() {
        let expected = "The list:\n- bread\n- milk\nThat is all.";
        for text in [
            "The list:\n{% for x in items %}\n- {{ x }}\n{% endfor %}\nThat is all.",
            "The list:\n{%- for x in items %}\n- {{ x }}\n{%- endfor %}\nThat is all.",
            "The list:\n{% for x in items -%}\n- {{ x }}\n{% endfor %}\nThat is all.",
            "The list:\n  {% for x in items %}\n- {{ x }}\n  {% endfor %}\nThat is all.",
            "The list:\n{% for x in items %}- {{ x }}\n{% endfor %}That is all.",
            "The list:\n{# items #}\n{% for x in items %}{% if yes %}\n- {{ x }}\n{% endif %}{% endfor %}\n\
             That is all.",
        ] {
            assert_eq!(rendered(text), expected, "{text}");
        }
    }

    #[test]
    fn a_line_with_text_of_its_own_stays_a_line() {
        for (text, expected) in [
            ("Price: {% if yes %}{{ n }}{% endif %}\nNext", "Price: 3\nNext"),
            ("a\n  {% if yes %}b{% endif %} c\nd", "a\n  b c\nd"),
            ("a {# why #}\nb", "a \nb"),
            ("a{% if yes %}\n, b\n{% endif %}\nc", "a\n, b\nc"),
            ("{% if yes %}a{% endif -%}\n b", "ab"),
            ("a\n{%- if yes -%}\nb\n{%- endif -%}\nc", "abc"),
            ("{% raw %}{{ x }}{% endraw %}\nb", "{{ x }}\nb"),
            ("a\n{% raw %}{{ x }}\n  {% endraw %} c\nd", "a\n{{ x }}\n   c\nd"),
            ("a {% raw %}\n{{ x }}\n{% endraw %}\nd", "a \n{{ x }}\nd"),
            ("{% set a = {'%}': 1} %}\n{{ a['%}'] }} {% if yes %}{% endif %}\nb", "1 \nb"),
            ("a {% if yes %}b{% endif +%}\nc", "a b\nc"),
        ] {
            assert_eq!(rendered(text), expected, "{text}");
        }
    }

    #[test]
    fn raw_text_has_lines_of_its_own() {
        for (text, expected) in [
            ("Before:\n{% raw %}\n{{ x }}\n{% endraw %}\nAfter.", "Before:\n{{ x }}\nAfter."),
            ("Before:\n  {% raw %}\n{{ x }}\n  {% endraw %}\nAfter.", "Before:\n{{ x }}\nAfter."),
            ("Before:\r\n{% raw %}\r\n{{ x }}\r\n\t{% endraw %}\r\nAfter.", "Before:\r\n{{ x }}\r\nAfter."),
            ("Before:\n{%- raw %}\n{{ x }}\n{%- endraw %}\nAfter.", "Before:\n{{ x }}\nAfter."),
            ("Before:\n{%\traw\t%}\n{% endif %}\n{%\tendraw\t%}\nAfter.", "Before:\n{% endif %}\nAfter."),
            (
                "{% raw %}\nendraw {{ x }}\n{% endraw %}\n{% if yes %}\nb\n{% endif %}\n",
                "endraw {{ x }}\nb\n",
            ),
        ] {
            assert_eq!(rendered(text), expected, "{text}");
            let (kept, tags) = keep_lines(text);
            let is_joining = text.contains("{%-");
            assert_eq!((*kept == *text, tags.is_empty()), (!is_joining, !is_joining), "{text}");
        }
    }

    #[test]
    fn texts_without_such_lines_are_the_same() {
        for text in [
            "a {{ n }}\nb",
            "{% if yes %}\na\n{% endif %}\nb",
            "{% open",
            "{# open",
            "{{ open",
            "{% raw %}{%",
            "{% raw %}\n{% endraw",
            "${a}{\n{",
        ] {
            let (kept, tags) = keep_lines(text);
            assert_eq!((&*kept, tags.len()), (text, 0), "{text}");
        }
        let (_, tags) = keep_lines("a\nb {% if yes %}c{% endif %}\n{%- if n %}\nd{% endif %}");
        assert_eq!(tags, [(2, "{% endif %}".to_string()), (3, "{%- if n %}".to_string())]);
    }
}
