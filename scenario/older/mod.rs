//! Files of earlier editions: brought to today's fields in the tree, so that everything after this knows one
//! language. `greenroom migrate` writes the changed tree back as text.
//!
//! What can't be converted, because it was wrong already, stays as it is: the reader says that there is no
//! such field.

mod answers;
mod hearing;
mod said;

use super::papers;
use greenroom_yaml::diagnostic::{Diagnostic, Report, Source, Sources, Span};
use greenroom_yaml::{Path, Piece, Taken, Tree};
use serde_json::Value;

/// Reply settings, which stood beside a holder's other fields.
const SETTINGS: [&str; 9] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_tokens",
    "reasoning",
    "reasoning_budget",
    "stops",
];
/// Fields of a phase that had a second name.
const SECOND_NAMES: [(&str, &str); 4] = [
    ("topology", "order"),
    ("initial_prompt", "prompt"),
    ("per_agent_prompt_templates", "private_prompts"),
    ("auto_rounds", "rounds"),
];

/// A field or word of an earlier edition: what is in the file, and where.
pub struct Older {
    /// As the file has it.
    pub name: &'static str,
    /// What it is called today.
    pub now: &'static str,
    /// Its path.
    pub path: Path,
    /// Its place.
    pub span: Span,
}

/// Brings a file to today's fields; what was older, in the order in which it was found.
pub(crate) fn renew(tree: &mut Tree) -> Vec<Older> {
    let mut renewal = Renewal { tree, found: Vec::new() };
    renewal.scenario();
    renewal.found
}

/// One warning of all that is older in a file.
pub(crate) fn warning(found: &[Older]) -> Option<Diagnostic> {
    let first = found.iter().min_by_key(|older| older.span)?;
    let mut names: Vec<&str> = Vec::new();
    for older in found {
        if !names.contains(&older.name) {
            names.push(older.name);
        }
    }
    let n_more = names.len().saturating_sub(4);
    let shown: Vec<String> = names.iter().take(4).map(|name| format!("`{name}`")).collect();
    let shown = match (&shown[..], n_more) {
        ([rest @ .., last], 0) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        (all, 0) => all.join(", "),
        (all, n) => format!("{} and {n} more", all.join(", ")),
    };
    let (are, names) = if names.len() == 1 { ("is", "a name") } else { ("are", "names") };
    let message = format!("{shown} {are} {names} of an earlier edition, read as today's");
    let found = Diagnostic::warning("older", first.path.to_string(), first.span, message);
    Some(found.help("`greenroom migrate FILE` rewrites the file"))
}

/// What a name of an earlier edition is called today, for one that could not be converted.
pub(crate) fn today(name: &str) -> Option<&'static str> {
    Some(match name {
        "choice" | "reply" | "grammar" => "answer",
        "parse_choice" => "answer: { one_of: …, free_text: true }",
        "decision_mode" => "vote",
        "coordinator" | "voters" => "vote: { by: … }",
        "attempts" => "vote: { attempts: … }",
        "interactions" => "to: { SPEAKER: HEARER }",
        "hears" | "secret" => "to: nobody",
        "private_prompts" | "per_agent_prompt_templates" | "announce" => "say",
        "initial_prompt" | "initial_prompt_template" => "prompt",
        "set_each_round" => "set: { after: round, … }",
        "topology" => "order",
        "auto_rounds" => "rounds",
        "on_overflow" => "memory: { keep: summary }",
        "moderated" => "moderator: KEY",
        "whisper" => "pairs: [[KEY, KEY]]",
        _ => SETTINGS.contains(&name).then_some("sampling: { … }")?,
    })
}

struct Renewal<'t> {
    tree: &'t mut Tree,
    found: Vec<Older>,
}

impl Renewal<'_> {
    fn scenario(&mut self) {
        let top = Path::default();
        self.drop(&top, "ui");
        self.sampling(&top);
        let agents = top.key("agents");
        for key in self.tree.keys_at(&agents) {
            self.agent(&agents.key(key));
        }
        self.phases(&top.key("phases"));
        let assertions = top.key("assertions");
        for at in 0..self.tree.n_items(&assertions) {
            let judge = assertions.index(at).key("judge");
            if let Some(answer) = self.answer(&judge) {
                self.put_answer(&judge, answer);
            }
            self.sampling(&judge);
        }
    }

    fn phases(&mut self, list: &Path) {
        for at in 0..self.tree.n_items(list) {
            let part = list.index(at);
            self.phases(&part.key("phases"));
            if self.tree.find(&part.key("phases")).is_none() {
                self.phase(&part);
            }
        }
    }

    pub(super) fn has(&self, path: &Path, field: &str) -> bool {
        self.tree.find(&path.key(field)).is_some()
    }

    /// Notes a field that is older.
    pub(super) fn note(&mut self, path: &Path, name: &'static str, now: &'static str) {
        let path = path.key(name.split(':').next().unwrap_or(name));
        let span = self.tree.key(&path);
        self.found.push(Older { name, now, path, span });
    }

    /// Takes out a field that is older; `None`: it is not there.
    pub(super) fn take(&mut self, path: &Path, name: &'static str, now: &'static str) -> Option<Taken> {
        if !self.tree.keys_at(path).iter().any(|key| key == name) {
            return None;
        }
        self.note(path, name, now);
        let is_null = !self.has(path, name);
        self.tree.take(path, name).filter(|_| !is_null)
    }

    /// Takes out a field that has no effect today.
    pub(super) fn drop(&mut self, path: &Path, name: &'static str) {
        self.take(path, name, "");
    }

    /// Gives a field another name, unless that is there too.
    pub(super) fn rename(&mut self, path: &Path, name: &'static str, now: &'static str) {
        if !self.has(path, now)
            && let Some(taken) = self.take(path, name, now)
        {
            self.tree.insert(path, taken.at, now, Piece::Taken(taken));
        }
    }

    /// Reply settings become one mapping.
    pub(super) fn sampling(&mut self, path: &Path) {
        let mut settings: Vec<(String, Piece)> = Vec::new();
        let mut first = usize::MAX;
        for name in self.tree.keys_at(path) {
            let Some(name) = SETTINGS.into_iter().find(|setting| *setting == name) else { continue };
            if let Some(taken) = self.take(path, name, "sampling") {
                first = first.min(taken.at);
                settings.push((name.into(), Piece::Taken(taken)));
            }
        }
        if settings.is_empty() {
            return;
        }
        if self.has(path, "sampling") {
            let sampling = path.key("sampling");
            for (name, piece) in settings {
                self.tree.insert(&sampling, usize::MAX, &name, piece);
            }
        } else {
            self.tree.insert(path, first, "sampling", Piece::Map(settings));
        }
    }

    fn agent(&mut self, path: &Path) {
        self.sampling(path);
        let overflow = self.tree.json_at(&path.key("on_overflow"));
        if overflow.is_null() || overflow == "fail" {
            self.drop(path, "on_overflow");
        } else if overflow == "summarize"
            && !self.has(path, "memory")
            && let Some(taken) = self.take(path, "on_overflow", "memory")
        {
            let keep = Piece::Value("summary".into(), Some(taken.span));
            self.tree.insert(path, taken.at, "memory", Piece::Map(vec![("keep".into(), keep)]));
        }
        if self.is_of_role(path, "observer") && !self.has(path, "speaks") {
            self.note(path, "role: observer", "speaks: false");
            let at = self.tree.keys_at(path).iter().position(|key| key == "role").map_or(0, |at| at + 1);
            let span = self.tree.key(&path.key("role"));
            self.tree.insert(path, at, "speaks", Piece::Value(false.into(), Some(span)));
        }
    }

    fn is_of_role(&self, agent: &Path, role: &str) -> bool {
        let given = self.tree.json_at(&agent.key("role"));
        given.as_str().is_some_and(|given| given.trim().eq_ignore_ascii_case(role))
    }

    /// The one agent of a phase with a role, if there is one.
    pub(super) fn with_role(&self, phase: &Path, role: &str) -> Option<String> {
        let agents = Path::default().key("agents");
        let present: Vec<String> = match self.tree.json_at(&phase.key("agents")) {
            Value::Array(keys) => keys.iter().filter_map(Value::as_str).map(str::to_string).collect(),
            _ => self.tree.keys_at(&agents),
        };
        let mut having = present.into_iter().filter(|key| self.is_of_role(&agents.key(key), role));
        let first = having.next()?;
        having.next().is_none().then_some(first)
    }

    fn phase(&mut self, path: &Path) {
        for (name, now) in SECOND_NAMES {
            self.rename(path, name, now);
        }
        let is_whispered = self.order(path);
        self.say(path);
        let secret = self.flag(path, "secret", "to: nobody");
        let is_secret = secret.is_some();
        let chooses = ["choice", "parse_choice"].iter().any(|field| self.has(path, field));
        let votes = self.vote(path, is_secret);
        self.turns(path, is_secret, chooses && !votes);
        if let Some(answer) = self.answer(path) {
            self.put_answer(path, answer);
        }
        let secret = secret.filter(|_| chooses && !votes && !is_whispered);
        self.audience(path, secret);
        self.set_each_round(path);
        self.sampling(path);
    }

    /// Takes out a truth value; `None`: it is not set.
    pub(super) fn flag(&mut self, path: &Path, name: &'static str, now: &'static str) -> Option<Taken> {
        let Value::Bool(truth) = self.tree.json_at(&path.key(name)) else { return None };
        self.take(path, name, now).filter(|_| truth)
    }

    fn set_each_round(&mut self, path: &Path) {
        if self.tree.json_at(&path.key("set")).is_array() {
            return;
        }
        let Some(each) = self.take(path, "set_each_round", "set") else { return };
        // Its mapping stands where it will be while it gains a field.
        let after = self.tree.take(path, "set");
        self.tree.insert(path, each.at, "set", Piece::Taken(each));
        let round = Piece::Value("round".into(), Some(each.span));
        self.tree.insert(&path.key("set"), 0, "after", round);
        if let (Some(after), Some(each)) = (after, self.tree.take(path, "set")) {
            let both = Piece::List(vec![Piece::Taken(each), Piece::Taken(after)]);
            self.tree.insert(path, each.at, "set", both);
        } else {
            self.tree.insert(path, each.at, "set", Piece::Taken(each));
        }
    }
}

/// A scenario in today's language.
pub struct Migrated {
    /// Its file.
    pub text: String,
    /// What was older in it.
    pub changes: Vec<Older>,
}

/// Rewrites a scenario of an earlier edition in today's language; `None`: it is of today's. A file in the
/// papers' format keeps what only that format has, its outcome and its payoff.
///
/// # Errors
/// It is not valid YAML, or it repeats what has to change by anchors.
pub fn migrate(name: &str, text: &str) -> Result<Option<Migrated>, Report> {
    let sources = Sources::new(Source { name: name.to_string(), text: text.to_string() });
    let (mut tree, diagnostics) = Tree::read(sources.main(), 0);
    if !diagnostics.is_empty() {
        return Err(Report { sources, diagnostics });
    }
    papers::convert(&mut tree);
    let changes = renew(&mut tree);
    let Some(first) = changes.first() else { return Ok(None) };
    match tree.rewritten(text) {
        Some(text) => Ok(Some(Migrated { text, changes })),
        None => {
            let message = match text.contains(['&', '*']) {
                true => "this has to change, and the file repeats parts by anchors (`&`, `*`, `<<`)",
                false => "this has to change, and the text around it can't be kept as it is",
            };
            let found = Diagnostic::error("anchor", first.path.to_string(), first.span, message);
            let help = match text.contains(['&', '*']) {
                true => "write the repeated parts out, then run this command again".to_string(),
                false => format!("change it by hand: `{}` is `{}` today", first.name, first.now),
            };
            let diagnostics = vec![found.help(help)];
            Err(Report { sources, diagnostics })
        }
    }
}
