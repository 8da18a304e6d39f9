//! Takes over the agents and variables of included files. What stands in the scenario itself wins.

use super::{Checker, ReadIncluded};
use crate::diagnostic::{Diagnostic, Source};
use crate::scenario::hints::{Hints, WrittenHints};
use crate::scenario::read;
use crate::scenario::schema::Written;
use crate::scenario::yaml::{Path, Tree};

/// Most files that a scenario may include.
const MAX_FILES: usize = 100;

/// Fields by which a scenario is told from any other file.
const FIELDS: [&str; 14] = [
    "id",
    "title",
    "description",
    "variables",
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

/// The reason why a text is no scenario, in words that tell nothing of what is in it; `None`: it has the shape of one.
pub(super) fn unlike_a_scenario(text: &str) -> Option<String> {
    let source = Source { name: String::new(), text: text.to_string() };
    let (tree, found) = Tree::read(&source, 0);
    if let Some(mistake) = found.iter().find(|diagnostic| diagnostic.code == "yaml") {
        let (line, column) = source.position(mistake.span.start);
        return Some(format!("can't be read as YAML (line {line}, column {column})"));
    }
    match tree.keys().map(|mut keys| keys.any(|key| FIELDS.contains(&key))) {
        Some(true) => None,
        Some(false) => Some("is no scenario: it has none of a scenario's fields".into()),
        None => Some("is no scenario: a mapping is expected".into()),
    }
}

impl Checker {
    pub(super) fn include(&mut self, written: &mut Written, read: &ReadIncluded<'_>) {
        let path = Path::default().key("include");
        for (at, name) in written.include.take().unwrap_or_default().into_iter().enumerate() {
            let path = path.index(at);
            let Some(name) = name else { continue };
            if at >= MAX_FILES {
                self.error("too-many", &path, format!("a scenario includes at most {MAX_FILES} files"))
                    .help = Some("put several casts into one file".into());
                return;
            }
            if std::path::Path::new(&name).is_absolute() {
                let message =
                    format!("`{name}` is an absolute path: the scenario would work on this machine only");
                self.error("bad-value", &path, message).help =
                    Some("write a path relative to the scenario's folder".into());
                continue;
            }
            match read(&name) {
                Ok(text) => match unlike_a_scenario(&text) {
                    None => self.included(written, &name, text),
                    // It may be any file of this machine: nothing of it is shown.
                    Some(why) => {
                        self.names.partial = true;
                        let message = format!("the included file `{name}` {why}");
                        let help = "an included file gives `agents` or `variables`; `greenroom check` on it shows its mistakes";
                        self.error("include", &path, message).help = Some(help.into());
                    }
                },
                Err(error) => {
                    let why = match error.kind() {
                        std::io::ErrorKind::NotFound => "there is none".to_string(),
                        std::io::ErrorKind::InvalidData => "it is no UTF-8 text".to_string(),
                        _ => error.to_string(),
                    };
                    let help = match error.kind() {
                        std::io::ErrorKind::PermissionDenied => {
                            "a scenario includes what lies in its checkout (the nearest folder with `.git`), else in its own folder; \
                             `--root DIR` names another folder"
                        }
                        _ => "include scenario files by their paths, relative to this file's folder",
                    };
                    let message = format!("can't read the included file `{name}`: {why}");
                    self.error("include", &path, message).help = Some(help.into());
                }
            }
        }
    }

    fn included(&mut self, written: &mut Written, name: &str, text: String) {
        // Shown beside the scenario, the way a reader would open it.
        let folder = std::path::Path::new(&self.sources.main().name).parent().map(|folder| folder.join(name));
        let shown = folder.map_or_else(|| name.to_string(), |path| path.display().to_string());
        let source = Source { name: shown, text };
        let file = self.sources.add(Source { name: source.name.clone(), text: source.text.clone() });
        let (tree, found) = Tree::read(&source, file);
        let unreadable = found.iter().any(|diagnostic| diagnostic.code == "yaml");
        self.found.extend(found);
        let theirs = if unreadable { None } else { read::read(&tree, &mut self.found) };
        let Some(mut theirs) = theirs else {
            self.names.partial = true;
            return;
        };
        let hints = theirs.hints();
        let Written {
            id,
            title,
            description,
            variables,
            state,
            lets,
            include,
            language,
            models,
            agents,
            phases,
            payoff,
            outcome,
            assertions,
            ..
        } = theirs;
        let set = ["model"].into_iter().chain(Hints::NAMES);
        let mut set = set.filter(|name| tree.find(&Path::default().key(*name)).is_some());
        let set = set.next().unwrap_or("model");
        let others = [
            ("id", id.is_some() || title.is_some() || description.is_some()),
            ("state", state.is_some()),
            ("let", lets.is_some()),
            ("include", include.is_some()),
            ("language", language.is_some()),
            ("phases", phases.is_some()),
            (set, hints != WrittenHints::default()),
            ("payoff", payoff.is_some() || outcome.is_some() || assertions.is_some()),
        ];
        for (field, _) in others.iter().filter(|(_, given)| *given) {
            let span = tree.key(&Path::default().key(*field));
            let message = "an included file gives `agents`, `variables` and `models`, nothing else";
            let found = Diagnostic::error("include", *field, span, message);
            self.push(found.help("move the rest into the scenario"));
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
        for (key, value) in variables.unwrap_or_default() {
            mine.entry(key).or_insert(value);
        }
        self.tree.graft(&["agents", "variables", "models"], tree);
    }
}
