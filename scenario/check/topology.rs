//! Checks who speaks when, and who hears whom.

use super::choices::Answer;
use super::{Checker, is_identifier};
use crate::schema::{
    Key, Keys, Moment, WhoSpeaks, WrittenAudience, WrittenExpression, WrittenPairs, WrittenPhase, WrittenSay,
    WrittenSays, WrittenTurn, json_schema,
};
use crate::template::{Expression, ROUND_NAMES, Template};
use crate::{AgentId, Announcement, PhaseId, ScriptTurn, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// The likely meaning of an empty list, and how to write it.
const SECRET: &str = "leave it out if everybody may hear; if nobody may hear, write `to: nobody`";
/// Words for everybody present, and for nobody.
pub(super) const ALL: &str = "all";
pub(super) const NOBODY: &str = "nobody";

/// A field that lists agents, and what is said of an empty one.
struct AgentList {
    field: &'static str,
    empty: &'static str,
    help: &'static str,
}

const LISTENERS: AgentList =
    AgentList { field: "to", empty: ", so everybody present would hear it", help: SECRET };
const READERS: AgentList = AgentList {
    field: "to",
    empty: ": nobody would read it",
    help: "leave it out if everybody present reads it, or remove the text",
};
const OVERHEARD: AgentList = AgentList {
    field: "overhears",
    empty: " here: nobody is overheard",
    help: "name those whose whispers are heard, or remove it",
};

impl Checker {
    /// Who speaks when: exactly one of `order`, `pairs`, `moderator` and `turns`.
    pub(super) fn topology(
        &mut self,
        written: &mut WrittenPhase,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Topology {
        let given = [
            ("turns", written.turns.is_some()),
            ("pairs", written.pairs.is_some()),
            ("moderator", written.moderator.is_some()),
            ("order", written.order.is_some()),
        ];
        let mut given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(field, _)| field);
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            let message = format!("`{first}` sets who speaks when, so `{second}` can't be used with it");
            self.error("contradiction", &path.key(second), message).help =
                Some("remove one of the two".into());
        }
        if written.again.is_some() && written.moderator.is_none() && !self.is_broken(&path.key("moderator")) {
            let message = "`again` has no effect here: it is about whom a moderator may name";
            self.unused(&path.key("again"), message, "remove it, or name a `moderator`");
        }
        if let Some(turns) = written.turns.take() {
            return Topology::Script(self.script(turns, cast, &path.key("turns"), phase));
        }
        if let Some(pairs) = written.pairs.take() {
            return self.pairs(pairs, cast, &path.key("pairs"), phase);
        }
        if let Some(Key(key)) = written.moderator.take() {
            return match self.member(&key, cast, &path.key("moderator")) {
                Some(by) => Topology::Moderated { by, again: written.again.unwrap_or(true) },
                None => Topology::RoundRobin,
            };
        }
        match written.order.unwrap_or(WhoSpeaks::RoundRobin) {
            WhoSpeaks::RoundRobin => Topology::RoundRobin,
            WhoSpeaks::Rotating => Topology::Rotating,
            WhoSpeaks::Random => Topology::Random,
            WhoSpeaks::Broadcast => Topology::Broadcast,
            WhoSpeaks::Interrupt => Topology::Interrupt,
        }
    }

    /// The pairs that whisper: a list, or an expression for one.
    fn pairs(&mut self, written: WrittenPairs, cast: &[AgentId], path: &Path, phase: PhaseId) -> Topology {
        match written {
            WrittenPairs::List(written) => Topology::Whisper(self.listed_pairs(written, cast, path)),
            WrittenPairs::Text(text) => {
                let (text, end) = (WrittenExpression::Text(text), PhaseId(phase.0 + 1));
                let pairs = self.expression(text, path.clone(), end, ROUND_NAMES);
                pairs.map_or(Topology::RoundRobin, |pairs| Topology::Matched(pairs.into()))
            }
        }
    }

    /// A pair speaks both ways, so it is listed once.
    fn listed_pairs(
        &mut self,
        written: Vec<Option<Vec<Option<Key>>>>,
        cast: &[AgentId],
        path: &Path,
    ) -> Vec<(AgentId, AgentId)> {
        const EXAMPLE: &str = "e.g. `pairs: [[ann, ben], [ann, cas]]`";
        if written.is_empty() {
            self.missing(path, "`pairs` is empty: nobody speaks", EXAMPLE);
        }
        let mut pairs: Vec<(AgentId, AgentId)> = Vec::new();
        let mut first: BTreeMap<[AgentId; 2], usize> = BTreeMap::new();
        for (at, pair) in written.into_iter().enumerate() {
            let (path, Some(pair)) = (path.index(at), pair) else { continue };
            if pair.len() != 2 {
                let message = format!("a pair has two agents, this one has {}", pair.len());
                self.error("bad-value", &path, message).help = Some(EXAMPLE.into());
                continue;
            }
            let keys = pair.into_iter().enumerate();
            let ids = keys.filter_map(|(n, key)| self.member(&key?.0, cast, &path.index(n)));
            let ids: Vec<AgentId> = ids.collect();
            let [from, to] = ids[..] else { continue };
            let [one, other] = [from, to].map(|id| self.names.agents[id.0].key.clone());
            if from == to {
                let message = format!("`{one}` can't be paired with itself");
                self.error("bad-value", &path, message).help = Some(EXAMPLE.into());
                continue;
            }
            let mut both = [from, to];
            both.sort_unstable();
            if let Some(before) = first.get(&both) {
                let message = format!(
                    "`{one}` and `{other}` are already a pair, and a pair speaks both ways: this one is not used"
                );
                let parent = Path(path.0[..path.0.len() - 1].to_vec());
                let (before, span) = (self.tree.value(&parent.index(*before)), self.tree.value(&path));
                let found = Diagnostic::warning("duplicate-name", path.to_string(), span, message);
                self.push(found.related(before, "first defined here")).help = Some(
                    "remove one; to let them speak more often, raise `rounds`, or write `turns` with `to`"
                        .into(),
                );
                continue;
            }
            first.insert(both, at);
            pairs.push((from, to));
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
            let hints = self.hints(turn.model.take(), turn.sampling.take(), &path);
            let WrittenTurn { agent, ask, when, answer, to, set, .. } = turn;
            let Answer { choice, form, call } = self.answer(answer, None, &path, phase);
            let ask = self.round_text(ask, path.key("ask"), phase).map(std::sync::Arc::new);
            // What was said in this phase before the turn may decide about it.
            let end = PhaseId(phase.0 + 1);
            let given = when.clone();
            let when = when.and_then(|given| self.expression(given, path.key("when"), end, ROUND_NAMES));
            let (to, is_unheard) = match to {
                None => (Vec::new(), None),
                Some(Keys::One(word)) if word == ALL => (Vec::new(), Some(false)),
                Some(Keys::One(word)) if word == NOBODY => (Vec::new(), Some(true)),
                Some(to) => (self.present(to, cast, &path.key("to"), &LISTENERS), None),
            };
            let set = self.set(set, &path.key("set"), phase, true);
            let Some(Key(agent)) = agent else {
                self.missing(&path.key("agent"), "a turn needs `agent`: who speaks", "e.g. `agent: ann`");
                continue;
            };
            let turn = ScriptTurn {
                agent: AgentId(0),
                variant: 0,
                ask,
                when,
                choice,
                form,
                call,
                to,
                is_unheard,
                set,
                hints,
            };
            if !self.is_chosen_in_play(&agent, &path) {
                let agent = self.member(&agent, cast, &path.key("agent"));
                agent
                    .into_iter()
                    .for_each(|agent| self.others(&turn.to, agent, "whisper to", &path.key("to")));
                if let (Some(agent), Some(call)) = (agent, &turn.call) {
                    self.can_call(call, &[agent], &path);
                }
                script.extend(agent.map(|agent| ScriptTurn { agent, ..turn }));
                continue;
            }
            if let Some(call) = &turn.call {
                self.can_call(call, cast, &path);
            }
            let speakers = self.speaker_in_play(&agent, given, cast, &path, phase).into_iter().enumerate();
            let of = |(variant, (agent, when))| {
                // One who would be alone with itself speaks as in the phase.
                let to = turn.to.iter().copied().filter(|to| *to != agent).collect();
                ScriptTurn { agent, variant, when: Some(when), to, ..turn.clone() }
            };
            script.extend(speakers.map(of));
        }
        script
    }

    /// True of an expression for an agent: not a key, and no word that is only misspelled.
    fn is_chosen_in_play(&self, agent: &str, path: &Path) -> bool {
        let agent = agent.trim();
        let is_value = self.names.state.iter().chain(&self.names.variables).any(|name| name == agent)
            || self.names.lets.iter().any(|known| known.name == agent)
            || self.is_pass_name(path, agent);
        !self.names.has_agent(agent) && (is_value || !is_identifier(agent))
    }

    /// A turn whose speaker an expression decides is a turn of each agent present, played only by that one.
    fn speaker_in_play(
        &mut self,
        agent: &str,
        when: Option<WrittenExpression>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Vec<(AgentId, Expression)> {
        let (end, here) = (PhaseId(phase.0 + 1), path.key("agent"));
        // Alone first, so that its mistakes are reported once and as they are written.
        let alone = WrittenExpression::Text(agent.to_string());
        if self.expression(alone, here.clone(), end, ROUND_NAMES).is_none() {
            return Vec::new();
        }
        let when = when.map(WrittenExpression::text);
        let turns = cast.iter().filter_map(|id| {
            let is_theirs = format!("({agent}) == '{}'", self.names.agents[id.0].key);
            let condition = match &when {
                Some(when) => format!("({when}) and {is_theirs}"),
                None => is_theirs,
            };
            Some((*id, self.expression(WrittenExpression::Text(condition), here.clone(), end, ROUND_NAMES)?))
        });
        turns.collect()
    }

    /// What the stage says besides the prompt: when the phase opens, with those who read it; and around rounds.
    pub(super) fn said(
        &mut self,
        written: Option<WrittenSays>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> (Vec<(Vec<AgentId>, Template)>, Vec<Announcement>) {
        let (mut openings, mut announcements) = (Vec::new(), Vec::new());
        let written = match written {
            None => return Default::default(),
            Some(WrittenSays::List(written)) => written,
            Some(WrittenSays::Long(private)) => {
                for (key, text) in private {
                    let path = path.key(key.clone());
                    let Some(to) = self.reader(&key, cast, &path) else { continue };
                    openings.extend(self.template(text, path, phase).map(|text| (vec![to], text)));
                }
                return (openings, announcements);
            }
        };
        if written.is_empty() {
            self.unused(path, "`say` is empty", "remove it, or write e.g. `- { to: ann, text: … }`");
        }
        for (n, written) in written.into_iter().enumerate() {
            let (path, Some(WrittenSay { at, to, text })) = (path.index(n), written) else { continue };
            let to = match to {
                None => cast.to_vec(),
                Some(Keys::One(word)) if word == ALL => cast.to_vec(),
                Some(to) => self.present(to, cast, &path.key("to"), &READERS),
            };
            let Some(text) = text else {
                let example = "e.g. `- { at: round_start, text: \"Round {{ round }} of {{ rounds }}.\" }`";
                self.missing(&path.key("text"), "this needs `text`: what is read", example);
                continue;
            };
            let here = path.key("text");
            match at.unwrap_or_default() {
                Moment::Start => {
                    openings.extend(self.template(Some(text), here, phase).map(|text| (to, text)))
                }
                at => {
                    let is_after = at == Moment::RoundEnd;
                    let text = self.round_text(Some(text), here, phase);
                    announcements.extend(text.map(|text| Announcement { text, is_after, to }));
                }
            }
        }
        (openings, announcements)
    }

    /// The reader of a private text, by its key.
    fn reader(&mut self, key: &str, cast: &[AgentId], path: &Path) -> Option<AgentId> {
        let fields = &json_schema().as_value()["$defs"];
        let is_field = |of: &str| fields[of]["properties"].get(key).is_some();
        if !self.names.has_agent(key) && (is_field("Phase") || is_field("Say")) {
            let (of, help) = match is_field("Say") {
                true => ("what is said", "write a list: `say: [{ at: round_end, text: … }]`"),
                false => ("the phase", "indent it like the phase's other fields"),
            };
            let message = format!("there is no agent `{key}`; it is a field of {of}");
            let span = self.tree.key(path);
            self.push(Diagnostic::error("unknown-agent", path.to_string(), span, message).help(help));
            return None;
        }
        self.member_named(key, cast, path)
    }

    /// Those who whisper in a phase, and to whom; `None`: nobody is heard.
    pub(super) fn audience(
        &mut self,
        written: Option<WrittenAudience>,
        cast: &[AgentId],
        path: &Path,
    ) -> Option<BTreeMap<AgentId, Vec<AgentId>>> {
        let mut whispers = BTreeMap::new();
        match written {
            None => {}
            Some(WrittenAudience::One(word)) if word == ALL => {}
            Some(WrittenAudience::One(word)) if word == NOBODY => return None,
            Some(WrittenAudience::Long(written)) => {
                if written.is_empty() {
                    self.unused(path, "`to` is empty: everybody present hears everything", SECRET);
                }
                for (key, to) in written {
                    let path = path.key(key.clone());
                    let (speaker, Some(to)) = (self.member_named(&key, cast, &path), to) else { continue };
                    let to = self.present(to, cast, &path, &LISTENERS);
                    let Some(speaker) = speaker else { continue };
                    self.others(&to, speaker, "whisper to", &path);
                    whispers.insert(speaker, to);
                }
            }
            Some(WrittenAudience::One(key)) => whispers = self.whispered_to(Keys::One(key), cast, path),
            Some(WrittenAudience::Many(keys)) => whispers = self.whispered_to(Keys::Many(keys), cast, path),
        }
        Some(whispers)
    }

    /// All whisper to the same agents; one who would be alone with itself speaks aloud.
    fn whispered_to(&mut self, to: Keys, cast: &[AgentId], path: &Path) -> BTreeMap<AgentId, Vec<AgentId>> {
        let to = self.present(to, cast, path, &LISTENERS);
        let others = |speaker: &AgentId| to.iter().copied().filter(|other| other != speaker).collect();
        let all = cast.iter().map(|speaker| (*speaker, others(speaker)));
        all.filter(|(_, to): &(AgentId, Vec<AgentId>)| !to.is_empty()).collect()
    }

    /// Those who hear the whispers of others, and whose.
    pub(super) fn overhears(
        &mut self,
        written: Option<IndexMap<String, Option<Keys>>>,
        cast: &[AgentId],
        path: &Path,
    ) -> Vec<(AgentId, Vec<AgentId>)> {
        let mut overhears = Vec::new();
        for (key, of) in written.unwrap_or_default() {
            let path = path.key(key.clone());
            let (by, Some(of)) = (self.member_named(&key, cast, &path), of) else { continue };
            let of = self.present(of, cast, &path, &OVERHEARD);
            let Some(by) = by else { continue };
            self.others(&of, by, "overhear", &path);
            overhears.push((by, of));
        }
        overhears
    }

    /// Nobody is in a list of its own.
    fn others(&mut self, listed: &[AgentId], id: AgentId, verb: &str, path: &Path) {
        if listed.contains(&id) {
            let key = self.names.agents[id.0].key.clone();
            let message = format!("`{key}` can't {verb} itself");
            self.error("bad-value", path, message).help = Some(format!("leave `{key}` out of the list"));
        }
    }

    /// An agent who must be present, named by a key of a mapping.
    fn member_named(&mut self, key: &str, cast: &[AgentId], path: &Path) -> Option<AgentId> {
        let Some(id) = self.names.agents.iter().position(|agent| agent.key == key).map(AgentId) else {
            if !self.is_open(&["agents"]) {
                let span = self.tree.key(path);
                self.unknown_agent(key, path, span);
            }
            return None;
        };
        self.present_here(id, key, cast, path).then_some(id)
    }

    /// The agents that one key or a list of keys names, who must be present.
    fn present(&mut self, given: Keys, cast: &[AgentId], path: &Path, list: &AgentList) -> Vec<AgentId> {
        let keys = match given {
            Keys::One(key) => return self.member(&key, cast, path).into_iter().collect(),
            Keys::Many(keys) => keys,
        };
        if keys.is_empty() {
            let message = format!("`{}` is empty{}", list.field, list.empty);
            self.missing(path, &message, list.help);
        }
        let mut present: Vec<AgentId> = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let (path, Some(key)) = (path.index(at), key) else { continue };
            let Some(id) = self.member(&key, cast, &path) else { continue };
            if present.contains(&id) {
                let message =
                    format!("`{key}` appears twice in `{}`: the second one is not used", list.field);
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
