//! Checks who speaks when, and who hears whom.

use super::Checker;
use crate::scenario::schema::{WrittenInteraction, WrittenPhase, WrittenTurn};
use crate::scenario::source::Path;
use crate::scenario::{AgentId, Interaction, InteractionKind, PhaseId, ScriptTurn, Topology};
use serde_yaml::Value;

#[derive(Clone, Copy, PartialEq)]
enum Word {
    RoundRobin,
    TurnByTurn,
    Broadcast,
    Whisper,
    Interrupt,
    Moderated,
}

impl Checker {
    pub(super) fn topology(
        &mut self,
        written: &mut WrittenPhase,
        cast: &[AgentId],
        interactions: &[Interaction],
        path: &Path,
        phase: PhaseId,
    ) -> Topology {
        let known = [
            ("round_robin", Word::RoundRobin),
            ("turn_by_turn", Word::TurnByTurn),
            ("broadcast", Word::Broadcast),
            ("whisper", Word::Whisper),
            ("interrupt", Word::Interrupt),
            ("moderated", Word::Moderated),
        ];
        let here = path.key("topology");
        let given = written.topology.as_deref();
        let word = given.and_then(|given| self.word(&here, "topology", given, &known));
        if let Some(turns) = written.turns.take() {
            if given.is_some() {
                let message = "`turns` is the order of speaking, so `topology` has no meaning beside it";
                self.error("contradiction", &here, message).help = Some("remove one of the two".into());
            }
            return Topology::Script(self.script(turns, cast, &path.key("turns"), phase));
        }
        if written.moderator.is_some() && word.is_none_or(|word| word != Word::Moderated) {
            self.unused(&path.key("moderator"), "a moderator gives the floor in a `moderated` phase");
        }
        match word.unwrap_or(Word::RoundRobin) {
            Word::RoundRobin => Topology::RoundRobin,
            Word::TurnByTurn => Topology::TurnByTurn,
            Word::Broadcast => Topology::Broadcast,
            Word::Interrupt => Topology::Interrupt,
            Word::Whisper => {
                let whispers = interactions.iter().filter(|edge| edge.kind == InteractionKind::Whisper);
                let pairs: Vec<_> =
                    whispers.flat_map(|edge| edge.to.iter().map(|to| (edge.from, *to))).collect();
                if pairs.is_empty() {
                    let message = "a whisper phase needs `interactions` that say who whispers to whom";
                    self.error("missing", &here, message).help =
                        Some("e.g. `interactions: [{from: ann, to: ben, kind: whisper}]`".into());
                }
                Topology::Whisper(pairs)
            }
            Word::Moderated => match self.with_role(written.moderator.as_deref(), "moderator", cast, path) {
                Some(moderator) => Topology::Moderated(moderator),
                None => Topology::RoundRobin,
            },
        }
    }

    fn script(
        &mut self,
        turns: Vec<Option<WrittenTurn>>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Vec<ScriptTurn> {
        if turns.is_empty() {
            self.error("missing", path, "`turns` lists nobody");
        }
        let mut script = Vec::new();
        for (at, turn) in turns.into_iter().enumerate() {
            let path = path.index(at);
            let Some(WrittenTurn { agent, ask, when, choice, parse_choice, to }) = turn else { continue };
            let ask = self.template(ask, path.key("ask"), phase).map(std::sync::Arc::new);
            // What was said in this phase before the turn may decide about it.
            let end = PhaseId(phase.0 + 1);
            let when = when.and_then(|given| self.expression(given, path.key("when"), end, &[]));
            let choice = self.choice(choice, parse_choice, &path, phase);
            let to = to.map_or(Vec::new(), |given| self.present(&given, cast, &path.key("to")));
            let Some(agent) = agent else {
                self.error("missing", &path, "a turn needs `agent`: who speaks");
                continue;
            };
            if let Some(agent) = self.member(&agent, cast, &path.key("agent")) {
                script.push(ScriptTurn { agent, ask, when, choice, to });
            }
        }
        script
    }

    pub(super) fn interactions(
        &mut self,
        written: Vec<Option<WrittenInteraction>>,
        cast: &[AgentId],
        path: &Path,
    ) -> Vec<Interaction> {
        let known = [
            ("public", InteractionKind::Public),
            ("whisper", InteractionKind::Whisper),
            ("observe", InteractionKind::Observe),
        ];
        let mut edges: Vec<Interaction> = Vec::new();
        for (at, edge) in written.into_iter().enumerate() {
            let path = path.index(at);
            let Some(WrittenInteraction { from, to, kind }) = edge else { continue };
            let from = match from {
                Some(key) => self.member(&key, cast, &path.key("from")),
                None => {
                    self.error("missing", &path, "an interaction needs `from`, `to` and `kind`");
                    continue;
                }
            };
            let kind = match kind {
                Some(kind) => self.word(&path.key("kind"), "kind of interaction", &kind, &known),
                None => {
                    self.error("missing", &path, "an interaction needs `kind`: public, whisper or observe");
                    continue;
                }
            };
            let to = match to {
                Some(to) => self.present(&to, cast, &path.key("to")),
                None if kind == Some(InteractionKind::Public) => cast.to_vec(),
                None => {
                    self.error("missing", &path, "an interaction needs `to`: whom it concerns");
                    continue;
                }
            };
            let (Some(from), Some(kind)) = (from, kind) else { continue };
            if to.contains(&from) && kind != InteractionKind::Public {
                let key = self.names.agents[from.0].key.clone();
                self.error(
                    "bad-value",
                    &path.key("to"),
                    format!("`{key}` can't whisper to itself or observe itself"),
                );
            }
            let mixed = |edge: &Interaction| {
                edge.from == from
                    && edge.kind != kind
                    && ![edge.kind, kind].contains(&InteractionKind::Observe)
            };
            if edges.iter().any(mixed) {
                let key = self.names.agents[from.0].key.clone();
                let message = format!("`{key}` speaks in public and in whispers in one phase");
                self.error("contradiction", &path, message).help =
                    Some("use two phases, or `turns` with `to` on those that are whispered".into());
            }
            edges.push(Interaction { from, to, kind });
        }
        edges
    }

    /// One key or a list of keys of agents who are present.
    fn present(&mut self, given: &Value, cast: &[AgentId], path: &Path) -> Vec<AgentId> {
        match given {
            Value::String(key) => self.member(key, cast, path).into_iter().collect(),
            Value::Sequence(keys) => {
                let mut present = Vec::new();
                for (at, key) in keys.iter().enumerate() {
                    let path = path.index(at);
                    match key.as_str() {
                        Some(key) => present.extend(self.member(key, cast, &path)),
                        None => _ = self.error("type", &path, "expected the key of an agent"),
                    }
                }
                present
            }
            _ => {
                self.error("type", path, "expected the key of an agent, or a list of keys");
                Vec::new()
            }
        }
    }

    /// An agent who must be present.
    pub(super) fn member(&mut self, key: &str, cast: &[AgentId], path: &Path) -> Option<AgentId> {
        let id = self.agent_id(key, path)?;
        if !cast.contains(&id) {
            let message = format!("`{key}` does not take part in this phase");
            self.error("absent-agent", path, message).help = Some(format!("add `{key}` to `agents`"));
            return None;
        }
        Some(id)
    }
}
