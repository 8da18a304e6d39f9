//! YAML's own mistakes in an author's words: what the parser stumbled over is often not where the mistake is.

/// A mistake: its byte, what it is, what to do.
pub(super) struct SyntaxMistake {
    pub(super) at: usize,
    pub(super) message: String,
    pub(super) help: String,
}

/// Explains the parser's message about a byte of the text.
pub(super) fn explain(info: &str, text: &str, at: usize) -> SyntaxMistake {
    let at = floor(text, at);
    let mistake = |at: usize, message: &str, help: &str| SyntaxMistake {
        at,
        message: message.into(),
        help: help.into(),
    };
    let has = |parts: &[&str]| parts.iter().any(|part| info.contains(part));
    if has(&["tab cannot", "tabs disallowed", "found a tab", "start with a tab"]) {
        let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let at = text[line..].find('\t').map_or(at, |tab| line + tab);
        return mistake(
            at,
            "this line is indented with a tab; YAML needs spaces",
            "replace each tab with two spaces",
        );
    }
    if has(&["mapping values are not allowed"]) {
        let message = "this line has a second `: `; a text that contains a colon and a space needs quotes";
        return mistake(at, message, "put the text in quotes, or on separate lines after `>-`");
    }
    if has(&["in quoted scalar", "a quoted scalar, found unexpected"]) && text[at..].starts_with(['"', '\''])
    {
        return mistake(at, "this quote is not closed", "put the same quote at the end of the text");
    }
    if has(&["a quoted scalar, found unexpected end of stream"]) {
        return mistake(at, "a quote is not closed", "put the same quote at the end of the text");
    }
    if has(&["simple key expect"]) {
        let line = text[..at].trim_end();
        let start = line.rfind('\n').map_or(0, |at| at + 1);
        let at = start + (line[start..].len() - line[start..].trim_start().len());
        let help =
            "put a colon and a space after a key; indent the further lines of a text deeper than its key";
        return mistake(at, "this is neither `key: value` nor an item `- …` of a list", help);
    }
    if has(&[
        "illegal placement of ':'",
        "a flow mapping",
        "a flow sequence",
        "misplaced bracket",
        "in flow construct",
    ]) && let Some((open, bracket)) = unclosed(&text[..at])
    {
        let close = if bracket == '[' { ']' } else { '}' };
        if text[open..at].contains('\n') {
            return mistake(
                open,
                &format!("this `{bracket}` is not closed"),
                &format!("put `{close}` at its end"),
            );
        }
        let message = format!("expected `,` or `{close}` here");
        let help =
            format!("put a comma between items, `{close}` at the end, and quotes around `:`, `{{` or `[`");
        return mistake(at, &message, &help);
    }
    if has(&[
        "expected '-' indicator",
        "did not find expected key",
        "invalid indentation",
        "wrongly indented",
    ]) {
        let message = "this line's indentation does not match the lines it belongs to";
        return mistake(at, message, "start all lines of a mapping or list in the same column");
    }
    if let Some(character) = info.strip_prefix("unexpected character: `").and_then(|rest| rest.chars().next())
    {
        let message = format!("a string can't begin with `{character}`");
        return mistake(at, &message, "put the text in quotes");
    }
    if has(&["unknown anchor"]) {
        let name: String = text[at..]
            .trim_start_matches('*')
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let message = format!("`*{name}` has no value: there is no `&{name}` before it");
        let help = format!("write `&{name}` before the value to repeat, or put a text with `*` in quotes");
        return mistake(at, &message, &help);
    }
    if has(&["escape"]) {
        let help = r"in single quotes a backslash is literal; in double quotes write it as `\\`";
        return mistake(at, "unknown escape: invalid character after a backslash", help);
    }
    if has(&["block sequence entries"]) {
        return mistake(at, "an item of a list can't begin here", "start a list on the line after its key");
    }
    if has(&["trailing content", "unexpected end of plain scalar"]) {
        let help = "put the whole text in quotes; write a `\"` in it as `\\\"`";
        return mistake(at, "unexpected characters after the end of a text", help);
    }
    let help = "put texts with special characters in quotes; start all lines of a mapping in the same column";
    mistake(at, &format!("invalid YAML: {info}"), help)
}

/// The innermost bracket that is open at the end of a text, outside of quotes and comments.
fn unclosed(text: &str) -> Option<(usize, char)> {
    let (mut open, mut quote, mut comment) = (Vec::new(), None, false);
    let mut before = '\n';
    for (at, c) in text.char_indices() {
        match (c, quote) {
            ('\n', _) => comment = false,
            _ if comment => {}
            (c, Some(quoted)) if c == quoted => quote = None,
            (_, Some(_)) => {}
            ('#', None) if before.is_whitespace() => comment = true,
            ('"' | '\'', None) if before.is_whitespace() || "[{,:".contains(before) => quote = Some(c),
            ('[' | '{', None) => open.push((at, c)),
            (']' | '}', None) => _ = open.pop(),
            _ => {}
        }
        before = c;
    }
    open.pop()
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
