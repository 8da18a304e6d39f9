//! Takes over the agents and variables of included files. What is in the scenario itself wins.

use super::types::exactly;
use super::{Checker, ReadNamed};
use crate::files::FileKind;
use crate::older;
use crate::read;
use crate::schema::Written;
use greenroom_yaml::diagnostic::{Diagnostic, Source};
use greenroom_yaml::{Path, Tree};
use std::io::ErrorKind;

/// Maximum number of files that a scenario may include.
const MAX_FILES: usize = 100;

/// Fields that distinguish a scenario from any other file.
const FIELDS: [&str; 15] = [
    "id",
    "title",
    "description",
    "variables",
    "cases",
    "state",
    "let",
    "include",
    "language",
    "models",
    "agents",
    "phases",
    "payoff",
    "outcome",
    "assertions",
];

/// The reason why a text is not a scenario, in words that tell nothing of what is in it; `None`: it has the
/// shape of one.
pub(super) fn not_a_scenario_reason(text: &str) -> Option<String> {
    let source = Source { name: String::new(), text: text.to_string() };
    let (tree, found) = Tree::read(&source, 0);
    if let Some(mistake) = found.iter().find(|diagnostic| diagnostic.code == "yaml") {
        let (line, column) = source.position(mistake.span.start);
        return Some(format!("can't be read as YAML (line {line}, column {column})"));
    }
    match tree.keys().map(|mut keys| keys.any(|key| FIELDS.contains(&key))) {
        Some(true) => None,
        Some(false) => Some("is not a scenario: it has none of a scenario's fields".into()),
        None => Some("is not a scenario: expected a mapping".into()),
    }
}

impl Checker {
    pub(super) fn include(&mut self, written: &mut Written, read: &ReadNamed<'_>) {
        let path = Path::default().key("include");
        for (at, name) in written.include.take().unwrap_or_default().into_iter().enumerate() {
            let path = path.index(at);
            let Some(name) = name else { continue };
            if at >= MAX_FILES {
                self.error("too-many", &path, format!("a scenario includes at most {MAX_FILES} files"))
                    .help = Some("put several casts into one file".into());
                return;
            }
            match self.named_file(&name, "included file", FileKind::Scenario, &path, read) {
                Ok(text) => match not_a_scenario_reason(&text) {
                    None => self.included(written, &name, text),
                    // It may be any file of this machine: nothing of it is shown.
                    Some(why) => {
                        self.names.partial = true;
                        let message = format!("the included file `{name}` {why}");
                        let help = "an included file must define `agents` or `variables`; run `greenroom \
                                    check` on it to see its errors";
                        self.error("include", &path, message).help = Some(help.into());
                    }
                },
                Err(found) => {
                    self.push(*found);
                }
            }
        }
    }

    /// The text of a file that the scenario names at a path.
    ///
    /// # Errors
    /// What is wrong with the name, or with the file.
    pub(super) fn named_file(
        &self,
        name: &str,
        what: &str,
        kind: FileKind,
        path: &Path,
        read: &ReadNamed<'_>,
    ) -> Result<String, Box<Diagnostic>> {
        let error =
            |code, message: String| Diagnostic::error(code, path.to_string(), self.tree.value(path), message);
        if std::path::Path::new(name).is_absolute() {
            let message = format!("`{name}` is an absolute path, which works on this machine only");
            return Err(Box::new(
                error("bad-value", message).help("write a path relative to the scenario's folder"),
            ));
        }
        let failed = |why: String, help: &str| {
            Err(Box::new(error("include", format!("can't read the {what} `{name}`: {why}")).help(help)))
        };
        let relative = "write file paths relative to this file's folder";
        match read(name, kind).map(String::from_utf8) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(error)) => {
                let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
                let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let column = String::from_utf8_lossy(&before[begin..]).chars().count() + 1;
                failed(format!("it is not UTF-8 text (line {line}, column {column})"), "save it as UTF-8")
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                failed("the file does not exist".into(), relative)
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => failed(
                error.to_string(),
                "a scenario can only name files in its checkout (the nearest folder with `.git`), or else in \
                 its own folder; `--root DIR` names another folder",
            ),
            Err(error) => failed(error.to_string(), relative),
        }
    }

    /// A file that the scenario names, relative to it, as a reader would open it.
    pub(super) fn beside(&self, name: &str) -> String {
        let folder = std::path::Path::new(&self.sources.main().name).parent().map(|folder| folder.join(name));
        folder.map_or_else(|| name.to_string(), |path| path.display().to_string())
    }

    fn included(&mut self, written: &mut Written, name: &str, text: String) {
        let source = Source { name: self.beside(name), text };
        let file = self.sources.add(Source { name: source.name.clone(), text: source.text.clone() });
        let (mut tree, found) = Tree::read(&source, file);
        let unreadable = found.iter().any(|diagnostic| diagnostic.code == "yaml");
        self.found.extend(found);
        let renewed = older::renew(&mut tree);
        self.found.extend(older::warning(&renewed));
        let theirs = if unreadable { None } else { read::read(&tree, &mut self.found) };
        let Some(theirs) = theirs else {
            self.names.partial = true;
            return;
        };
        let Written {
            id,
            title,
            description,
            variables,
            cases,
            state,
            lets,
            include,
            language,
            models,
            model,
            sampling,
            agents,
            phases,
            payoff,
            judges,
            outcome,
            assertions,
            ..
        } = theirs;
        let others = [
            ("id", id.is_some() || title.is_some() || description.is_some()),
            ("cases", cases.is_some()),
            ("state", state.is_some()),
            ("let", lets.is_some()),
            ("include", include.is_some()),
            ("language", language.is_some()),
            ("phases", phases.is_some()),
            ("model", model.is_some()),
            ("sampling", sampling.is_some()),
            ("payoff", payoff.is_some() || outcome.is_some() || assertions.is_some()),
            ("judges", judges.is_some()),
        ];
        for (field, _) in others.iter().filter(|(_, given)| *given) {
            let span = tree.key(&Path::default().key(*field));
            let message = "an included file can only define `agents`, `variables` and `models`";
            let found = Diagnostic::error("include", *field, span, message);
            self.push(found.help("move the rest to the scenario"));
        }
        let mine = written.agents.get_or_insert_default();
        for (key, agent) in agents.unwrap_or_default() {
            mine.entry(key).or_insert(agent);
        }
        let mine = written.models.get_or_insert_default();
        for (name, model) in models.unwrap_or_default() {
            mine.entry(name).or_insert(model);
        }
        let mine = written.variables.get_or_insert_default();
        let mut other_types = Vec::new();
        for (key, value) in variables.unwrap_or_default() {
            if let Some(own) = mine.get(&key)
                && let Err(found) = exactly(&value, own.clone())
            {
                other_types.push((key.clone(), found));
            }
            mine.entry(key).or_insert(value);
        }
        for (key, found) in other_types {
            let path = Path::default().key("variables").key(key.clone());
            let message = format!("{} in the included file `{name}`", found.here(&key));
            let found = Diagnostic::warning("type", path.to_string(), self.tree.value(&path), message);
            let found = found.related(tree.key(&path), "included from here");
            self.push(found.help("give both values the same type, or rename one of the variables"));
        }
        self.tree.graft(&["agents", "variables", "models"], tree);
    }
}
