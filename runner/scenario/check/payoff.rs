//! Checks the payoff: a value for each combination of the players' options.

use super::Checker;
use crate::diagnostic::suggest;
use crate::scenario::choice::text_of;
use crate::scenario::schema::WrittenPayoff;
use crate::scenario::source::Path;
use crate::scenario::template::Expression;
use crate::scenario::{AgentId, Choice, Payoff, PayoffRule, Phase, PhaseId, Topology};
use serde_yaml::Value;
use std::collections::BTreeMap;

/// Most combinations that a matrix may list.
const MAX_CELLS: usize = 10_000;

impl Checker {
    pub(super) fn payoff(
        &mut self,
        written: Option<WrittenPayoff>,
        phases: &[Phase],
        path: &Path,
    ) -> Option<Payoff> {
        let written = written?;
        let Some(name) = written.phase else {
            self.error("missing", path, "a payoff needs `phase`: whose choices count");
            return None;
        };
        let Some(phase) = self.names.phase(&name) else {
            let help = suggest(&name, phases.iter().map(|phase| phase.name.as_str()));
            self.error("unknown-phase", &path.key("phase"), format!("there is no phase `{name}`")).help =
                help;
            return None;
        };
        let here = &phases[phase.0];
        let Some(choice) = here.choice.as_ref().filter(|_| here.decision.is_none()) else {
            let message = format!(
                "`{name}` has no `choice` of its own that each player makes, so nothing can be valued"
            );
            self.error("missing", &path.key("phase"), message).help =
                Some("give the phase `choice: […]`, without a `decision_mode`".into());
            return None;
        };
        let players = self.players(written.players, here, path);
        let rule = match (written.matrix, written.each) {
            (Some(matrix), None) => {
                let mut table = BTreeMap::new();
                let path = path.key("matrix");
                let n_cells = players.iter().fold(1usize, |n, _| n.saturating_mul(choice.options.len()));
                if n_cells > MAX_CELLS {
                    let message =
                        format!("{n_cells} combinations of options; a matrix lists at most {MAX_CELLS}");
                    self.error("too-many", &path, message).help =
                        Some("give an expression with `each:`".into());
                    return None;
                }
                self.cells(&matrix, &path, choice, &players, &mut Vec::new(), &mut table);
                PayoffRule::Matrix(table)
            }
            (None, Some(each)) => {
                let more = ["mine", "others", "all"];
                PayoffRule::Each(self.expression(each, path.key("each"), PhaseId(0), &more)?)
            }
            _ => {
                let message = "a payoff is given by `matrix` or by `each`, one of them";
                self.error("missing", path, message);
                return None;
            }
        };
        let unit = written.unit.unwrap_or_else(|| "points".to_string());
        Some(Payoff { phase, players, unit, rule })
    }

    fn players(&mut self, given: Option<Vec<Option<String>>>, phase: &Phase, path: &Path) -> Vec<AgentId> {
        let speakers = match &phase.topology {
            Topology::Script(turns) => turns.iter().map(|turn| turn.agent).collect(),
            _ => phase.speakers(),
        };
        let mut unique = Vec::new();
        speakers.into_iter().for_each(|agent| {
            if !unique.contains(&agent) {
                unique.push(agent)
            }
        });
        let Some(given) = given else { return unique };
        let mut players = Vec::new();
        for (at, key) in given.into_iter().enumerate() {
            let path = path.key("players").index(at);
            let Some(id) = key.as_deref().and_then(|key| self.agent_id(key, &path)) else { continue };
            if !unique.contains(&id) || players.contains(&id) {
                let key = &self.names.agents[id.0].key;
                let message = format!("`{key}` makes no choice in `{}`, or stands here twice", phase.name);
                self.error("absent-agent", &path, message);
            }
            players.push(id);
        }
        players
    }

    /// One level of the matrix for each player; a list of values at the bottom.
    fn cells(
        &mut self,
        given: &Value,
        path: &Path,
        choice: &Choice,
        players: &[AgentId],
        above: &mut Vec<usize>,
        table: &mut BTreeMap<Vec<usize>, Vec<Expression>>,
    ) {
        if above.len() == players.len() {
            return self.cell(given, path, players, above, table);
        }
        let player = self.names.agents[players[above.len()].0].key.clone();
        let Value::Mapping(rows) = given else {
            let message = format!("here `{player}` chooses: expected a mapping from its options");
            self.error("type", path, message);
            return;
        };
        let mut seen = vec![false; choice.options.len()];
        for (key, below) in rows {
            let key = serde_json::to_value(key).map_or(String::new(), |key| text_of(&key));
            let here = path.key(key.clone());
            let Some(option) = choice.find(&key) else {
                let names: Vec<String> = choice.options.iter().map(|option| text_of(&option.value)).collect();
                let help = suggest(&key, names.iter().map(String::as_str));
                self.error("unknown-value", &here, format!("`{player}` has no option `{key}`")).help = help;
                continue;
            };
            seen[option] = true;
            above.push(option);
            self.cells(below, &here, choice, players, above, table);
            above.pop();
        }
        for (option, _) in choice.options.iter().zip(seen).filter(|(_, seen)| !seen) {
            let message = format!("the option `{}` of `{player}` is missing here", text_of(&option.value));
            self.error("missing", path, message).help = Some("every combination needs its values".into());
        }
    }

    fn cell(
        &mut self,
        given: &Value,
        path: &Path,
        players: &[AgentId],
        above: &[usize],
        table: &mut BTreeMap<Vec<usize>, Vec<Expression>>,
    ) {
        let Value::Sequence(values) = given else {
            self.error(
                "type",
                path,
                format!("expected a list of {} values, one for each player", players.len()),
            );
            return;
        };
        if values.len() != players.len() {
            let message = format!("{} values for {} players", values.len(), players.len());
            self.error("bad-value", path, message);
            return;
        }
        let cell = values.iter().enumerate();
        let cell: Option<Vec<Expression>> =
            cell.map(|(at, value)| self.expression(value.clone(), path.index(at), PhaseId(0), &[])).collect();
        table.extend(cell.map(|cell| (above.to_vec(), cell)));
    }
}
