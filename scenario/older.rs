//! Files of earlier editions: brought to today's fields in the tree, so that everything after this knows one
//! language. `greenroom migrate` writes the changed tree back as text.
//!
//! What can't be converted, because it was wrong already, stays as it is: the reader says that there is no
//! such field.

use super::papers;
use greenroom_yaml::diagnostic::{Diagnostic, Report, Source, Sources, Span};
use greenroom_yaml::{Path, Piece, Taken, Tree};
use serde_json::{Value, json};

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
/// Words for ways to decide, and today's rules.
const RULES: [(&str, &str); 4] = [
    ("majority_vote", "majority"),
    ("ranked_choice", "ranked"),
    ("consensus", "consensus"),
    ("coordinator_decides", "leader"),
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
pub(super) fn renew(tree: &mut Tree) -> Vec<Older> {
    let mut renewal = Renewal { tree, found: Vec::new() };
    renewal.scenario();
    renewal.found
}

/// One warning of all that is older in a file.
pub(super) fn warning(found: &[Older]) -> Option<Diagnostic> {
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
pub(super) fn today(name: &str) -> Option<&'static str> {
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

    fn has(&self, path: &Path, field: &str) -> bool {
        self.tree.find(&path.key(field)).is_some()
    }

    /// Notes a field that is older.
    fn note(&mut self, path: &Path, name: &'static str, now: &'static str) {
        let path = path.key(name.split(':').next().unwrap_or(name));
        let span = self.tree.key(&path);
        self.found.push(Older { name, now, path, span });
    }

    /// Takes out a field that is older; `None`: it is not there.
    fn take(&mut self, path: &Path, name: &'static str, now: &'static str) -> Option<Taken> {
        if !self.tree.keys_at(path).iter().any(|key| key == name) {
            return None;
        }
        self.note(path, name, now);
        let is_null = !self.has(path, name);
        self.tree.take(path, name).filter(|_| !is_null)
    }

    /// Takes out a field that has no effect today.
    fn drop(&mut self, path: &Path, name: &'static str) {
        self.take(path, name, "");
    }

    /// Gives a field another name, unless that is there too.
    fn rename(&mut self, path: &Path, name: &'static str, now: &'static str) {
        if !self.has(path, now)
            && let Some(taken) = self.take(path, name, now)
        {
            self.tree.insert(path, taken.at, now, Piece::Taken(taken));
        }
    }

    /// Reply settings become one mapping.
    fn sampling(&mut self, path: &Path) {
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
    fn with_role(&self, phase: &Path, role: &str) -> Option<String> {
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
    fn flag(&mut self, path: &Path, name: &'static str, now: &'static str) -> Option<Taken> {
        let Value::Bool(truth) = self.tree.json_at(&path.key(name)) else { return None };
        self.take(path, name, now).filter(|_| truth)
    }

    /// Words for the order; true if pairs whisper.
    fn order(&mut self, path: &Path) -> bool {
        let order = self.tree.json_at(&path.key("order"));
        match order.as_str().map(str::trim) {
            Some("turn_by_turn") => {
                self.note(path, "order: turn_by_turn", "order: round_robin");
                self.tree.put(path, "order", &"round_robin".into());
            }
            Some("moderated") => {
                let by = self.with_role(path, "moderator");
                if self.has(path, "moderator") || by.is_some() {
                    self.note(path, "order: moderated", "moderator");
                    let taken = self.tree.take(path, "order");
                    if let (Some(taken), Some(by), false) = (taken, by, self.has(path, "moderator")) {
                        let by = Piece::Value(by.into(), Some(taken.span));
                        self.tree.insert(path, taken.at, "moderator", by);
                    }
                }
            }
            Some("whisper") => return self.pairs(path),
            _ => {}
        }
        false
    }

    /// Pairs that whisper to each other.
    fn pairs(&mut self, path: &Path) -> bool {
        let Some(edges) = self.edges(path) else { return false };
        let pairs: Vec<Value> = edges
            .iter()
            .filter(|edge| edge.kind == "whisper")
            .flat_map(|edge| edge.to.iter().map(|to| json!([edge.from, to])))
            .collect();
        if pairs.is_empty() {
            return false;
        }
        self.note(path, "order: whisper", "pairs");
        let order = self.tree.take(path, "order");
        let taken = self.take(path, "interactions", "pairs").or(order);
        let (at, span) = taken.map_or((0, None), |taken| (taken.at, Some(taken.span)));
        self.tree.insert(path, at, "pairs", Piece::Value(pairs.into(), span));
        self.overhears(path, &edges, at + 1, span);
        true
    }

    /// Edges between agents, if all of them are sound.
    fn edges(&self, path: &Path) -> Option<Vec<Edge>> {
        let list = path.key("interactions");
        let Value::Array(edges) = self.tree.json_at(&list) else { return None };
        let edge = |edge: &Value| {
            let to = match &edge["to"] {
                Value::String(key) => vec![key.clone()],
                Value::Array(keys) => {
                    keys.iter().map(|key| key.as_str().map(str::to_string)).collect::<Option<_>>()?
                }
                Value::Null if edge["kind"] == "public" => Vec::new(),
                _ => return None,
            };
            let kind =
                edge["kind"].as_str().filter(|kind| ["public", "whisper", "observe"].contains(kind))?;
            let known = edge.as_object()?.keys().all(|key| ["from", "to", "kind"].contains(&key.as_str()));
            known.then_some(Edge { from: edge["from"].as_str()?.into(), to, kind: kind.into() })
        };
        edges.iter().map(edge).collect()
    }

    fn overhears(&mut self, path: &Path, edges: &[Edge], at: usize, span: Option<Span>) {
        let observing = edges.iter().filter(|edge| edge.kind == "observe");
        self.tree_of(path, "overhears", observing, at, span);
    }

    /// A mapping from agents to agents.
    fn tree_of<'e>(
        &mut self,
        path: &Path,
        field: &str,
        edges: impl Iterator<Item = &'e Edge>,
        at: usize,
        span: Option<Span>,
    ) {
        let mut of: Vec<(String, Vec<String>)> = Vec::new();
        for edge in edges {
            if !of.iter().any(|(from, _)| *from == edge.from) {
                of.push((edge.from.clone(), Vec::new()));
            }
            if let Some((_, to)) = of.iter_mut().find(|(from, _)| *from == edge.from) {
                to.extend(edge.to.iter().filter(|key| !to.contains(key)).cloned().collect::<Vec<_>>());
            }
        }
        let fields: Vec<(String, Piece)> = of
            .into_iter()
            .map(|(from, to)| {
                let to: Value = if let [only] = &to[..] { only.clone().into() } else { to.into() };
                (from, Piece::Value(to, span))
            })
            .collect();
        if !fields.is_empty() {
            self.tree.insert(path, at, field, Piece::Map(fields));
        }
    }

    /// Who hears what is said in a phase.
    fn audience(&mut self, path: &Path, secret: Option<Taken>) {
        if self.has(path, "to") {
            return;
        }
        let hears = self.tree.json_at(&path.key("hears"));
        let taken = if hears == "none" || hears == "all" { self.take(path, "hears", "to") } else { None };
        if let Some(taken) = secret.or(taken.filter(|_| hears == "none")) {
            let nobody = Piece::Value("nobody".into(), Some(taken.span));
            self.tree.insert(path, taken.at, "to", nobody);
        }
        if self.tree.json_at(&path.key("interactions")) == json!([]) {
            self.drop(path, "interactions");
        }
        let Some(edges) = self.edges(path) else { return };
        let public: Vec<&str> =
            edges.iter().filter(|edge| edge.kind == "public").map(|edge| edge.from.as_str()).collect();
        if edges.iter().any(|edge| edge.kind == "whisper" && public.contains(&edge.from.as_str())) {
            return;
        }
        let Some(taken) = self.take(path, "interactions", "to") else { return };
        if !self.has(path, "to") {
            let whispered = edges.iter().filter(|edge| edge.kind == "whisper");
            self.tree_of(path, "to", whispered, taken.at, Some(taken.span));
        }
        self.overhears(path, &edges, taken.at + 1, Some(taken.span));
    }

    /// What is read besides the prompt.
    fn say(&mut self, path: &Path) {
        if self.has(path, "say") {
            return;
        }
        let private = path.key("private_prompts");
        let has_private = !self.tree.keys_at(&private).is_empty();
        let readers = self.tree.keys_at(&private);
        if let Some(template) = self.take(path, "initial_prompt_template", "prompt") {
            if has_private {
                let present: Vec<String> = match self.tree.json_at(&path.key("agents")) {
                    Value::Array(keys) => keys.iter().filter_map(Value::as_str).map(str::to_string).collect(),
                    _ => self.tree.keys_at(&Path::default().key("agents")),
                };
                let others: Vec<String> =
                    present.iter().filter(|key| !readers.contains(key)).cloned().collect();
                let those: Vec<String> = present.into_iter().filter(|key| readers.contains(key)).collect();
                let mut said = Vec::new();
                // Only those with a private text read the prompt for all.
                if let Some(prompt) = self.tree.take(path, "prompt") {
                    said.push(item(None, Some((those.into(), prompt.span)), prompt));
                }
                said.push(item(None, Some((others.into(), template.span)), template));
                let mut all = said;
                all.extend(self.private(path));
                self.put_said(path, template.at, all);
                return;
            }
            self.tree.take(path, "prompt");
            self.tree.insert(path, template.at, "prompt", Piece::Taken(template));
        }
        if !self.has(path, "announce") {
            self.rename(path, "private_prompts", "say");
            return;
        }
        let at = self.tree.keys_at(path).iter().position(|key| key == "private_prompts" || key == "announce");
        let all = self.private(path);
        let Some(at) = at else { return };
        self.put_said(path, at, all);
    }

    /// Private openings as things that are said.
    fn private(&mut self, path: &Path) -> Vec<Piece> {
        let private = path.key("private_prompts");
        let keys = self.tree.keys_at(&private);
        let mut said = Vec::new();
        for key in keys {
            let is_null = self.tree.find(&private.key(&*key)).is_none();
            let Some(text) = self.tree.take(&private, &key).filter(|_| !is_null) else { continue };
            said.push(item(None, Some((key.into(), text.span)), text));
        }
        if self.tree.find(&private).is_none() || self.tree.json_at(&private).is_object() {
            self.take(path, "private_prompts", "say");
        }
        said
    }

    /// What is said at the start, and around rounds.
    fn put_said(&mut self, path: &Path, at: usize, mut said: Vec<Piece>) {
        let announced = path.key("announce");
        for n in 0..self.tree.n_items(&announced) {
            let item = announced.index(n);
            for (name, moment) in [("before", "round_start"), ("after", "round_end")] {
                let both = self.has(&item, "before") && self.has(&item, "after");
                let Some(text) = (!both).then(|| self.tree.take(&item, name)).flatten() else { continue };
                self.tree.insert(&item, text.at, "text", Piece::Taken(text));
                self.tree.insert(&item, text.at, "at", Piece::Value(moment.into(), Some(text.span)));
            }
        }
        if said.is_empty() {
            self.rename(path, "announce", "say");
            return;
        }
        said.extend(
            (0..self.tree.n_items(&announced))
                .filter_map(|n| self.tree.item(&announced, n).map(Piece::Taken)),
        );
        self.take(path, "announce", "say");
        self.tree.insert(path, at, "say", Piece::List(said));
    }

    /// The form of a reply, and the question that stood in it.
    fn answer(&mut self, path: &Path) -> Option<OlderAnswer> {
        if self.has(path, "answer") {
            return None;
        }
        for name in ["choice", "parse_choice"] {
            let here = path.key(name);
            // Without `options`, all keys are results.
            let is_long = self.has(&here, "options");
            let ask = if is_long { self.tree.take(&here, "ask") } else { None };
            if let Some(options) = self.tree.take(&here, "options") {
                self.tree.insert(&here, options.at, "one_of", Piece::Taken(options));
            }
            let written = self.tree.json_at(&here);
            let is_short = is_long && self.tree.keys_at(&here).len() == 1 && !written["one_of"].is_object();
            let short = is_short.then(|| self.tree.take(&here, "one_of")).flatten();
            let Some(taken) = self.take(path, name, "answer") else { continue };
            let free = (name == "parse_choice")
                .then(|| ("free_text".to_string(), Piece::Value(true.into(), Some(taken.span))));
            let piece = match (is_long, free) {
                (_, None) if short.is_some() => short.map_or(Piece::Value(Value::Null, None), Piece::Taken),
                (_, Some(free)) if short.is_some() => {
                    let one_of = short.map_or(Piece::Value(Value::Null, None), Piece::Taken);
                    Piece::Map(vec![("one_of".into(), one_of), free])
                }
                (true, None) => Piece::Taken(taken),
                (true, Some((_, free))) => {
                    // Its mapping stands where `answer` will be.
                    self.tree.insert(path, taken.at, "answer", Piece::Taken(taken));
                    let end = self.tree.keys_at(&path.key("answer")).len();
                    self.tree.insert(&path.key("answer"), end, "free_text", free);
                    let again = self.tree.take(path, "answer");
                    again.map_or(Piece::Value(Value::Null, None), Piece::Taken)
                }
                (false, None) if !written.is_object() => Piece::Taken(taken),
                (false, free) => {
                    let one_of = ("one_of".to_string(), Piece::Taken(taken));
                    Piece::Map(std::iter::once(one_of).chain(free).collect())
                }
            };
            return Some(OlderAnswer { at: taken.at, piece, ask });
        }
        for name in ["reply", "grammar"] {
            if let Some(taken) = self.take(path, name, "answer") {
                return Some(OlderAnswer { at: taken.at, piece: Piece::Taken(taken), ask: None });
            }
        }
        None
    }

    fn put_answer(&mut self, path: &Path, OlderAnswer { at, piece, ask }: OlderAnswer) {
        self.tree.insert(path, at, "answer", piece);
        let Some(ask) = ask else { return };
        let first = self.tree.json_at(&path.key("ask"));
        let second = self.tree.json_of(&ask);
        match (first.as_str(), second.as_str()) {
            (Some(first), Some(second)) => {
                let both = format!("{}\n{second}", first.trim_end());
                self.tree.put(path, "ask", &both.into());
            }
            _ => self.tree.insert(path, at, "ask", Piece::Taken(ask)),
        }
    }

    /// A decision becomes a vote; true if there is one.
    fn vote(&mut self, path: &Path, is_secret: bool) -> bool {
        if self.has(path, "vote") {
            return true;
        }
        let mode = self.tree.json_at(&path.key("decision_mode"));
        let rule = mode.as_str().and_then(|mode| RULES.iter().find(|(word, _)| *word == mode.trim()));
        let unused = |renewal: &mut Self| {
            for field in ["coordinator", "voters", "attempts"] {
                renewal.drop(path, field);
            }
        };
        if mode.is_null() || mode == "none" {
            self.take(path, "decision_mode", "");
            unused(self);
            return false;
        }
        let Some(taken) = self.take(path, "decision_mode", "vote") else { return false };
        let rule_is = rule.map_or("", |(_, rule)| rule);
        let mut vote = vec![(
            "rule".to_string(),
            match rule {
                Some((_, rule)) => Piece::Value((*rule).into(), Some(taken.span)),
                None => Piece::Taken(taken),
            },
        )];
        // A form is that of the talk.
        let talk = ["reply", "grammar"].map(|field| self.tree.take(path, field).map(|taken| (field, taken)));
        if let Some(OlderAnswer { piece, ask, .. }) = self.answer(path) {
            vote.push(("answer".into(), piece));
            vote.extend(ask.map(|ask| ("ask".into(), Piece::Taken(ask))));
        }
        for (field, taken) in talk.into_iter().flatten() {
            self.tree.insert(path, taken.at, field, Piece::Taken(taken));
        }
        if rule_is == "leader" {
            let by = match self.take(path, "coordinator", "vote.by") {
                Some(by) => Some(Piece::Taken(by)),
                None => {
                    let by = self.with_role(path, "coordinator");
                    by.map(|by| Piece::Value(by.into(), Some(taken.span)))
                }
            };
            vote.extend(by.map(|by| ("by".into(), by)));
        } else if let Some(by) = self.take(path, "voters", "vote.by") {
            vote.push(("by".into(), Piece::Taken(by)));
        }
        if rule_is == "consensus"
            && let Some(attempts) = self.take(path, "attempts", "vote.attempts")
        {
            vote.push(("attempts".into(), Piece::Taken(attempts)));
        }
        if is_secret {
            vote.push(("secret".into(), Piece::Value(true.into(), Some(taken.span))));
        }
        unused(self);
        self.tree.insert(path, taken.at, "vote", Piece::Map(vote));
        true
    }

    fn turns(&mut self, path: &Path, is_secret: bool, phase_chooses: bool) {
        let list = path.key("turns");
        for at in 0..self.tree.n_items(&list) {
            let turn = list.index(at);
            let has_form = ["reply", "grammar"].iter().any(|field| self.has(&turn, field));
            let has_choice = ["choice", "parse_choice"].iter().any(|field| self.has(&turn, field));
            if let Some(answer) = self.answer(&turn) {
                self.put_answer(&turn, answer);
            }
            let hears = self.tree.json_at(&turn.key("hears"));
            let is_nobody = hears == "none" || is_secret && (has_choice || phase_chooses && !has_form);
            let taken =
                if hears == "none" || hears == "all" { self.take(&turn, "hears", "to") } else { None };
            let is_here = !self.has(&turn, "to");
            // Where the phase as a whole is heard by nobody, its turns need not say so.
            let is_said = hears == "none" || !phase_chooses || !is_here;
            let word = match (is_nobody, hears == "all") {
                (true, _) if is_said => "nobody",
                (false, true) if is_here => "all",
                _ => {
                    self.sampling(&turn);
                    continue;
                }
            };
            let to = self.tree.take(&turn, "to").or(taken);
            let (at, span) = to.map_or((usize::MAX, None), |to| (to.at, Some(to.span)));
            let span = span.or(Some(self.tree.key(&turn.key("agent"))));
            self.tree.insert(&turn, at, "to", Piece::Value(word.into(), span));
            self.sampling(&turn);
        }
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

/// The form of a reply as it was written.
struct OlderAnswer {
    /// Its position among the fields.
    at: usize,
    piece: Piece,
    ask: Option<Taken>,
}

/// An edge between agents of a phase.
struct Edge {
    from: String,
    to: Vec<String>,
    kind: String,
}

/// An item of `say`.
fn item(at: Option<&str>, to: Option<(Value, Span)>, text: Taken) -> Piece {
    let at = at.map(|at| ("at".to_string(), Piece::Value(at.into(), Some(text.span))));
    let to = to.map(|(to, span)| ("to".to_string(), Piece::Value(to, Some(span))));
    Piece::Map(at.into_iter().chain(to).chain([("text".to_string(), Piece::Taken(text))]).collect())
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
            let message = "this has to change, and the file repeats parts by anchors (`&`, `*`, `<<`)";
            let found = Diagnostic::error("anchor", first.path.to_string(), first.span, message);
            let diagnostics = vec![found.help("write the repeated parts out, then run this command again")];
            Err(Report { sources, diagnostics })
        }
    }
}
