//! What a reply may be, and how a phase decides: four fields that became one, and words for votes.

use super::Renewal;
use greenroom_yaml::{Path, Piece, Taken};
use serde_json::Value;

/// Words for ways to decide, and today's rules.
const RULES: [(&str, &str); 4] = [
    ("majority_vote", "majority"),
    ("ranked_choice", "ranked"),
    ("consensus", "consensus"),
    ("coordinator_decides", "leader"),
];

/// The form of a reply as it was written.
pub(super) struct OlderAnswer {
    /// Its position among the fields.
    at: usize,
    piece: Piece,
    ask: Option<Taken>,
}

impl Renewal<'_> {
    /// The form of a reply, and the question that stood in it.
    pub(super) fn answer(&mut self, path: &Path) -> Option<OlderAnswer> {
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

    pub(super) fn put_answer(&mut self, path: &Path, OlderAnswer { at, piece, ask }: OlderAnswer) {
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
    pub(super) fn vote(&mut self, path: &Path, is_secret: bool) -> bool {
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

    pub(super) fn turns(&mut self, path: &Path, is_secret: bool, phase_chooses: bool) {
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
}
