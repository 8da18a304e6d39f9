//! Checks who answers instead of the model: the rule, and that its reply is an option where there are
//! options.

use super::Checker;
use crate::choice::text_of;
use crate::schema::{Scalar, StrategyField, StrategyFields, WrittenStrategy};
use crate::{Agent, AgentId, ChoiceOption, Decision, Phase, Strategy, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;

/// The strategies that are a word.
const WORDS: &[&str] = &["tit_for_tat", "grim", "human"];
/// Those with a setting.
const KINDS: &[&str] = &["always", "random", "list", "script"];

impl Checker {
    pub(super) fn strategy(&mut self, given: WrittenStrategy, path: &Path) -> Option<Strategy> {
        match given {
            WrittenStrategy::Texts(fields) if is_by_phase(&fields) => self.by_phase(fields, path),
            given => self.rule(given, path),
        }
    }

    /// A strategy that is the same in every phase in which it is played.
    fn rule(&mut self, given: WrittenStrategy, path: &Path) -> Option<Strategy> {
        match given {
            WrittenStrategy::Text(word) => match word.trim() {
                "tit_for_tat" => Some(Strategy::TitForTat),
                "grim" => Some(Strategy::Grim),
                "human" => Some(Strategy::Human),
                other => self.no_strategy(other, path),
            },
            WrittenStrategy::Texts(StrategyFields(mut fields)) => {
                if fields.len() > 1 || is_by_phase(&StrategyFields(fields.clone())) {
                    return self.mixed(&fields, path);
                }
                let (kind, field) = fields.pop()?;
                self.with_setting(&kind, field, path)
            }
        }
    }

    fn with_setting(&mut self, kind: &str, field: StrategyField, path: &Path) -> Option<Strategy> {
        let at = path.key(kind);
        let text =
            |checker: &mut Self, answer: Scalar, path: &Path| text_of(&checker.known_scalar(answer, path));
        let message = match field {
            StrategyField::Always(Some(answer)) => {
                let answer = text(self, answer, &at);
                self.means_one(kind, &answer, path);
                return Some(Strategy::Always(answer));
            }
            StrategyField::Random(Some(p)) if (0.0..=1.0).contains(&p) => return Some(Strategy::Random(p)),
            StrategyField::List(Some(answers)) if !answers.is_empty() => {
                let answers = answers.into_iter().enumerate();
                let answers = answers.map(|(n, answer)| Some(text(self, answer?, &at.index(n))));
                return answers.collect::<Option<_>>().map(Strategy::List);
            }
            StrategyField::Script(Some(entries)) if !entries.is_empty() => {
                let entries = entries.into_iter().map(|(turn, answer)| {
                    let answer = text(self, answer?, &at.key(turn.clone()));
                    Some((turn, answer))
                });
                return entries.collect::<Option<_>>().map(Strategy::Script);
            }
            StrategyField::Of(_) => return None,
            StrategyField::Always(_) => "`always` needs one option or text",
            StrategyField::Random(_) => "`random` needs a probability from 0 to 1",
            StrategyField::List(_) => "`list` needs a list of options or texts",
            StrategyField::Script(_) => {
                "`script` needs an option or a text for each turn, by the turn's path"
            }
        };
        let path = path.key(kind);
        if !self.is_broken(&path) {
            let example = match kind {
                "script" => "e.g. `{ script: { game/1/ann: talk, game/2/ann: silent } }`",
                _ => "e.g. `{ always: talk }`, `{ random: 0.5 }`, `{ list: [talk, silent] }`",
            };
            self.error("bad-value", &path, message).help = Some(example.into());
        }
        None
    }

    /// Rejects `{always: grim}` where a phase is called `always`: it has two meanings.
    fn means_one(&mut self, kind: &str, answer: &str, path: &Path) {
        if WORDS.contains(&answer) && self.names.phases.iter().any(|phase| phase == kind) {
            let message = format!(
                "`{kind}` is a strategy and the name of a phase, so this can mean that the agent always \
                 answers `{answer}`, or that `{answer}` plays it in that phase"
            );
            self.error("contradiction", &path.key(kind), message).help = Some("rename the phase".into());
        }
    }

    /// Strategies by phase.
    fn by_phase(&mut self, StrategyFields(fields): StrategyFields, path: &Path) -> Option<Strategy> {
        let is_known = |checker: &Self, name: &str| {
            checker.names.partial || checker.names.phases.iter().any(|of| of == name)
        };
        if let [(name, _)] = &fields[..]
            && !is_known(self, name)
        {
            return self.no_strategy(name, path);
        }
        let mut all = Vec::new();
        for (name, field) in fields {
            let (path, StrategyField::Of(given)) = (path.key(name.clone()), field) else { continue };
            if !is_known(self, &name) {
                let help = self.suggest(&name, self.names.phases.iter().map(String::as_str));
                let span = self.tree.key(&path);
                let message = format!("there is no phase `{name}`");
                let found = Diagnostic::error("unknown-phase", path.to_string(), span, message);
                self.push(found).help = help.or(Some("the keys are names of phases".into()));
            } else if let Some(given) = given {
                all.extend(self.rule(given, &path).map(|strategy| (name, strategy)));
            } else if !self.is_broken(&path) {
                self.error("bad-value", &path, format!("`{name}` has no strategy")).help =
                    Some("e.g. `tit_for_tat`, or `{ always: talk }`".into());
            }
        }
        (!all.is_empty()).then_some(Strategy::ByPhase(all))
    }

    fn no_strategy(&mut self, word: &str, path: &Path) -> Option<Strategy> {
        let known = WORDS.iter().chain(KINDS).copied().chain(self.names.phases.iter().map(String::as_str));
        let help = self.suggest(word, known);
        let message = format!("`{word}` is not a valid strategy");
        self.error("unknown-value", path, message).help = help;
        None
    }

    /// Rejects a mapping with a kind of strategy among other keys, or with phases within a phase.
    fn mixed(&mut self, fields: &[(String, StrategyField)], path: &Path) -> Option<Strategy> {
        let kind = fields.iter().find(|(key, _)| KINDS.contains(&key.as_str())).map(|(key, _)| key);
        let (message, help) = match kind {
            Some(kind) if self.names.phases.contains(kind) => (
                format!("`{kind}` is a kind of strategy, so a phase with this name can't have an entry here"),
                "rename the phase".to_string(),
            ),
            Some(kind) => (
                format!("`{kind}` is a kind of strategy, so it can't stand beside other keys"),
                format!("write `{{ {kind}: … }}` alone, or below the names of phases"),
            ),
            None if fields.is_empty() => {
                ("the strategy is empty".to_string(), "e.g. `tit_for_tat`, or `{ always: talk }`".to_string())
            }
            None => (
                "a phase can't have strategies by phase".to_string(),
                "write one strategy, e.g. `tit_for_tat`, or `{ always: talk }`".to_string(),
            ),
        };
        self.error("contradiction", path, message).help = Some(help);
        None
    }

    /// Rejects a fixed answer that is not an option where the agent must choose: the run would end there.
    pub(super) fn answers(&mut self, agents: &[Agent], phases: &[Phase]) {
        for (id, agent) in agents.iter().enumerate() {
            for (path, played, part) in placed(agent, phases) {
                let Strategy::Always(answer) = part else { continue };
                let offered = played.into_iter().flat_map(|phase| offered(agents, phase, AgentId(id)));
                let is_known = |options: &[ChoiceOption]| {
                    let mut known =
                        options.iter().flat_map(|option| [text_of(&option.value), option.text.clone()]);
                    known.any(|name| name == *answer)
                };
                // One place is reported; the others are tried once this is right.
                let mut wrong = offered.filter(|(_, options)| !is_known(options));
                let Some((place, options)) = wrong.next() else { continue };
                self.no_option(agent, &path.key("always"), answer, &place, &options);
            }
        }
    }

    pub(super) fn no_option(
        &mut self,
        agent: &Agent,
        path: &Path,
        answer: &str,
        place: &str,
        options: &[ChoiceOption],
    ) {
        let values: Vec<String> = options.iter().map(|option| text_of(&option.value)).collect();
        let help = self.suggest(answer, values.iter().map(String::as_str));
        let message =
            format!("`{answer}` is not an option {place}, and `{}` can give no other answer", agent.key);
        self.error("unknown-value", path, message).help =
            help.or(Some("write one of the options exactly as it is there".into()));
    }
}

impl Checker {
    /// Rejects strategies with one option in mind where several are picked.
    pub(super) fn pick_several(&mut self, agents: &[Agent], phases: &[Phase]) {
        for (id, agent) in agents.iter().enumerate() {
            for (path, played, part) in placed(agent, phases) {
                let word = match part {
                    Strategy::TitForTat => "tit_for_tat",
                    Strategy::Grim => "grim",
                    Strategy::Always(_) => "always",
                    _ => continue,
                };
                let picks =
                    |phase: &&Phase| phase.choices_of(AgentId(id)).iter().any(|choice| choice.n_picks > 1);
                let Some(phase) = played.into_iter().find(picks) else { continue };
                let message =
                    format!("`{word}` gives one option, but several are picked in `{}`", phase.name);
                self.error("contradiction", &path, message).help =
                    Some("use `random`, `list` or `script`, with an answer for each pick".into());
            }
        }
    }
}

/// The strategies of an agent, with their places and the phases in which each is played.
pub(super) fn placed<'a>(
    agent: &'a Agent,
    phases: &'a [Phase],
) -> impl Iterator<Item = (Path, Vec<&'a Phase>, &'a Strategy)> {
    let path = Path::default().key("agents").key(agent.key.clone()).key("strategy");
    let parts = agent.strategy.iter().flat_map(Strategy::parts);
    parts.map(move |(name, part)| {
        let played = phases.iter().filter(|phase| name.is_none_or(|name| phase.name == name));
        (name.map_or_else(|| path.clone(), |name| path.key(name)), played.collect(), part)
    })
}

/// True of a mapping whose keys are names of phases.
fn is_by_phase(StrategyFields(fields): &StrategyFields) -> bool {
    !fields.is_empty() && fields.iter().all(|(_, field)| matches!(field, StrategyField::Of(_)))
}

/// The places in a phase where an agent must choose, as text, and the options.
fn offered(agents: &[Agent], phase: &Phase, agent: AgentId) -> Vec<(String, Vec<ChoiceOption>)> {
    let mut offered = Vec::new();
    let speaks = phase.speakers().contains(&agent);
    let place = |what: &str| format!("{what} `{}`", phase.name);
    let script = phase.script();
    let own = script.iter().filter(|turn| turn.agent == agent);
    let chooses = match phase.decision {
        Some(Decision::Coordinator(coordinator)) => coordinator == agent,
        None if !script.is_empty() => own.clone().any(|turn| turn.choice.is_none()),
        _ => speaks,
    };
    if let Some(choice) = phase.choice.as_ref().filter(|_| chooses) {
        offered.push((place("of the choice in"), choice.options.clone()));
    }
    for choice in own.filter_map(|turn| turn.choice.as_ref()) {
        offered.push((place("of its choice in"), choice.options.clone()));
    }
    let option = |value: serde_json::Value, text: &str| ChoiceOption { value, text: text.to_string() };
    match &phase.topology {
        Topology::Interrupt if speaks && phase.speakers().len() > 1 => {
            let options = vec![option(false.into(), "I wait"), option(true.into(), "I cut in")];
            offered.push((place("where it may cut in, in"), options));
        }
        Topology::Moderated { by, .. } if *by == agent => {
            let speakers = phase.speakers().into_iter().map(|id| &agents[id.0]);
            let options = speakers.map(|agent| option(agent.key.clone().into(), &agent.name)).collect();
            offered.push((place("where it gives the floor, in"), options));
        }
        _ => {}
    }
    offered
}
