//! Checks how the speakers of a phase are picked.

use super::Checker;
use crate::schema::{Keys, WrittenRoute};
use crate::template;
use crate::{AgentId, Lifecycle, Phase, PhaseId, Route};
use greenroom_yaml::Path;
use std::sync::Arc;

/// Names that mean something else to each reader: a query is nobody's.
const OF_READER: &[&str] = &["me", "role", "display_name", "others"];

impl Checker {
    /// The route of a phase, which is checked except for that.
    pub(super) fn route(
        &mut self,
        written: WrittenRoute,
        phase: &Phase,
        path: &Path,
        id: PhaseId,
    ) -> Option<Arc<Route>> {
        let (above, path) = (path, path.key("route"));
        let WrittenRoute { query, among, take, least, best, otherwise } = written;
        if phase.cast.is_some() {
            let message = "both `route` and the expression in `agents` pick who is present";
            self.error("contradiction", &path, message).help =
                Some("list the agents by their keys, or remove `route`".into());
            return None;
        }
        if phase.rounds == 0 && phase.decision.is_none() && !self.is_broken(&above.key("rounds")) {
            let message = "`route` has no effect here: nobody speaks";
            self.unused(&path, message, "remove it, or set `rounds`");
        }
        let speakers = phase.speakers();
        let among_path = path.key("among");
        let given = among.is_some();
        let among = match among {
            Some(keys) => self.routed(keys, &phase.agents, &among_path),
            None => speakers.clone(),
        };
        for agent in &among {
            self.can_be_picked(*agent, &speakers, if given { &among_path } else { &path });
        }
        if among.len() < 2 && !self.is_broken(&among_path) && !self.is_broken(&above.key("agents")) {
            let message = "a route needs at least two agents to pick from";
            let at = if given { &among_path } else { &path };
            self.error("bad-value", at, message).help = Some("list more of them, or remove `route`".into());
        }
        let otherwise = otherwise.map(|keys| self.routed(keys, &phase.agents, &path.key("otherwise")));
        for agent in otherwise.iter().flatten().filter(|agent| !among.contains(agent)) {
            let key = self.names.agents[agent.0].key.clone();
            let message = format!("`{key}` is not among the agents that can be picked");
            self.error("contradiction", &path.key("otherwise"), message).help =
                Some(format!("add `{key}` to `among`; agents not listed there speak in any case"));
        }
        let take = self.count(take, &path.key("take")).unwrap_or(1);
        let best = self.count(best, &path.key("best")).unwrap_or(1);
        if take >= among.len() && among.len() > 1 && least.is_none() {
            let message = format!(
                "all {} are always picked: `take` is {take}, and there is no minimum score",
                among.len()
            );
            self.unused(&path.key("take"), &message, "lower it, or set `least`");
        }
        let least = least.filter(|least| self.is_cosine(*least, &path.key("least")));
        if query.is_none() {
            self.missing(
                &path,
                "a route needs `query`: the text to search for",
                "e.g. `query: \"{{ question }}\"`",
            );
        }
        let query = self.template(query, path.key("query"), id)?;
        self.is_nobodys(&query.text, &query.path);
        // In speaking order.
        let among = phase.agents.iter().copied().filter(|agent| among.contains(agent)).collect();
        Some(Arc::new(Route { query, among, take, least, best, otherwise: otherwise.unwrap_or_default() }))
    }

    /// The agents of the phase that keys name.
    fn routed(&mut self, keys: Keys, cast: &[AgentId], path: &Path) -> Vec<AgentId> {
        let keys = match keys {
            Keys::One(key) => return self.member(&key, cast, path).into_iter().collect(),
            Keys::Many(keys) => keys,
        };
        if keys.is_empty() {
            let field = path.to_string();
            let field = field.rsplit('.').next().unwrap_or_default().to_string();
            self.missing(path, &format!("`{field}` is empty"), "leave it out, or list agents of the phase");
        }
        let mut found = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let (path, Some(key)) = (path.index(at), key) else { continue };
            match self.member(&key, cast, &path) {
                Some(agent) if found.contains(&agent) => {
                    let message = format!("`{key}` appears twice in the list");
                    self.error("duplicate-name", &path, message).help = Some("remove one".into());
                }
                found_here => found.extend(found_here),
            }
        }
        found
    }

    fn can_be_picked(&mut self, agent: AgentId, speakers: &[AgentId], path: &Path) {
        let (key, lifecycle) = {
            let agent = &self.names.agents[agent.0];
            (agent.key.clone(), agent.lifecycle)
        };
        if !speakers.contains(&agent) {
            let message = format!("`{key}` has no turns in this phase, so it can't be picked");
            self.error("contradiction", path, message).help = Some(format!("leave `{key}` out of `among`"));
        } else if lifecycle == Lifecycle::Ephemeral {
            let message = format!("`{key}` is ephemeral: it has read nothing when the phase opens");
            self.error("contradiction", path, message).help =
                Some(format!("give `{key}` `lifecycle: permanent`, or leave it out of `among`"));
        }
    }

    fn is_cosine(&mut self, least: f64, path: &Path) -> bool {
        if (-1.0..=1.0).contains(&least) {
            return true;
        }
        let message = format!("`least` is {least}, expected a number from -1 to 1");
        self.error("bad-value", path, message).help =
            Some("scores are cosine similarities: 1 means the same direction".into());
        false
    }

    fn is_nobodys(&mut self, text: &str, path: &Path) {
        let names = template::names(text).unwrap_or_default();
        for name in names.iter().filter(|name| OF_READER.contains(&name.as_str())) {
            let line = template::line_of(&template::Code::of(text), text, name);
            let message = format!("a query belongs to no agent, so it can't use `{name}`");
            self.error_at("template", path, (line, name), message).help =
                Some("name the agent: `{{ KEY.display_name }}`".into());
        }
    }
}
