//! Checks choices: their options, how a phase decides over them, and who makes them instead of the model.

use super::Checker;
use crate::choice::{Choice, ChoiceMethod, ChoiceOption, Decision, text_of};
use crate::schema::{
    DecisionMode, Key, LongChoice, Normalize, Options, Scalar, Texts, WrittenChoice, WrittenExpression,
    WrittenPhase,
};
use crate::template;
use crate::{Agent, AgentId, PhaseId};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, Severity};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of options of a choice; each is scored.
const MAX_OPTIONS: usize = 100;
/// Names of who chooses and when, if the open options depend on that.
const OPEN_NAMES: &[&str] = &["me", "round", "rounds"];
/// Maximum number of votes that a consensus may take.
const MAX_ATTEMPTS: usize = 100;
/// Options are of very unequal length if the longest has at least this many characters, and is this many
/// times as long as the shortest.
const MIN_UNEQUAL_LENGTH: usize = 24;
const MIN_UNEQUAL_RATIO: usize = 4;

impl Checker {
    /// The choice that `choice` or `parse_choice` describes.
    pub(super) fn choice(
        &mut self,
        decode: Option<WrittenChoice>,
        parse: Option<WrittenChoice>,
        path: &Path,
        phase: PhaseId,
    ) -> Option<Arc<Choice>> {
        if decode.is_some() && parse.is_some() {
            let message = "`choice` and `parse_choice` exclude each other: a reply is decoded or parsed";
            self.error("contradiction", &path.key("parse_choice"), message).help =
                Some("keep `choice`, unless the agent should answer in its own words".into());
            return None;
        }
        let (given, method, field) = match (decode, parse) {
            (Some(given), _) => (given, ChoiceMethod::Decode, "choice"),
            (_, Some(given)) => (given, ChoiceMethod::Parse, "parse_choice"),
            _ => return None,
        };
        let path = path.key(field);
        let (options, at, LongChoice { shuffle, normalize, ask, open, .. }) = match given {
            WrittenChoice::List(options) => {
                (Some(Options::List(options)), path.clone(), LongChoice::default())
            }
            WrittenChoice::Texts(options) => {
                (Some(Options::Texts(options)), path.clone(), LongChoice::default())
            }
            WrittenChoice::Text(text) => (Some(Options::Text(text)), path.clone(), LongChoice::default()),
            WrittenChoice::Long(LongChoice { options, shuffle, normalize, ask, open }) => {
                (options, path.key("options"), LongChoice { options: None, shuffle, normalize, ask, open })
            }
        };
        let end = PhaseId(phase.0 + 1);
        let open = open.and_then(|open| self.expression(open, path.key("open"), end, OPEN_NAMES));
        let ask = self.round_text(ask, path.key("ask"), phase).map(Arc::new);
        if options.is_none() && !self.is_broken(&at) {
            let message =
                "a choice must be a list of options, or a mapping from results to the texts that are said";
            self.error("type", &at, message).help = Some("e.g. `choice: [talk, silent]`".into());
        }
        let is_of_agents = matches!(options, Some(Options::Text(_)));
        let (options, open) = match options? {
            Options::Text(text) => {
                if open.is_some() {
                    let message = "`options` is an expression that selects the open agents, so `open` can't \
                                   be used with it";
                    self.error("contradiction", &path.key("open"), message).help =
                        Some("keep one of the two".into());
                }
                let n_before = self.found.len();
                let open = self.expression(WrittenExpression::Text(text), at.clone(), end, OPEN_NAMES);
                for found in self.found.iter_mut().skip(n_before) {
                    let list = "write your own options as a list, e.g. `choice: [talk, silent]`";
                    found.help = Some(format!("{list}; a text is read as an expression that returns agents"));
                }
                let open = open?;
                let agents = self.names.agents.iter();
                let option = |agent: &Agent| ChoiceOption {
                    value: agent.key.clone().into(),
                    text: agent.name.clone(),
                };
                (agents.map(option).collect(), Some(open))
            }
            options => (self.options(options, &at)?, open),
        };
        let by_length = normalize == Some(Normalize::Length);
        if by_length && method == ChoiceMethod::Parse {
            let message =
                "`normalize` has no effect here: the reply is searched for words, and no options are weighed";
            self.unused(
                &path.key("normalize"),
                message,
                "remove it, or write `choice` instead of `parse_choice`",
            );
        }
        match method {
            ChoiceMethod::Decode if normalize.is_none() && !is_of_agents => self.like_lengths(&options, &at),
            ChoiceMethod::Parse => self.distinct(&options, &at, is_of_agents),
            _ => {}
        }
        let shuffle = shuffle.unwrap_or(false);
        Some(Arc::new(Choice { path, options, method, shuffle, by_length, ask, open }))
    }

    /// Warns of options of very unequal length: each token makes a text less likely, whatever it says.
    fn like_lengths(&mut self, options: &[ChoiceOption], path: &Path) {
        let length = |option: &&ChoiceOption| option.text.chars().count();
        let (Some(short), Some(long)) =
            (options.iter().min_by_key(length), options.iter().max_by_key(length))
        else {
            return;
        };
        let (few, many) = (length(&short), length(&long));
        if many < MIN_UNEQUAL_LENGTH || many < MIN_UNEQUAL_RATIO * few {
            return;
        }
        let message = format!(
            "the options differ greatly in length: `{}` has {few} characters, `{}` has {many}; a longer text \
             is less likely, whatever its meaning",
            short.text, long.text
        );
        let span = self.tree.value(path);
        let help = "write texts of similar length, or set `normalize` in the long form: `choice: \
                    { options: …, normalize: length }`";
        self.push(Diagnostic::warning("unequal-options", path.to_string(), span, message).help(help));
    }

    /// Rejects options whose texts choose nothing: those without words, and those with the words of another.
    /// There are warnings of agents, not all of whom need be open, and in recordings by the first rules,
    /// which had no such check.
    fn distinct(&mut self, options: &[ChoiceOption], path: &Path, is_of_agents: bool) {
        let language = self.language.clone();
        let words =
            |name: &str| language.words(name).all.into_iter().map(|word| word.text).collect::<Vec<_>>();
        // The first option with these words.
        let mut first: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let is_list = self.tree.find(&path.index(0)).is_some();
        let remedy = "or write `choice` instead of `parse_choice`";
        for (n, option) in options.iter().enumerate() {
            let names = [words(&option.text), words(&text_of(&option.value))];
            let shared = names.iter().find_map(|name| Some((*first.get(name)?, name.clone())));
            let has_words = !names[0].is_empty();
            for name in names.into_iter().filter(|name| !name.is_empty()) {
                first.entry(name).or_insert(n);
            }
            let (code, message, help) = if !has_words {
                let message = format!(
                    "`{}` has no letters or digits, so a reply that names it is invalid",
                    option.text
                );
                ("bad-value", message, format!("name it in words, {remedy}"))
            } else if let Some((other, shared)) = shared {
                let message = format!(
                    "`{}` names two options, `{}` and `{}`, so a reply with it is invalid",
                    shared.join(" "),
                    options[other].text,
                    option.text
                );
                let counts = "only letters, digits, minus signs and decimal points count";
                ("duplicate-name", message, format!("{counts}: name one in other words, {remedy}"))
            } else {
                continue;
            };
            let here = match (is_of_agents, is_list) {
                (true, _) => path.clone(),
                (_, true) => path.index(n),
                _ => path.key(text_of(&option.value)),
            };
            let is_warning = is_of_agents || self.by_first_rules;
            let severity = if is_warning { Severity::Warning } else { Severity::Error };
            let found = self.error(code, &here, message);
            (found.severity, found.help) = (severity, Some(help));
        }
    }

    fn options(&mut self, given: Options, path: &Path) -> Option<Vec<ChoiceOption>> {
        let mut options = Vec::new();
        let is_list = matches!(given, Options::List(_));
        let written: Vec<(Option<Scalar>, Option<Scalar>, Path)> = match given {
            Options::List(items) => {
                items.into_iter().enumerate().map(|(at, item)| (item.clone(), item, path.index(at))).collect()
            }
            Options::Texts(Texts(texts)) => {
                let path = |key: &Scalar| path.key(text_of(&key.clone().into()));
                texts.into_iter().map(|(key, text)| (Some(key.clone()), text, path(&key))).collect()
            }
            Options::Text(_) => Vec::new(),
        };
        if written.len() > MAX_OPTIONS {
            let message = format!("a choice has at most {MAX_OPTIONS} options; found {}", written.len());
            self.error("too-many", path, message).help = Some("each option is weighed at every turn".into());
            return None;
        }
        let mut sound = true;
        for (value, text, path) in written {
            let (Some(value), Some(text)) = (value, text) else {
                if !self.is_broken(&path) {
                    let help = "write options with texts as a mapping: `choice: \
                                { talk: I talk, silent: I stay silent }`";
                    self.error("type", &path, "an option must be a text, a number, true or false").help =
                        Some(help.into());
                }
                return None;
            };
            let is_template = matches!(&value, Scalar::Text(value) if template::is_code(value));
            if is_template && !is_list {
                let message = "the result of an option can't be a template";
                let span = self.tree.key(&path);
                let found = Diagnostic::error("template", path.to_string(), span, message);
                self.push(found.help("name the result in a word, and put the template into its text"));
                sound = false;
                continue;
            }
            let text = self.known_scalar(text, &path);
            let text = text_of(&text).trim().to_string();
            let value = if is_template { text.clone().into() } else { Value::from(value) };
            if text.is_empty() || text.chars().any(char::is_control) || text.chars().count() > 200 {
                self.error("bad-value", &path, "an option must be one line of 1 to 200 characters").help =
                    Some("name the option in a few words; put the question into `ask`".into());
                sound = false;
                continue;
            }
            let same = |other: &ChoiceOption| other.text == text || text_of(&other.value) == text_of(&value);
            if options.iter().any(same) {
                let message = format!("the option `{text}` appears twice in this choice");
                self.error("duplicate-name", &path, message).help =
                    Some("options must differ in both result and text; remove or rename one".into());
                sound = false;
                continue;
            }
            options.push(ChoiceOption { value, text });
        }
        if sound && options.len() < 2 {
            let message =
                format!("a choice needs at least two options; found {}", ["none", "one"][options.len()]);
            self.error("bad-value", path, message).help = Some("e.g. `choice: [talk, silent]`".into());
        }
        (sound && options.len() > 1).then_some(options)
    }

    /// How a phase decides; the agent it needs is named or has the role.
    pub(super) fn decision(
        &mut self,
        written: &WrittenPhase,
        cast: &[AgentId],
        choice: Option<&Choice>,
        path: &Path,
    ) -> Option<Decision> {
        let here = path.key("decision_mode");
        let mode = written.decision_mode.filter(|mode| *mode != DecisionMode::None);
        let known = !self.is_broken(&here);
        if known && written.attempts.is_some() && mode != Some(DecisionMode::Consensus) {
            let message = "`attempts` has no effect here: it limits the votes of a `consensus`";
            self.unused(&path.key("attempts"), message, "remove it, or write `decision_mode: consensus`");
        }
        if known && written.coordinator.is_some() && mode != Some(DecisionMode::CoordinatorDecides) {
            let message = "`coordinator` has no effect here: it names the agent that decides alone";
            let help = "remove it, or write `decision_mode: coordinator_decides`";
            self.unused(&path.key("coordinator"), message, help);
        }
        let mode = mode?;
        match choice {
            None if written.choice.is_none() && written.parse_choice.is_none() => {
                let message = format!("`{}` needs `choice`: the options to decide between", mode.word());
                if !self.is_broken(&path.key("choice")) && !self.is_broken(&path.key("parse_choice")) {
                    self.missing(&here, &message, "e.g. `choice: [stay, leave]`");
                }
            }
            Some(Choice { method: ChoiceMethod::Parse, .. }) if mode == DecisionMode::RankedChoice => {
                let message = "`ranked_choice` needs `choice`: a ranking is decoded, not parsed";
                self.error("contradiction", &path.key("parse_choice"), message).help =
                    Some("write `choice` instead of `parse_choice`".into());
            }
            _ => {}
        }
        Some(match mode {
            DecisionMode::None => return None,
            DecisionMode::MajorityVote => Decision::MajorityVote,
            DecisionMode::RankedChoice => Decision::RankedChoice,
            DecisionMode::Consensus => {
                let attempts = self.count(written.attempts, &path.key("attempts")).unwrap_or(3);
                if attempts > MAX_ATTEMPTS {
                    let message = format!("a consensus can take at most {MAX_ATTEMPTS} votes");
                    self.error("bad-value", &path.key("attempts"), message).help =
                        Some("without `attempts` there are three votes".into());
                }
                Decision::Consensus { attempts: attempts.min(MAX_ATTEMPTS) }
            }
            DecisionMode::CoordinatorDecides => Decision::Coordinator(self.with_role(
                written.coordinator.as_ref(),
                "coordinator",
                cast,
                (path, &here),
            )?),
        })
    }

    /// The agent that a phase names for a part, or the one of those present whose role it is.
    pub(super) fn with_role(
        &mut self,
        given: Option<&Key>,
        role: &'static str,
        cast: &[AgentId],
        (path, here): (&Path, &Path),
    ) -> Option<AgentId> {
        if let Some(Key(key)) = given {
            let path = path.key(role);
            let id = self.agent_id(key, &path)?;
            self.present_here(id, key, cast, &path);
            return Some(id);
        }
        let is = |id: &&AgentId| self.names.agents[id.0].role.eq_ignore_ascii_case(role);
        let having: Vec<AgentId> = cast.iter().filter(is).copied().collect();
        if let [one] = having.as_slice() {
            return Some(*one);
        }
        let n_having = if having.is_empty() { "none".to_string() } else { having.len().to_string() };
        let message = format!("{n_having} of the agents present have the role `{role}`; exactly one must");
        if !self.is_broken(&path.key("agents")) {
            let help = format!("name one with `{role}: KEY`, or give one agent `role: {role}`");
            if !self.is_broken(&path.key(role)) {
                self.missing(here, &message, &help);
            }
        }
        None
    }
}
