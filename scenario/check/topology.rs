//! Checks who speaks when, and who hears whom.

use super::Checker;
use crate::schema::{
    Key, Keys, WhoHears, WhoSpeaks, WrittenAnnouncement, WrittenInteraction, WrittenPhase, WrittenTurn,
};
use crate::template::ROUND_NAMES;
use crate::{AgentId, Announcement, Interaction, InteractionKind, PhaseId, ScriptTurn, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use std::collections::BTreeMap;

const EXAMPLE: &str = "e.g. `{ from: ann, to: ben, kind: whisper }`";

/// The likely meaning of an empty list, and how to write it.
pub(super) const SECRET: &str = "leave it out if everybody may hear; if nobody may hear, write `hears: none`";

impl Checker {
    pub(super) fn topology(
        &mut self,
        written: &mut WrittenPhase,
        cast: &[AgentId],
        interactions: &[Interaction],
        path: &Path,
        phase: PhaseId,
    ) -> Topology {
        let (here, given) = (path.key("order"), written.order);
        if let Some(turns) = written.turns.take() {
            if given.is_some() {
                let message = "`turns` sets who speaks when, so `order` can't be used with it";
                self.error("contradiction", &here, message).help = Some("remove one of the two".into());
            }
            return Topology::Script(self.script(turns, cast, &path.key("turns"), phase));
        }
        if written.moderator.is_some() && given != Some(WhoSpeaks::Moderated) && !self.is_broken(&here) {
            let message = "`moderator` has no effect here: it names the agent that gives the floor";
            self.unused(&path.key("moderator"), message, "remove it, or write `order: moderated`");
        }
        if written.again.is_some() && given != Some(WhoSpeaks::Moderated) && !self.is_broken(&here) {
            let message = "`again` has no effect here: it is about whom a moderator may name";
            self.unused(&path.key("again"), message, "remove it, or write `order: moderated`");
        }
        match given.unwrap_or(WhoSpeaks::RoundRobin) {
            WhoSpeaks::RoundRobin => Topology::RoundRobin,
            WhoSpeaks::Rotating => Topology::Rotating,
            WhoSpeaks::Broadcast => Topology::Broadcast,
            WhoSpeaks::Interrupt => Topology::Interrupt,
            WhoSpeaks::Whisper => {
                let pairs = self.pairs(interactions, &path.key("interactions"));
                if pairs.is_empty() {
                    let message = "a whisper phase needs `interactions`: who whispers to whom";
                    if !self.is_broken(&path.key("interactions")) {
                        let help = "e.g. `interactions: [{ from: ann, to: ben, kind: whisper }]`";
                        self.missing(&here, message, help);
                    }
                }
                Topology::Whisper(pairs)
            }
            WhoSpeaks::Moderated => {
                match self.with_role(written.moderator.as_ref(), "moderator", cast, (path, &here)) {
                    Some(by) => Topology::Moderated { by, again: written.again.unwrap_or(true) },
                    None => Topology::RoundRobin,
                }
            }
        }
    }

    /// The pairs that whisper. A pair speaks both ways, so it is listed once.
    fn pairs(&mut self, interactions: &[Interaction], path: &Path) -> Vec<(AgentId, AgentId)> {
        let mut pairs: Vec<(AgentId, AgentId)> = Vec::new();
        let mut first: BTreeMap<[AgentId; 2], usize> = BTreeMap::new();
        // Where one could not be read, the others are not where they seem to be.
        let known = !self.is_broken(path);
        for (at, edge) in
            interactions.iter().enumerate().filter(|(_, edge)| edge.kind == InteractionKind::Whisper)
        {
            for to in &edge.to {
                let mut both = [edge.from, *to];
                both.sort_unstable();
                if let Some(before) = first.get(&both).filter(|_| known) {
                    let [one, other] = [edge.from, *to].map(|id| self.names.agents[id.0].key.clone());
                    let message = format!(
                        "`{one}` and `{other}` are already a pair, and a pair speaks both ways: this one is \
                         not used"
                    );
                    let (here, before) = (path.index(at), self.tree.value(&path.index(*before)));
                    let span = self.tree.value(&here);
                    let found = Diagnostic::warning("duplicate-name", here.to_string(), span, message);
                    self.push(found.related(before, "first defined here")).help = Some(
                        "remove one; to let them speak more often, raise `rounds`, or write `turns` with `to`".into(),
                    );
                    continue;
                }
                first.insert(both, at);
                pairs.push((edge.from, *to));
            }
        }
        pairs
    }

    fn script(
        &mut self,
        turns: Vec<Option<WrittenTurn>>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Vec<ScriptTurn> {
        if turns.is_empty() {
            let help = "e.g. `turns: [{ agent: ann }, { agent: ben, ask: What now? }]`";
            self.missing(path, "`turns` is empty", help);
        }
        let mut script = Vec::new();
        for (at, turn) in turns.into_iter().enumerate() {
            let path = path.index(at);
            let Some(mut turn) = turn else { continue };
            let hints = turn.hints();
            let hints = self.hints(hints, &path);
            let WrittenTurn {
                agent, ask, when, choice, parse_choice, reply, grammar, to, hears, set, ..
            } = turn;
            let form = self.form(reply, grammar, choice.is_some() || parse_choice.is_some(), &path);
            let ask = self.round_text(ask, path.key("ask"), phase).map(std::sync::Arc::new);
            // What was said in this phase before the turn may decide about it.
            let end = PhaseId(phase.0 + 1);
            let when = when.and_then(|given| self.expression(given, path.key("when"), end, ROUND_NAMES));
            let choice = self.choice(choice, parse_choice, &path, phase);
            let to = to.map_or(Vec::new(), |given| self.present(given, cast, &path.key("to")));
            let set = self.set(set, &path.key("set"), phase, true);
            let Some(Key(agent)) = agent else {
                self.missing(&path.key("agent"), "a turn needs `agent`: who speaks", "e.g. `agent: ann`");
                continue;
            };
            if let Some(agent) = self.member(&agent, cast, &path.key("agent")) {
                let is_unheard = hears.map(|hears| hears == WhoHears::None);
                if is_unheard == Some(true) && !to.is_empty() {
                    let message = "`to` has no effect here: nobody hears this turn";
                    self.unused(&path.key("to"), message, "remove it, or remove `hears: none`");
                }
                script.push(ScriptTurn { agent, ask, when, choice, form, to, is_unheard, set, hints });
            }
        }
        script
    }

    pub(super) fn announcements(
        &mut self,
        written: Vec<Option<WrittenAnnouncement>>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Vec<Announcement> {
        let mut announcements = Vec::new();
        for (at, written) in written.into_iter().enumerate() {
            let (path, Some(WrittenAnnouncement { before, after, to })) = (path.index(at), written) else {
                continue;
            };
            let (field, text) = match (before, after) {
                (Some(text), None) => ("before", text),
                (None, Some(text)) => ("after", text),
                (Some(_), Some(_)) => {
                    let message = "an announcement is read `before` or `after` each round, not both";
                    self.error("contradiction", &path.key("after"), message).help =
                        Some("write two announcements".into());
                    continue;
                }
                (None, None) => {
                    let message = "an announcement needs `before` or `after`: its text";
                    self.missing(
                        &path,
                        message,
                        "e.g. `- { before: \"Round {{ round }} of {{ rounds }}.\" }`",
                    );
                    continue;
                }
            };
            let to = to.map_or_else(|| cast.to_vec(), |given| self.present(given, cast, &path.key("to")));
            if let Some(text) = self.round_text(Some(text), path.key(field), phase) {
                announcements.push(Announcement { text, is_after: field == "after", to });
            }
        }
        announcements
    }

    pub(super) fn interactions(
        &mut self,
        written: Vec<Option<WrittenInteraction>>,
        cast: &[AgentId],
        path: &Path,
    ) -> Vec<Interaction> {
        let mut edges: Vec<Interaction> = Vec::new();
        for (at, edge) in written.into_iter().enumerate() {
            let path = path.index(at);
            let Some(WrittenInteraction { from, to, kind }) = edge else { continue };
            let from = match from {
                Some(Key(key)) => self.member(&key, cast, &path.key("from")),
                None => {
                    let message = "an interaction needs `from`: who speaks or, with `observe`, who listens";
                    self.missing(&path.key("from"), message, EXAMPLE);
                    None
                }
            };
            if kind.is_none() {
                let message = "an interaction needs `kind`: public, whisper or observe";
                self.missing(&path.key("kind"), message, EXAMPLE);
            }
            let to = match to {
                Some(to) => self.present(to, cast, &path.key("to")),
                None if kind == Some(InteractionKind::Public) => cast.to_vec(),
                None => {
                    self.missing(&path.key("to"), "an interaction needs `to`: whom it concerns", EXAMPLE);
                    continue;
                }
            };
            let (Some(from), Some(kind)) = (from, kind) else { continue };
            if to.contains(&from) && kind != InteractionKind::Public {
                let key = self.names.agents[from.0].key.clone();
                let message = format!("`{key}` can't whisper to itself or observe itself");
                self.error("bad-value", &path.key("to"), message).help =
                    Some(format!("leave `{key}` out of `to`"));
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

    /// The agents that one key or a list of keys names, who must be present.
    fn present(&mut self, given: Keys, cast: &[AgentId], path: &Path) -> Vec<AgentId> {
        let keys = match given {
            Keys::One(key) => return self.member(&key, cast, path).into_iter().collect(),
            Keys::Many(keys) => keys,
        };
        if keys.is_empty() {
            self.missing(path, "`to` is empty, so everybody present would hear it", SECRET);
        }
        let mut present: Vec<AgentId> = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let (path, Some(key)) = (path.index(at), key) else { continue };
            let Some(id) = self.member(&key, cast, &path) else { continue };
            if present.contains(&id) {
                let message = format!("`{key}` appears twice in `to`: the second one is not used");
                let span = self.tree.value(&path);
                let found = Diagnostic::warning("duplicate-name", path.to_string(), span, message);
                self.push(found.help("remove one"));
                continue;
            }
            present.push(id);
        }
        present
    }

    /// An agent who must be present.
    pub(super) fn member(&mut self, key: &str, cast: &[AgentId], path: &Path) -> Option<AgentId> {
        let id = self.agent_id(key, path)?;
        self.present_here(id, key, cast, path).then_some(id)
    }

    /// True if an agent is present. Its absence is not reported where the list itself has a mistake.
    pub(super) fn present_here(&mut self, id: AgentId, key: &str, cast: &[AgentId], path: &Path) -> bool {
        let present = cast.contains(&id);
        let phase = self.names.phase_at(path).map(|phase| self.names.places[phase.0].clone());
        if !present && !phase.is_some_and(|phase| self.is_broken(&phase.key("agents"))) {
            let message = format!("`{key}` does not take part in this phase");
            self.error("absent-agent", path, message).help =
                Some(format!("add `{key}` to the phase's `agents`"));
        }
        present
    }
}
