//! Checks the payoff: a value for each combination of the players' options.

use super::Checker;
use crate::choice::text_of;
use crate::schema::{Key, Matrix, PhaseNames, WrittenPayoff};
use crate::template::Expression;
use crate::{AgentId, Choice, Payoff, PayoffRule, Phase, PhaseId, Scenario, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of combinations that a matrix may list.
const MAX_CELLS: usize = 10_000;

/// Phases by name, as text.
fn names_of(phases: &[&Phase]) -> String {
    phases.iter().map(|phase| format!("`{}`", phase.name)).collect::<Vec<_>>().join(" and ")
}

impl Checker {
    pub(super) fn payoff(
        &mut self,
        written: Option<WrittenPayoff>,
        phases: &[Phase],
        path: &Path,
    ) -> Option<Payoff> {
        let written = written?;
        let names = match written.phase.clone() {
            Some(PhaseNames::One(name)) => Some(vec![(name, path.key("phase"))]),
            Some(PhaseNames::Many(names)) if !names.is_empty() => {
                let names = names.into_iter().enumerate();
                Some(names.filter_map(|(at, name)| Some((name?, path.key("phase").index(at)))).collect())
            }
            _ => None,
        };
        let Some(names) = names else {
            self.missing(
                &path.key("phase"),
                "a payoff needs `phase`: whose choices count",
                "e.g. `phase: game`",
            );
            return None;
        };
        let mut valued: Vec<PhaseId> = Vec::new();
        for (name, path) in names {
            let known = self.names.phase(&name).filter(|phase| phase.0 < phases.len());
            let Some(phase) = known else {
                if !self.is_open(&["phases"]) {
                    let help = self.suggest(&name, phases.iter().map(|phase| phase.name.as_str()));
                    let help = help.unwrap_or("the names are under `phases:`".into());
                    let message = format!("there is no phase `{name}`");
                    self.error("unknown-phase", &path, message).help = Some(help);
                }
                return None;
            };
            if valued.contains(&phase) {
                let message = format!("`{name}` appears twice among the phases whose choices count");
                self.error("duplicate-name", &path, message).help = Some("remove one".into());
                continue;
            }
            let here = &phases[phase.0];
            let unread = ["agents", "answer", "vote", "turns"];
            if unread.iter().any(|field| self.is_broken(&here.path.key(*field))) {
                return None;
            }
            if self.choosers(here).is_empty() {
                let message = format!("no turn of `{name}` is a choice, so there is nothing to value");
                let help = "add `answer: […]` to the phase, or to single `turns`";
                self.missing(&path, &message, help);
                return None;
            }
            valued.push(phase);
        }
        let of: Vec<&Phase> = valued.iter().map(|phase| &phases[phase.0]).collect();
        let players = self.players(written.players, &of, path);
        if self.is_broken(&path.key("players")) {
            return None;
        }
        let choices = self.choices_of_players(&players, &of, path)?;
        let rule = match (written.matrix, written.each) {
            (Some(matrix), None) => {
                let mut table = BTreeMap::new();
                let path = path.key("matrix");
                let n_options = choices.iter().map(|choice| choice.options.len());
                let n_cells = n_options.fold(1usize, usize::saturating_mul);
                if n_cells > MAX_CELLS {
                    let message =
                        format!("{n_cells} combinations of options; a matrix can have at most {MAX_CELLS}");
                    self.error("too-many", &path, message).help =
                        Some("write an expression with `each:`".into());
                    return None;
                }
                self.cells(&matrix, &path, &choices, &players, &mut Vec::new(), &mut table);
                PayoffRule::Matrix(table)
            }
            (None, Some(each)) => {
                let more = ["mine", "others", "all"];
                PayoffRule::Each(self.expression(each, path.key("each"), PhaseId(0), &more)?)
            }
            (Some(_), Some(_)) => {
                let message = "a payoff is given by `matrix` or by `each`, not by both";
                self.error("contradiction", &path.key("each"), message).help =
                    Some("remove one of the two".into());
                return None;
            }
            (None, None) => {
                if !self.is_broken(&path.key("each")) {
                    let help = "e.g. `each: 3 if mine == 'talk' else 0`";
                    self.missing(&path.key("matrix"), "a payoff needs `matrix` or `each`", help);
                }
                return None;
            }
        };
        let unit = self.known_text(written.unit, &path.key("unit"));
        let unit = unit.unwrap_or_else(|| "points".to_string());
        Some(Payoff { phases: valued, players, choices, unit, rule })
    }

    /// Rejects a matrix for players who never play together: in a block for each item of a list.
    pub(super) fn all_play(&mut self, scenario: &Scenario) {
        let Some(payoff) = &scenario.payoff else { return };
        let PayoffRule::Matrix(_) = payoff.rule else { return };
        let n_players = payoff.players.len();
        let few = payoff.phases.iter().find(|phase| scenario.players_in(payoff, **phase).len() < n_players);
        if let Some(phase) = few {
            let phase = &scenario.phase(*phase).part;
            let message =
                format!("this matrix is for {n_players} players, not all of whom play in `{phase}`");
            self.error("contradiction", &Path::default().key("payoff").key("matrix"), message).help =
                Some("use `each`, which values the choices of those who play in a pass".into());
        }
    }

    /// The choice of each player. A player whose turns have different options has no single choice to be
    /// valued.
    fn choices_of_players(
        &mut self,
        players: &[AgentId],
        phases: &[&Phase],
        path: &Path,
    ) -> Option<Vec<Arc<Choice>>> {
        let mut choices = Vec::new();
        for player in players {
            let own: Vec<_> = phases.iter().flat_map(|phase| phase.choices_of(*player)).collect();
            let first = *own.first()?;
            if let Some(other) = own.iter().find(|other| !other.has_results_of(first)) {
                let key = self.names.agents[player.0].key.clone();
                let message = format!(
                    "the turns of `{key}` in {} have different options, so it is unclear which options count",
                    names_of(phases)
                );
                let span = self.tree.value(&other.path);
                let found = self.error("contradiction", &path.key("phase"), message);
                found.related = Some((span, "other options here".into()));
                found.help = Some(
                    "give all turns of a player the same options, or move each question to its own phase"
                        .into(),
                );
                return None;
            }
            if first.n_picks > 1 {
                let message = "choices of several options (`some_of`) can't have a payoff";
                self.error("contradiction", &first.path, message).help =
                    Some("use `one_of`, or compute the result in `outcome`".into());
                return None;
            }
            choices.push(first.clone());
        }
        Some(choices)
    }

    /// Those who choose in turns of a phase, in order, each once.
    fn choosers(&self, phase: &Phase) -> Vec<AgentId> {
        let speakers = match &phase.topology {
            Topology::Script(turns) => turns.iter().map(|turn| turn.agent).collect(),
            _ => phase.speakers(),
        };
        let mut unique = Vec::new();
        for agent in speakers {
            if !unique.contains(&agent) && !phase.choices_of(agent).is_empty() {
                unique.push(agent);
            }
        }
        unique
    }

    fn players(&mut self, given: Option<Vec<Option<Key>>>, phases: &[&Phase], path: &Path) -> Vec<AgentId> {
        let mut unique: Vec<AgentId> = Vec::new();
        for agent in phases.iter().flat_map(|phase| self.choosers(phase)) {
            if !unique.contains(&agent) {
                unique.push(agent);
            }
        }
        let Some(given) = given else { return unique };
        if given.is_empty() {
            let help = "leave `players` out for all agents who choose in the phase";
            self.missing(&path.key("players"), "`players` is empty, so nothing would be valued", help);
        }
        let mut players = Vec::new();
        for (at, key) in given.into_iter().enumerate() {
            let path = path.key("players").index(at);
            let Some(id) = key.and_then(|Key(key)| self.agent_id(&key, &path)) else { continue };
            if !unique.contains(&id) || players.contains(&id) {
                let key = &self.names.agents[id.0].key;
                let twice = players.contains(&id);
                let message = if twice {
                    format!("`{key}` appears twice among the players")
                } else {
                    format!("`{key}` makes no choice in {}", names_of(phases))
                };
                let code = if twice { "duplicate-name" } else { "absent-agent" };
                let help = "list only agents who choose in the phase, each once; leave `players` out for all \
                            of them";
                self.error(code, &path, message).help = Some(help.into());
            }
            players.push(id);
        }
        players
    }

    /// One level of the matrix for each player; a list of values at the bottom. False: a level is missing,
    /// and so probably everywhere.
    fn cells(
        &mut self,
        given: &Matrix,
        path: &Path,
        choices: &[Arc<Choice>],
        players: &[AgentId],
        above: &mut Vec<usize>,
        table: &mut BTreeMap<Vec<usize>, Vec<Expression>>,
    ) -> bool {
        if above.len() == players.len() {
            self.cell(given, path, players, above, table);
            return true;
        }
        let choice = &choices[above.len()];
        let player = self.names.agents[players[above.len()].0].key.clone();
        let Matrix::Texts(rows) = given else {
            let message = format!("expected a mapping from the options of `{player}`, who chooses here");
            let order = self.keys(players);
            let values: Vec<String> = (1..=players.len()).map(|n| n.to_string()).collect();
            let first = choices.iter().map(|choice| text_of(&choice.options[0].value));
            let example = first.rev().fold(format!("[{}]", values.join(", ")), |below, option| {
                match below.as_bytes() {
                    [b'[', ..] => format!("{option}: {below}"),
                    _ => format!("{option}: {{ {below}, … }}"),
                }
            });
            self.error("type", path, message).help = Some(format!(
                "write one level per player, in this order: {order}; then the values, e.g. `{example}`"
            ));
            return false;
        };
        let mut odd = false;
        let mut seen = vec![false; choice.options.len()];
        for (key, below) in rows {
            let here = path.key(key.clone());
            let Some(option) = choice.find(key) else {
                let names: Vec<String> = choice.options.iter().map(|option| text_of(&option.value)).collect();
                let help = self.suggest(key, names.iter().map(String::as_str));
                let help = help.unwrap_or("the options are in the phase's `answer`".into());
                let span = self.tree.key(&here);
                let message = format!("`{player}` has no option `{key}`");
                self.push(Diagnostic::error("unknown-value", here.to_string(), span, message).help(help));
                odd = true;
                continue;
            };
            seen[option] = true;
            let Some(below) = below else { continue };
            above.push(option);
            let complete = self.cells(below, &here, choices, players, above, table);
            above.pop();
            if !complete {
                return false;
            }
        }
        for (option, _) in choice.options.iter().zip(seen).filter(|(_, seen)| !odd && !seen) {
            let option = text_of(&option.value);
            let message = format!("the option `{option}` of `{player}` is missing here");
            let help = format!("every combination needs values: add `{option}: …`");
            self.error("missing", path, message).help = Some(help);
        }
        true
    }

    fn keys(&self, players: &[AgentId]) -> String {
        let keys: Vec<&str> = players.iter().map(|id| self.names.agents[id.0].key.as_str()).collect();
        keys.join(", ")
    }

    fn cell(
        &mut self,
        given: &Matrix,
        path: &Path,
        players: &[AgentId],
        above: &[usize],
        table: &mut BTreeMap<Vec<usize>, Vec<Expression>>,
    ) {
        let order = format!("write one number each, in this order: {}", self.keys(players));
        let Matrix::List(values) = given else {
            let message = format!("expected a list of {} values, one for each player", players.len());
            self.error("type", path, message).help = Some(order);
            return;
        };
        if values.len() != players.len() {
            let message =
                format!("expected {} values, one for each player, found {}", players.len(), values.len());
            self.error("bad-value", path, message).help = Some(order);
            return;
        }
        let cell = values.iter().enumerate();
        let cell: Option<Vec<Expression>> = cell
            .map(|(at, value)| self.expression(value.clone()?, path.index(at), PhaseId(0), &[]))
            .collect();
        table.extend(cell.map(|cell| (above.to_vec(), cell)));
    }
}
