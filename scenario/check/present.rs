//! Checks who is present in a phase and who votes: keys, or an expression that gives them.

use super::Checker;
use super::topology::{ALL, NOBODY};
use crate::schema::{
    Key, Keys, VoteRule, WrittenAudience, WrittenCast, WrittenExpression, WrittenPairs, WrittenPhase,
    WrittenSays,
};
use crate::template::{Expression, Scope, evaluate_in, plain_variables};
use crate::{AgentId, PhaseId, Voters};
use greenroom_yaml::Path;
use serde_json::Value;

impl Checker {
    /// Those who can be present, and an expression for those who are, if it depends on what has happened.
    pub(super) fn phase_cast(
        &mut self,
        written: &mut WrittenPhase,
        path: &Path,
        phase: PhaseId,
    ) -> (Vec<AgentId>, Option<Expression>) {
        let path = path.key("agents");
        match written.agents.take() {
            Some(WrittenCast::Text(text)) => {
                let key = text.trim();
                if self.names.has_agent(key) {
                    let message = format!(
                        "`{key}` is one agent; expected a list of keys, or an expression that returns one"
                    );
                    self.error("type", &path, message).help = Some(format!("write `[{key}]`"));
                    return Default::default();
                }
                if text.split(',').all(|key| self.names.has_agent(key.trim())) {
                    let message = format!("expected a list of keys, found the text \"{text}\"");
                    self.error("type", &path, message).help = Some(format!("write `[{text}]`"));
                    return Default::default();
                }
                let present = self.expression(WrittenExpression::Text(text), path, phase, &[]);
                let known = present.as_ref().and_then(|present| self.known_cast(present));
                match known.filter(|known| self.is_cast_of(written, known)) {
                    Some(known) => (known, None),
                    None => (self.everybody(), present),
                }
            }
            Some(WrittenCast::List(keys)) if !keys.is_empty() => (self.keys_of_cast(keys, &path), None),
            _ => {
                let message = "a phase needs `agents`: the keys of the agents who take part";
                self.missing(&path, message, "e.g. `agents: [ann, ben]`");
                Default::default()
            }
        }
    }

    /// The agents that an expression over variables alone returns, in the order of `agents`. `None`: it
    /// depends on what happens, or does not return keys of agents.
    fn known_cast(&self, present: &Expression) -> Option<Vec<AgentId>> {
        let Scope { state, payoffs, verdict, .. } = &present.scope;
        if !present.phases.is_empty() || *state || *payoffs || verdict.is_some() {
            return None;
        }
        let mut names: Vec<(&str, Value)> = Vec::new();
        let context = plain_variables(&self.names.values);
        for index in &present.scope.lets {
            let known = self.names.lets.get(*index)?;
            let value = evaluate_in(context.clone(), known.value.as_ref()?, names.iter().cloned()).ok()?;
            names.push((&known.name, value));
        }
        let Ok(Value::Array(keys)) = evaluate_in(context, present, names) else { return None };
        let agent = |key: &Value| self.names.agents.iter().position(|agent| key == agent.key.as_str());
        let mut cast: Vec<AgentId> = keys.iter().map(|key| agent(key).map(AgentId)).collect::<Option<_>>()?;
        cast.sort_unstable();
        cast.dedup();
        (!cast.is_empty()).then_some(cast)
    }

    /// True if only those present have a part in a phase. A variable may be set otherwise, so a part of
    /// somebody who is absent is not a mistake: then the cast stays open.
    fn is_cast_of(&self, written: &WrittenPhase, cast: &[AgentId]) -> bool {
        let is_present = |key: &str| cast.iter().any(|id| self.names.agents[id.0].key == key);
        parts(written).into_iter().all(|key| !self.names.has_agent(key) || is_present(key))
    }

    fn everybody(&self) -> Vec<AgentId> {
        (0..self.names.agents.len()).map(AgentId).collect()
    }

    fn keys_of_cast(&mut self, keys: Vec<Option<Key>>, path: &Path) -> Vec<AgentId> {
        let mut cast = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let path = path.index(at);
            let Some(Key(key)) = key else { continue };
            match self.agent_id(&key, &path) {
                Some(id) if cast.contains(&id) => {
                    let message = format!("`{key}` appears twice among the agents of this phase");
                    self.error("duplicate-name", &path, message).help = Some(
                        "remove one; to let an agent speak several times in a round, list it several \
                              times in `turns`"
                            .into(),
                    );
                }
                Some(id) => cast.push(id),
                None => {}
            }
        }
        cast
    }

    /// Those who vote, where it is not all who speak.
    pub(super) fn voters(
        &mut self,
        given: Option<WrittenCast>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Option<Voters> {
        let (given, path) = (given?, path.key("by"));
        match given {
            WrittenCast::Text(text) => {
                let end = PhaseId(phase.0 + 1);
                let among = self.expression(WrittenExpression::Text(text), path, end, &[])?;
                if let Some(known) = self.known_cast(&among)
                    && known.iter().all(|id| cast.contains(id))
                {
                    let agents = cast.iter().copied().filter(|id| known.contains(id)).collect();
                    return Some(Voters { agents, among: None });
                }
                Some(Voters { agents: cast.to_vec(), among: Some(among) })
            }
            WrittenCast::List(keys) => {
                if keys.is_empty() {
                    let help = "leave it out to let all who speak vote";
                    self.missing(&path, "`by` is empty, so nothing would be decided", help);
                }
                let mut agents = Vec::new();
                for (at, key) in keys.into_iter().enumerate() {
                    let path = path.index(at);
                    let Some(id) = key.and_then(|Key(key)| self.member(&key, cast, &path)) else { continue };
                    if agents.contains(&id) {
                        let message = format!("`{}` appears twice in `by`", self.names.agents[id.0].key);
                        self.error("duplicate-name", &path, message).help = Some("remove one".into());
                        continue;
                    }
                    agents.push(id);
                }
                Some(Voters { agents, among: None })
            }
        }
    }
}

/// Keys of the agents that a phase gives a part.
fn parts(written: &WrittenPhase) -> Vec<&str> {
    fn of(keys: Option<&Keys>) -> Vec<&str> {
        match keys {
            None => Vec::new(),
            Some(Keys::One(key)) => vec![key],
            Some(Keys::Many(keys)) => keys.iter().flatten().map(String::as_str).collect(),
        }
    }
    let turns = || written.turns.iter().flatten().flatten();
    let one = written.moderator.iter().chain(turns().filter_map(|turn| turn.agent.as_ref()));
    let pairs = match &written.pairs {
        Some(WrittenPairs::List(pairs)) => pairs.as_slice(),
        _ => &[],
    };
    let pairs = pairs.iter().flatten().flatten().flatten();
    let voters = match written.vote.as_ref().and_then(|vote| vote.by.as_ref()) {
        Some(WrittenCast::List(keys)) => keys.as_slice(),
        _ => &[],
    };
    let leader = written.vote.as_ref().filter(|vote| vote.rule == Some(VoteRule::Leader));
    let leader = leader.and_then(|vote| match &vote.by {
        Some(WrittenCast::Text(key)) => Some(key.trim()),
        _ => None,
    });
    let one = one.chain(pairs).chain(voters.iter().flatten()).map(|Key(key)| key.as_str()).chain(leader);
    let many = turns().map(|turn| turn.to.as_ref());
    let (private, said): (Vec<&str>, &[_]) = match &written.say {
        None => Default::default(),
        Some(WrittenSays::Long(private)) => (private.keys().map(String::as_str).collect(), &[]),
        Some(WrittenSays::List(said)) => (Vec::new(), said),
    };
    let many = many.chain(said.iter().flatten().map(|said| said.to.as_ref()));
    let routes = written.route.iter().flat_map(|route| [route.among.as_ref(), route.otherwise.as_ref()]);
    let (speakers, audience): (Vec<&str>, Vec<&str>) = match &written.to {
        None => Default::default(),
        Some(WrittenAudience::One(key)) => (Vec::new(), vec![key]),
        Some(WrittenAudience::Many(keys)) => {
            (Vec::new(), keys.iter().flatten().map(String::as_str).collect())
        }
        Some(WrittenAudience::Long(map)) => {
            let of_each = map.values().flat_map(|to| of(to.as_ref()));
            (map.keys().map(String::as_str).collect(), of_each.collect())
        }
    };
    let others = written.overhears.iter().flatten();
    let others = others.flat_map(|(key, whose)| std::iter::once(key.as_str()).chain(of(whose.as_ref())));
    let named = one
        .chain(many.chain(routes).flat_map(of))
        .chain(speakers)
        .chain(audience)
        .chain(others)
        .chain(private);
    named.filter(|key| ![ALL, NOBODY].contains(key)).collect()
}
