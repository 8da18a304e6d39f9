//! Texts of other engines as texts of ours: what looks like a template stays text, and a line stays one line.

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextPart {
    /// Words, whatever they look like.
    Plain(String),
    /// An expression of ours, braces included.
    Live(String),
}

/// A template that renders to the pieces, character by character.
///
/// Each run of `{`, `%`, `#` and `$` that a template would read is written as a string in an expression. A
/// raw block would end at the first `endraw` of the text, and swallow a line break after its tag.
pub(super) fn template(pieces: &[TextPart]) -> String {
    let mut out = String::new();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            TextPart::Live(expression) => out.push_str(expression),
            TextPart::Plain(text) => {
                let is_followed = pieces.get(at + 1).is_some();
                protect(text, is_followed, &mut out);
            }
        }
    }
    out
}

fn protect(text: &str, is_followed: bool, out: &mut String) {
    let is_mark = |c: char| matches!(c, '{' | '%' | '#' | '$');
    let mut rest = text;
    while let Some(start) = rest.find(is_mark) {
        out.push_str(&rest[..start]);
        let tail = &rest[start..];
        let run = &tail[..tail.find(|c| !is_mark(c)).unwrap_or(tail.len())];
        rest = &tail[run.len()..];
        let opens = ["{{", "{%", "{#", "${"].iter().any(|open| run.contains(open));
        // What follows may begin with a brace, and would then be read together with this.
        let touches = is_followed && rest.is_empty() && run.ends_with(['{', '$']);
        if opens || touches {
            // `${` must not occur anywhere: it is rewritten before templates are parsed.
            out.push_str(&format!("{{{{ \"{}\" }}}}", run.replace("${", "$\" ~ \"{")));
        } else {
            out.push_str(run);
        }
    }
    out.push_str(rest);
}

/// A text without what YAML's literal blocks can't show: other line ends, spaces before them, blank lines
/// around it.
pub(super) fn tidy(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{2028}', '\u{2029}'], "\n");
    let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches([' ', '\t'])).collect();
    lines.join("\n").trim().to_string()
}

/// A text on one line of at most `most` characters, without anything that a terminal or a YAML comment would
/// obey.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let plain: String = text.chars().map(|c| if is_odd(c) { ' ' } else { c }).collect();
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    match plain.char_indices().nth(most) {
        Some(_) => plain.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => plain,
    }
}

/// Replacement of another engine's placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Something of ours.
    With(Vec<TextPart>),
    /// It is known, and left out.
    Out,
    /// It is none: the text stays.
    Stays,
}

/// Syntax of placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Python's `string.Template`: `${name}`, `$name`, `$$`.
    Dollar,
    /// Python's `str.format`: `{name}`.
    Braces,
}

/// Fills a template's placeholders; also returns the lines that were dropped because they, or the line after,
/// had only placeholders that are left out.
pub(super) fn fill(
    template: &str,
    syntax: Syntax,
    look_up: &mut dyn FnMut(&str) -> Fill,
) -> (Vec<TextPart>, Vec<String>) {
    let (mut lines, mut gone): (Vec<Vec<TextPart>>, Vec<String>) = (Vec::new(), Vec::new());
    let mut skips_blank = false;
    for line in template.lines() {
        let (pieces, is_gone) = fill_line(line, syntax, look_up);
        if is_gone {
            if let Some(title) = lines.last().and_then(|line| announces(line)) {
                gone.push(title);
                lines.pop();
            }
            skips_blank = lines.last().is_none_or(|line| is_blank(line));
            continue;
        }
        if skips_blank && is_blank(&pieces) {
            continue;
        }
        skips_blank = false;
        lines.push(pieces);
    }
    let mut out = Vec::new();
    for (at, line) in lines.into_iter().enumerate() {
        if at > 0 {
            out.push(TextPart::Plain("\n".into()));
        }
        out.extend(line);
    }
    (out, gone)
}

fn is_blank(line: &[TextPart]) -> bool {
    line.iter().all(|piece| matches!(piece, TextPart::Plain(text) if text.trim().is_empty()))
}

/// A line that only introduces what follows: "Here is the conversation history:".
fn announces(line: &[TextPart]) -> Option<String> {
    let [TextPart::Plain(text)] = line else { return None };
    let text = text.trim();
    (text.ends_with(':') || text.to_lowercase().ends_with("history")).then(|| text.to_string())
}

fn fill_line(line: &str, syntax: Syntax, look_up: &mut dyn FnMut(&str) -> Fill) -> (Vec<TextPart>, bool) {
    let mark = if syntax == Syntax::Dollar { '$' } else { '{' };
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), line);
    let (mut n_out, mut n_with) = (0, 0);
    while let Some(at) = rest.find(mark) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if syntax == Syntax::Dollar && rest.starts_with("$$") {
            plain.push('$');
            rest = &rest[2..];
            continue;
        }
        let (length, found) = match placeholder(rest, syntax) {
            Some((name, length)) => (length, look_up(name)),
            None => (1, Fill::Stays),
        };
        match found {
            Fill::With(with) => {
                pieces.push(TextPart::Plain(std::mem::take(&mut plain)));
                pieces.extend(with);
                n_with += 1;
            }
            Fill::Out => {
                plain.push('…');
                n_out += 1;
            }
            Fill::Stays => plain.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
    plain.push_str(rest);
    let is_gone = n_out > 0 && n_with == 0 && !plain.contains(char::is_alphanumeric);
    pieces.push(TextPart::Plain(plain));
    (pieces, is_gone)
}

/// Name and length of a placeholder at the beginning of `text`.
fn placeholder(text: &str, syntax: Syntax) -> Option<(&str, usize)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (open, close) = match (syntax, text.starts_with("${")) {
        (Syntax::Dollar, false) => (1, 0),
        (Syntax::Dollar, true) => (2, 1),
        (Syntax::Braces, _) => (1, 1),
    };
    let inside = &text[open..];
    let name = &inside[..inside.find(|c| !is_word(c)).unwrap_or(inside.len())];
    let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
    let is_closed = close == 0 || inside[name.len()..].starts_with('}');
    (is_name && is_closed).then_some((name, open + name.len() + close))
}
