//! Checks choices: their options, how a phase decides over them, and who makes them instead of the model.

use super::Checker;
use crate::choice::{Choice, ChoiceMethod, ChoiceOption, Decision, text_of};
use crate::schema::{
    Key, LongAnswer, Normalize, Options, Scalar, Texts, VoteRule, WrittenAnswer, WrittenCast,
    WrittenExpression, WrittenVote,
};
use crate::template::{self, Template};
use crate::{Agent, AgentId, Form, PhaseId, ToolId, Voters};
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

/// What a reply may be.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) choice: Option<Arc<Choice>>,
    pub(super) form: Option<Arc<Form>>,
    /// The tool that is called before it.
    pub(super) call: Option<Arc<str>>,
}

/// How a phase decides, and between what.
#[derive(Default)]
pub(super) struct Vote {
    pub(super) choice: Option<Arc<Choice>>,
    pub(super) decision: Option<Decision>,
    pub(super) voters: Option<Voters>,
    pub(super) is_secret: bool,
}

const EXAMPLE: &str = "e.g. `answer: [talk, silent]`";

impl Checker {
    /// The form that `answer` gives to replies; of a choice, `ask` is the question.
    pub(super) fn answer(
        &mut self,
        written: Option<WrittenAnswer>,
        ask: Option<Arc<Template>>,
        path: &Path,
        phase: PhaseId,
    ) -> Answer {
        let path = path.key("answer");
        let (mut long, at) = match written {
            None => return Answer::default(),
            Some(WrittenAnswer::List(options)) => {
                (LongAnswer { one_of: Some(Options::List(options)), ..LongAnswer::default() }, path.clone())
            }
            Some(WrittenAnswer::Text(text)) => {
                (LongAnswer { one_of: Some(Options::Text(text)), ..LongAnswer::default() }, path.clone())
            }
            Some(WrittenAnswer::Long(long)) => {
                let at = path.key(if long.some_of.is_some() { "some_of" } else { "one_of" });
                (*long, at)
            }
        };
        let kinds = [
            ("one_of", long.one_of.is_some()),
            ("some_of", long.some_of.is_some()),
            ("schema", long.schema.is_some()),
            ("regex", long.regex.is_some()),
            ("lark", long.lark.is_some()),
        ];
        let given: Vec<&str> =
            kinds.iter().filter(|(_, is_given)| *is_given).map(|(kind, _)| *kind).collect();
        if let [first, second, ..] = given[..] {
            let message = format!("`{first}` and `{second}` exclude each other: a reply has one form");
            self.error("contradiction", &path.key(second), message).help = Some("remove one of them".into());
            return Answer::default();
        }
        let call = long.call.take().map(Arc::from);
        if given.is_empty() && call.is_some() {
            return Answer { call, ..Answer::default() };
        }
        if given.is_empty() {
            if !kinds.iter().any(|(kind, _)| self.is_broken(&path.key(*kind))) {
                let message = "an `answer` needs `one_of`, `some_of`, `schema`, `regex`, `lark` or `call`";
                let help = "e.g. `answer: { one_of: { talk: I talk, silent: I stay silent } }`";
                self.missing(&path, message, help);
            }
            return Answer::default();
        }
        let of_choices = [
            ("open", long.open.is_some()),
            ("shuffle", long.shuffle.is_some()),
            ("normalize", long.normalize.is_some()),
            ("free_text", long.free_text.is_some()),
        ];
        let is_choice = given == ["one_of"] || given == ["some_of"];
        let idle = of_choices.into_iter().map(|(field, is_given)| (field, is_given && !is_choice, "one_of"));
        for (field, _, of) in idle
            .chain([
                ("show", long.show.is_some() && given != ["schema"], "schema"),
                ("size", long.size.is_some() && given != ["some_of"], "some_of"),
            ])
            .filter(|(_, is_idle, _)| *is_idle)
        {
            let message = format!("`{field}` has no effect here: it belongs to `{of}`");
            self.unused(&path.key(field), &message, "remove it");
        }
        if is_choice {
            return Answer { choice: self.choice(long, ask, (path, at), phase), form: None, call };
        }
        Answer { choice: None, form: self.form(long, &path), call }
    }

    /// Rejects calls and sets in the answer of a ballot or a verdict.
    pub(super) fn is_one_reply(&mut self, answer: &Answer, what: &str, path: &Path) {
        let is_set = answer.choice.as_ref().is_some_and(|choice| choice.n_picks > 1);
        let given = [("call", answer.call.is_some()), ("some_of", is_set)];
        for (field, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            let message = format!("{what} can't have `{field}`: it is one reply");
            self.error("contradiction", &path.key("answer").key(field), message).help =
                Some("put it into the `answer` of a phase or a turn".into());
        }
    }

    /// The number of options that are picked.
    fn size(&mut self, size: Option<u64>, n_options: usize, path: &Path) -> usize {
        let Some(size) = size else {
            if !self.is_broken(&path.key("size")) {
                let message = "`some_of` needs `size`: how many options are picked";
                self.missing(&path.key("size"), message, "e.g. `answer: { some_of: players, size: 2 }`");
            }
            return 1;
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size < 2 || size > n_options {
            let message = format!("`size` is {size}, but there are {n_options} options");
            self.error("bad-value", &path.key("size"), message).help =
                Some("to have one option chosen, use `one_of`".into());
            return 1;
        }
        size
    }

    /// Rejects a call of a tool that there is not, or that a speaker does not have.
    pub(super) fn can_call(&mut self, call: &str, speakers: &[AgentId], path: &Path) {
        let path = path.key("answer").key("call");
        let Some(id) = self.tools.iter().position(|tool| tool.is_called(call)).map(ToolId) else {
            let known: Vec<String> = self.tools.iter().map(|tool| tool.key.clone()).collect();
            let help = self.suggest(call, known.iter().map(String::as_str));
            self.error("unknown-tool", &path, format!("there is no tool `{call}`")).help =
                Some(help.unwrap_or_else(|| "declare it under `tools:`".into()));
            return;
        };
        let agent = |agent: &AgentId| &self.names.agents[agent.0];
        let lacks = |of: &Agent| of.strategy.is_none() && !of.tools.contains(&id);
        if let Some(without) = speakers.iter().map(agent).find(|agent| lacks(agent)) {
            let (key, tool) = (without.key.clone(), self.tools[id.0].key.clone());
            let message = format!("`{key}` has to call `{call}` here, but may not");
            self.error("contradiction", &path, message).help =
                Some(format!("add `{tool}` to the `tools` of `{key}`"));
        }
    }

    /// A choice: its settings are at the first path, its options at the second.
    fn choice(
        &mut self,
        long: LongAnswer,
        ask: Option<Arc<Template>>,
        (path, at): (Path, Path),
        phase: PhaseId,
    ) -> Option<Arc<Choice>> {
        let LongAnswer { one_of, some_of, size, open, shuffle, normalize, free_text, .. } = long;
        let (options, is_set) = (one_of.or(some_of.clone()), some_of.is_some());
        if is_set && free_text == Some(true) {
            let message = "options are picked one by one, so `free_text` can't be used with `some_of`";
            self.error("contradiction", &path.key("free_text"), message).help = Some("remove it".into());
        }
        let method = if free_text == Some(true) { ChoiceMethod::Parse } else { ChoiceMethod::Decode };
        let end = PhaseId(phase.0 + 1);
        let open = open.and_then(|open| self.expression(open, path.key("open"), end, OPEN_NAMES));
        let is_of_agents = matches!(options, Some(Options::Text(_)));
        let (options, open) = match options? {
            Options::Text(text) => {
                if open.is_some() {
                    let field = if is_set { "some_of" } else { "one_of" };
                    let message = format!(
                        "`{field}` is an expression that selects the open agents, so `open` can't be used with it"
                    );
                    self.error("contradiction", &path.key("open"), message).help =
                        Some("keep one of the two".into());
                }
                let n_before = self.found.len();
                let open = self.expression(WrittenExpression::Text(text), at.clone(), end, OPEN_NAMES);
                for found in self.found.iter_mut().skip(n_before) {
                    let list = "write your own options as a list, e.g. `answer: [talk, silent]`";
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
            self.unused(&path.key("normalize"), message, "remove it, or remove `free_text`");
        }
        match method {
            ChoiceMethod::Decode if normalize.is_none() && !is_of_agents => self.like_lengths(&options, &at),
            ChoiceMethod::Parse => self.distinct(&options, &at, is_of_agents),
            _ => {}
        }
        let n_picks = if is_set { self.size(size, options.len(), &path) } else { 1 };
        let shuffle = shuffle.unwrap_or(false);
        Some(Arc::new(Choice { path, options, method, shuffle, by_length, ask, open, n_picks }))
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
        let help = "write texts of similar length, or set `normalize` in the long form: `answer: \
                    { one_of: …, normalize: length }`";
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
        let remedy = "or remove `free_text`";
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
                    let help = "write options with texts as a mapping: `answer: \
                                { one_of: { talk: I talk, silent: I stay silent } }`";
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
            self.error("bad-value", path, message).help = Some(EXAMPLE.into());
        }
        (sound && options.len() > 1).then_some(options)
    }

    /// How a phase votes.
    pub(super) fn vote(
        &mut self,
        written: WrittenVote,
        cast: &[AgentId],
        path: &Path,
        phase: PhaseId,
    ) -> Option<Vote> {
        let WrittenVote { rule, answer, ask, by, attempts, secret } = written;
        let is_there = answer.is_some();
        let ask = self.round_text(ask, path.key("ask"), phase).map(Arc::new);
        let answer = self.answer(answer, ask, path, phase);
        self.is_one_reply(&answer, "a vote", path);
        let Answer { choice, form, .. } = answer;
        let at = path.key("answer");
        if !is_there {
            self.missing(
                &at,
                "a vote needs `answer`: the options to decide between",
                "e.g. `answer: [stay, leave]`",
            );
        }
        if form.is_some() {
            let message = "a vote is between options, so its `answer` must be a list or `one_of`";
            self.error("contradiction", &at, message).help = Some("e.g. `answer: [stay, leave]`".into());
        }
        let Some(rule) = rule else {
            let message = "a vote needs `rule`: `majority`, `ranked`, `consensus` or `leader`";
            self.missing(&path.key("rule"), message, "e.g. `rule: majority`");
            return None;
        };
        if attempts.is_some() && rule != VoteRule::Consensus {
            let message = "`attempts` has no effect here: it limits the votes of a `consensus`";
            self.unused(&path.key("attempts"), message, "remove it, or write `rule: consensus`");
        }
        let is_parsed = choice.as_ref().is_some_and(|choice| choice.method == ChoiceMethod::Parse);
        if is_parsed && rule == VoteRule::Ranked {
            let message = "a ranking is decoded, so it can't be in `free_text`";
            self.error("contradiction", &at.key("free_text"), message).help =
                Some("remove `free_text`".into());
        }
        let (decision, voters) = match rule {
            VoteRule::Majority => (Decision::MajorityVote, self.voters(by, cast, path, phase)),
            VoteRule::Ranked => (Decision::RankedChoice, self.voters(by, cast, path, phase)),
            VoteRule::Consensus => {
                let attempts = self.count(attempts, &path.key("attempts")).unwrap_or(3);
                if attempts > MAX_ATTEMPTS {
                    let message = format!("a consensus can take at most {MAX_ATTEMPTS} votes");
                    self.error("bad-value", &path.key("attempts"), message).help =
                        Some("without `attempts` there are three votes".into());
                }
                let decision = Decision::Consensus { attempts: attempts.min(MAX_ATTEMPTS) };
                (decision, self.voters(by, cast, path, phase))
            }
            VoteRule::Leader => (Decision::Coordinator(self.leader(by, cast, path)?), None),
        };
        let is_secret = secret.unwrap_or(false);
        choice.map(|choice| Vote { choice: Some(choice), decision: Some(decision), voters, is_secret })
    }

    /// The one who decides for all.
    fn leader(&mut self, by: Option<WrittenCast>, cast: &[AgentId], path: &Path) -> Option<AgentId> {
        let path = path.key("by");
        let example = "e.g. `by: ann`";
        let key = match by {
            Some(WrittenCast::Text(key)) => key,
            Some(WrittenCast::List(keys)) => {
                match keys.into_iter().flatten().collect::<Vec<_>>().as_slice() {
                    [Key(key)] => key.clone(),
                    keys => {
                        let message = format!("a leader is one agent, found {}", keys.len());
                        self.error("bad-value", &path, message).help = Some(example.into());
                        return None;
                    }
                }
            }
            None => {
                self.missing(&path, "the rule `leader` needs `by`: who decides for all", example);
                return None;
            }
        };
        let id = self.agent_id(key.trim(), &path)?;
        self.present_here(id, key.trim(), cast, &path);
        Some(id)
    }
}
