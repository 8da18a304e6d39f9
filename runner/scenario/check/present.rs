//! Checks who is present in a phase and who votes: keys, or an expression that gives them.

use super::Checker;
use crate::scenario::choice::Decision;
use crate::scenario::schema::{Key, WrittenCast, WrittenExpression};
use crate::scenario::template::Expression;
use crate::scenario::yaml::Path;
use crate::scenario::{AgentId, PhaseId, Voters};

impl Checker {
    /// Those who can be present, and an expression for those who are, if it depends on what has happened.
    pub(super) fn phase_cast(
        &mut self,
        given: Option<WrittenCast>,
        path: &Path,
        phase: PhaseId,
    ) -> (Vec<AgentId>, Option<Expression>) {
        let path = path.key("agents");
        match given {
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
                (self.everybody(), present)
            }
            Some(WrittenCast::List(keys)) if !keys.is_empty() => (self.keys_of_cast(keys, &path), None),
            _ => {
                let message = "a phase needs `agents`: the keys of the agents who take part";
                self.missing(&path, message, "e.g. `agents: [ann, ben]`");
                Default::default()
            }
        }
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
                    self.error("duplicate-name", &path, message).help =
                        Some("remove one; to let an agent speak several times in a round, list it several times in `turns`".into());
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
        decision: Option<Decision>,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Option<Voters> {
        let (given, path) = (given?, path.key("voters"));
        if !matches!(
            decision,
            Some(Decision::MajorityVote | Decision::RankedChoice | Decision::Consensus { .. })
        ) {
            let message = "`voters` has no effect here: the phase has no vote by several agents";
            self.unused(&path, message, "remove it, or set a `decision_mode` such as `majority_vote`");
            return None;
        }
        match given {
            WrittenCast::Text(text) => {
                let end = PhaseId(phase.0 + 1);
                let among = self.expression(WrittenExpression::Text(text), path, end, &[])?;
                Some(Voters { agents: cast.to_vec(), among: Some(among) })
            }
            WrittenCast::List(keys) => {
                if keys.is_empty() {
                    let help = "leave it out to let all who speak vote";
                    self.missing(&path, "`voters` is empty, so nothing would be decided", help);
                }
                let mut agents = Vec::new();
                for (at, key) in keys.into_iter().enumerate() {
                    let path = path.index(at);
                    let Some(id) = key.and_then(|Key(key)| self.member(&key, cast, &path)) else { continue };
                    if agents.contains(&id) {
                        let message = format!("`{}` appears twice in `voters`", self.names.agents[id.0].key);
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
