//! Patterns in the dialect of Python's `re`, as fancy-regex reads them, within a bound of steps.

use fancy_regex::{Regex, RegexBuilder};

/// Most steps back that one search may take.
const MAX_STEPS: usize = 100_000;
/// Maximum length of the pattern, in bytes.
const MAX_BYTES: usize = 2_000;

/// Compiles a pattern.
///
/// # Errors
/// As text: it is too long, or means something in Python that has no counterpart, or nothing.
pub(super) fn compile(python: &str) -> Result<Regex, String> {
    if python.len() > MAX_BYTES {
        return Err(format!("it has {} bytes; at most {MAX_BYTES} are allowed", python.len()));
    }
    let pattern = translated(python)?;
    RegexBuilder::new(&pattern).backtrack_limit(MAX_STEPS).build().map_err(|error| error.to_string())
}

/// What is written otherwise: `\Z` is `\z`, `{,3}` is `{0,3}`, and a bracket within brackets is plain in
/// Python.
fn translated(python: &str) -> Result<String, String> {
    let (mut out, mut chars) = (String::new(), python.chars().peekable());
    let mut class: Option<usize> = None;
    while let Some(c) = chars.next() {
        // Characters of the class so far, the opening bracket and `^` aside.
        let n_before = class;
        class = class.map(|n| n + 1);
        match (c, n_before) {
            ('\\', _) => match chars.next() {
                Some('Z') if n_before.is_none() => out.push_str("\\z"),
                Some(c) => out.extend(['\\', c]),
                None => return Err("it ends with a backslash".into()),
            },
            ('[', None) => {
                out.push('[');
                class = Some(0);
                if chars.peek() == Some(&'^') {
                    out.extend(chars.next());
                }
            }
            // The first one in a class is plain in Python, and ends it nowhere.
            (']', Some(0)) => out.push_str("\\]"),
            (']', Some(_)) => {
                out.push(']');
                class = None;
            }
            ('[' | '&' | '~', Some(_)) => out.extend(['\\', c]),
            ('{', None) if chars.peek() == Some(&',') => out.push_str("{0"),
            ('(', None) => {
                out.push('(');
                let ahead: String = chars.clone().take_while(|c| *c != ')' && *c != ':').collect();
                let flags =
                    ahead.strip_prefix('?').filter(|flags| flags.chars().all(|c| c.is_ascii_alphabetic()));
                if let Some(flag) = flags.and_then(|flags| flags.chars().find(|c| matches!(c, 'a' | 'L'))) {
                    return Err(format!("the flag `{flag}` is not supported: texts are Unicode"));
                }
                if ahead.starts_with("?(") {
                    return Err("conditional groups are not supported".into());
                }
            }
            (c, _) => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_dialect_is_read() {
        for (pattern, text, matched) in [
            (r"(?i)i (?P<what>confess|stay silent)", "I CONFESS now", Some("CONFESS")),
            (r"^(yes|no)\Z", "yes", Some("yes")),
            (r"(a{,2})b", "aab", Some("aa")),
            (r"([[\]]+)", "x[]", Some("[]")),
            (r"([]x]+)", "]x", Some("]x")),
            (r"(?<!not )(share)", "not share", None),
            (r"(?:choice|answer)\s*[:=]\s*(\w+)", "answer: split", Some("split")),
            (r"(\w+) (?P<q>['])(?P=q)", "so ''", Some("so")),
        ] {
            let found = compile(pattern).unwrap().captures(text).unwrap();
            assert_eq!(
                found.and_then(|found| Some(found.get(1)?.as_str().to_string())).as_deref(),
                matched,
                "{pattern}"
            );
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_and_a_search_ends() {
        for pattern in ["(", "(?a)x", "(?L:x)", "\\", "[a", "*x"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
        let slow = compile(r"^(?=(a+)+$)(a|aa)+$\1").unwrap();
        assert!(!matches!(slow.is_match(&format!("{}b", "a".repeat(5_000))), Ok(true)));
    }
}
