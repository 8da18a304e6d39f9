//! Names in templates and expressions with their places, for editors.

use super::{Code, environment, seed_quote};
use greenroom_jinja::{Mention, Word};

/// What a template, or an expression, mentions; nothing where it can't be parsed.
pub fn mentions(text: &str, is_expression: bool) -> Vec<Mention> {
    let mut found = environment().mentions(text, is_expression);
    if is_expression || !text.contains("${") {
        return found;
    }
    let code = Code::of(text);
    for (at, open) in text.match_indices("${").filter(|(at, _)| !code.is_raw(*at)) {
        let inner = &text[at + open.len()..];
        let Some((inner, _)) = inner.split_once('}') else { continue };
        let Some((phase, agent)) = seed_quote(inner) else { continue };
        let word = |name: &str, from: usize| {
            let start = from + text[from..].find(name)?;
            Some(Word { text: name.to_owned(), at: start..start + name.len() })
        };
        let field = at + open.len() + phase.len();
        let words = [word(phase, at), word("messages", field), word(agent, field + ".messages[".len())];
        found.extend(words.into_iter().collect::<Option<Vec<Word>>>().map(Mention::Name));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_both_kinds_are_mentions() {
        let text = "{{ a }} ${talk.messages[messages]}, ${odd}, ${talk.messages['ann']}";
        let shown = mentions(text, false).into_iter().map(|mention| match mention {
            Mention::Name(words) => {
                words.iter().map(|word| &text[word.at.clone()]).collect::<Vec<_>>().join(" ")
            }
            other => format!("{other:?}"),
        });
        assert_eq!(shown.collect::<Vec<_>>(), ["a", "talk messages messages", "talk messages ann"]);
    }
}
