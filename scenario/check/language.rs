//! Checks the language of the stage, and gives debates their rules in it.

use super::Checker;
use crate::PhaseId;
use crate::language::{Language, Text, TextMistake};
use crate::schema::{DebateFormat, WrittenLanguage, WrittenTemplate};
use crate::template::{Scope, Template};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, suggest};
use std::sync::Arc;

impl Checker {
    pub(super) fn language(&mut self, written: Option<WrittenLanguage>, path: &Path) -> Arc<Language> {
        let texts = match written {
            None => return Arc::default(),
            Some(WrittenLanguage::Text(name)) => return self.named(&name, path).shared(),
            Some(WrittenLanguage::Texts(texts)) => texts,
        };
        let base = texts.get("base").cloned().flatten();
        let mut language = base.map_or_else(Language::default, |name| self.named(&name, &path.key("base")));
        for (name, text) in texts.iter().filter(|(name, _)| *name != "base") {
            let (path, Some(text)) = (path.key(name.clone()), text) else { continue };
            let Err(mistake) = language.set(name, text) else { continue };
            let (code, at_key) = match mistake {
                TextMistake::Unknown(_) => ("unknown-key", true),
                _ => ("bad-value", false),
            };
            let help = match &mistake {
                TextMistake::Unknown(name) => suggest(name, Language::texts())
                    .unwrap_or("`greenroom schema --format markdown` lists all texts".into()),
                TextMistake::Blank(_) => "leave it out for the text of the base language".into(),
                TextMistake::Lines(_) => "write it on one line".into(),
                TextMistake::Template(name)
                | TextMistake::Placeholder(name, _)
                | TextMistake::Lacks(name, _) => {
                    let takes = Language::takes(name).map(|name| format!("`{{{name}}}`"));
                    match takes.collect::<Vec<_>>().as_slice() {
                        [] => "this text has no placeholders: remove the braces".into(),
                        takes => format!("this text takes {}", takes.join(", ")),
                    }
                }
            };
            let span = if at_key { self.tree.key(&path) } else { self.tree.value(&path) };
            self.push(Diagnostic::error(code, path.to_string(), span, mistake.to_string()).help(help));
        }
        language.shared()
    }

    fn named(&mut self, name: &str, path: &Path) -> Language {
        Language::named(name.trim()).unwrap_or_else(|| {
            let known = Language::names().join("`, `");
            self.error("unknown-value", path, format!("`{name}` is not a built-in language")).help =
                Some(format!(
                    "expected one of `{known}`; `language: {{ base: en, cue: \"It is {{name}}'s turn.\" }}` \
                     sets texts of your own"
                ));
            Language::default()
        })
    }

    /// The rules of a debate in the scenario's language.
    pub(super) fn format(&mut self, format: DebateFormat, path: &Path, phase: PhaseId) -> Option<Template> {
        let text = match format {
            DebateFormat::Free => Text::Free,
            DebateFormat::Structured => Text::Structured,
            DebateFormat::ProCon => Text::ProCon,
            DebateFormat::DevilsAdvocate => Text::DevilsAdvocate,
            DebateFormat::Socratic => Text::Socratic,
            DebateFormat::Roundtable => Text::Roundtable,
            DebateFormat::Parliamentary => Text::Parliamentary,
        };
        let language = self.language.clone();
        let rules = language.text(text).to_string();
        if language.is_own(text) {
            let path = Path::default().key("language").key(Language::name_of(text));
            return self.template(Some(WrittenTemplate(rules)), path, phase);
        }
        Some(Template {
            path: path.key("debate_format"),
            text: rules,
            quotes: Vec::new(),
            scope: Scope::default(),
        })
    }
}
