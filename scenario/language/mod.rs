//! The texts that the stage itself says, by language: a table that is built in (`texts`), or one of the
//! scenario's own over it.
//!
//! A text is filled in one pass, so that a name with braces in it stays as it is.

mod negations;
mod texts;
mod words;

pub(super) use words::Words;

pub use texts::Text;

use super::template::is_code;
use schemars::Schema;
use serde_json::{Value, json};
use std::sync::Arc;
use texts::{LANGUAGES, ROWS};

/// The texts of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Language {
    /// The built-in language that it is, or begins with.
    base: usize,
    /// Texts of the scenario's own, by their numbers; empty: those of the table.
    own: Vec<Option<String>>,
}

/// A mistake in a text of a table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TextMistake {
    /// There is no such text.
    #[error("there is no stage text `{0}`")]
    Unknown(String),
    /// Nothing would be said.
    #[error("the text `{0}` is empty")]
    Blank(String),
    /// It has several lines, where one is expected.
    #[error("the text `{0}` has several lines; expected one")]
    Lines(String),
    /// It is a template, which this text can't be.
    #[error("the text `{0}` can't use templates")]
    Template(String),
    /// A placeholder for a value that does not exist.
    #[error("`{{{1}}}` is not a placeholder of the text `{0}`")]
    Placeholder(String, String),
    /// What the text is about is not in it.
    #[error("the text `{0}` needs `{{{1}}}`")]
    Lacks(String, String),
}

impl Language {
    /// A language that is built in.
    pub(super) fn named(name: &str) -> Option<Self> {
        let base = LANGUAGES.iter().position(|known| *known == name)?;
        Some(Self { base, own: Vec::new() })
    }

    /// Names of the languages that are built in.
    pub(super) fn names() -> &'static [&'static str] {
        &LANGUAGES
    }

    /// Names of the texts.
    pub(super) fn texts() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|row| row.name)
    }

    /// The values that a text takes.
    pub(super) fn takes(name: &str) -> impl Iterator<Item = &'static str> {
        let row = ROWS.iter().find(|row| row.name == name);
        row.into_iter().flat_map(|row| row.takes).map(|name| name.trim_start_matches('!'))
    }

    /// Replaces the table's text.
    pub(super) fn set(&mut self, name: &str, text: &str) -> Result<(), TextMistake> {
        let named = || name.to_string();
        let at = ROWS.iter().position(|row| row.name == name).ok_or_else(|| TextMistake::Unknown(named()))?;
        if text.trim().is_empty() {
            return Err(TextMistake::Blank(named()));
        }
        if !is_template(at) {
            let takes = ROWS[at].takes;
            if text.trim().chars().any(char::is_control) {
                return Err(TextMistake::Lines(named()));
            }
            if is_code(text) {
                return Err(TextMistake::Template(named()));
            }
            let known = |found: &&str| takes.iter().any(|name| name.trim_start_matches('!') == *found);
            if let Some(other) = placeholders(text).find(|found| !known(found)) {
                return Err(TextMistake::Placeholder(named(), other.to_string()));
            }
            let needed = takes.iter().filter_map(|name| name.strip_prefix('!'));
            if let Some(lacks) =
                needed.into_iter().find(|name| !placeholders(text).any(|found| found == *name))
            {
                return Err(TextMistake::Lacks(named(), lacks.to_string()));
            }
        }
        self.own.resize(ROWS.len(), None);
        self.own[at] = Some(text.trim().to_string());
        Ok(())
    }

    /// A text as it is in the table.
    pub fn text(&self, text: Text) -> &str {
        let at = text as usize;
        let own = self.own.get(at).and_then(Option::as_deref);
        own.unwrap_or(ROWS[at].in_language[self.base])
    }

    /// True if a text is the scenario's own.
    pub(super) fn is_own(&self, text: Text) -> bool {
        self.own.get(text as usize).is_some_and(Option::is_some)
    }

    /// The name of a text in a table.
    pub(super) fn name_of(text: Text) -> &'static str {
        ROWS[text as usize].name
    }

    /// The place of a choice among those that an agent makes one after the other, from 1.
    pub fn ordinal(&self, rank: usize) -> String {
        match rank {
            1 => self.text(Text::First).to_string(),
            2 => self.text(Text::Second).to_string(),
            3 => self.text(Text::Third).to_string(),
            n => self.say(Text::Nth, &[("n", &n.to_string())]),
        }
    }

    /// A text with its values.
    pub fn say(&self, text: Text, values: &[(&str, &str)]) -> String {
        let (mut out, mut rest) = (String::new(), self.text(text));
        while let Some(open) = rest.find('{') {
            out.push_str(&rest[..open]);
            let inside = rest[open + 1..].split_once('}');
            let value = inside.and_then(|(name, _)| values.iter().find(|(known, _)| *known == name));
            match (value, inside) {
                (Some((_, value)), Some((_, after))) => {
                    out.push_str(value);
                    rest = after;
                }
                _ => {
                    out.push('{');
                    rest = &rest[open + 1..];
                }
            }
        }
        out + rest
    }

    /// Names, joined.
    pub fn together<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        let names: Vec<&str> = names.into_iter().collect();
        names.join(&format!(" {} ", self.text(Text::And)))
    }

    /// Speakers of scripts besides the cast.
    pub fn speakers(&self) -> impl Iterator<Item = &str> {
        self.text(Text::Speakers).split(',').map(str::trim).filter(|name| !name.is_empty())
    }

    /// The strings that begin a copy of a cue, in brackets and without: `[Your turn` and `Your turn,`.
    pub fn cue_heads(&self) -> Option<(String, String)> {
        let head = self.text(Text::Cue).split('{').next()?.trim_end();
        let bare = head.trim_end_matches(|c: char| !c.is_alphanumeric());
        (!bare.is_empty()).then(|| (format!("[{bare}"), head.to_string()))
    }

    /// True if a word that ends in an apostrophe is one of its own before the next.
    fn is_elision(&self, word: &str) -> bool {
        self.text(Text::Elisions).split_whitespace().any(|known| known == word)
    }

    /// blake3 (hex) of all texts but those that judges read, which came later; `None`: it is plain English,
    /// which plans do not record.
    pub fn hash(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        let of_judges = [Text::Judge, Text::JudgeSystem, Text::Scene].map(|text| text as usize);
        let mut hasher = blake3::Hasher::new();
        for (at, row) in ROWS.iter().enumerate().filter(|(at, _)| !of_judges.contains(at)) {
            let own = self.own.get(at).and_then(Option::as_deref);
            let text = own.unwrap_or(row.in_language[self.base]);
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Some(hasher.finalize().to_hex().to_string())
    }

    /// The language as scenarios share it.
    pub(super) fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }
}

/// True for the rules of debates: they are templates.
fn is_template(at: usize) -> bool {
    at >= Text::Free as usize
}

/// What is between braces in a text.
fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

/// Adds the names of languages and of texts to the schema of `language`.
pub(super) fn add_to(schema: &mut Schema) {
    let Some(of) = schema.pointer_mut("/$defs/Language") else { return };
    let describe = |at: usize| {
        let row = &ROWS[at];
        let takes: Vec<String> =
            row.takes.iter().map(|name| format!("`{{{}}}`", name.trim_start_matches('!'))).collect();
        let takes =
            if takes.is_empty() { String::new() } else { format!(" Placeholders: {}.", takes.join(", ")) };
        match is_template(at) {
            true => format!("The rules of the debate format `{}`, a template.", row.name),
            false => format!("In English: `{}`.{takes}", row.in_language[0]),
        }
    };
    let field = |at: usize| {
        (ROWS[at].name.to_string(), json!({ "type": ["string", "null"], "description": describe(at) }))
    };
    let mut fields: serde_json::Map<String, Value> = serde_json::Map::new();
    fields.insert(
        "base".into(),
        json!({ "type": ["string", "null"], "enum": LANGUAGES.iter().map(|name| Value::from(*name)).chain([Value::Null]).collect::<Vec<_>>(),
            "description": "The language of the texts that the table does not set. Default: `en`." }),
    );
    fields.extend((0..ROWS.len()).map(field));
    of["anyOf"] = json!([
        { "type": "string", "enum": LANGUAGES, "description": "A built-in language." },
        {
            "type": "object", "properties": fields, "additionalProperties": false,
            "description": "A table of texts."
        },
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_every_language_has_what_it_needs() {
        for (at, name) in LANGUAGES.iter().enumerate() {
            let mut language = Language::named(name).unwrap_or_default();
            for row in ROWS {
                assert_eq!(language.set(row.name, row.in_language[at]), Ok(()), "{name}: {}", row.name);
            }
        }
    }

    #[test]
    fn english_says_what_it_always_said() {
        let en = Language::default();
        assert_eq!(en.hash(), None);
        assert_eq!(en.cue_heads(), Some(("[Your turn".into(), "Your turn,".into())));
        assert_eq!(en.speakers().collect::<Vec<_>>(), ["You", "User", "Assistant", "Narrator"]);
        assert_eq!(
            en.say(Text::WhisperCue, &[("name", "{to}"), ("to", "Ben")]),
            "Your turn, {to}. Only Ben will hear you."
        );
    }
}
