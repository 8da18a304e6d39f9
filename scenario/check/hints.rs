//! Checks models and settings of replies, wherever they are.

use super::{Checker, is_identifier};
use crate::hints::{Hints, InvalidSetting, WrittenSampling};
use crate::schema::{RemoteModel, WrittenModel};
use crate::template::is_code;
use crate::{Api, EngineAddress, Keep, Phase, Scenario, Turn};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet};

impl Checker {
    /// The models that the scenario names.
    pub(super) fn models(
        &mut self,
        written: Option<IndexMap<String, Option<WrittenModel>>>,
        path: &Path,
    ) -> BTreeMap<String, String> {
        let mut models = BTreeMap::new();
        for (name, model) in written.unwrap_or_default() {
            let path = path.key(name.clone());
            if !is_identifier(&name) {
                let message = format!("`{name}` is not a valid model name: use letters, digits and `_`");
                let span = self.tree.key(&path);
                let help = format!("for example `{}`", super::phases::identifier_from(&name));
                self.push(Diagnostic::error("bad-name", path.to_string(), span, message).help(help));
            }
            let model = match model {
                None => String::new(),
                Some(WrittenModel::Text(file)) => self.file_or_address(file, &path),
                Some(WrittenModel::Long(remote)) => match self.remote(&remote, &path) {
                    Some(address) => address.to_string(),
                    None => continue,
                },
            };
            if model.trim().is_empty() && !self.is_broken(&path) {
                let help = format!("e.g. `{name}: models/small.gguf`, or `{name}: understudy`");
                self.missing(&path, "a model needs a file or a name that `greenroom pull` lists", &help);
            }
            models.insert(name, model.trim().to_string());
        }
        self.models = models.keys().cloned().collect();
        models
    }

    /// A model in a word, which may be an engine's address.
    fn file_or_address(&mut self, model: String, path: &Path) -> String {
        if EngineAddress::is_meant(&model)
            && let Err(error) = model.parse::<EngineAddress>()
        {
            let help = "e.g. `llamacpp+http://127.0.0.1:8080`, or `{ remote: URL, api: llamacpp }`";
            self.error("bad-value", path, format!("{error:#}")).help = Some(help.into());
        }
        model
    }

    /// The address of a remote engine, if it is one.
    fn remote(&mut self, written: &RemoteModel, path: &Path) -> Option<EngineAddress> {
        let example = "e.g. `{ remote: http://127.0.0.1:8080, api: greenroom }`";
        let (Some(url), Some(api)) = (&written.remote, &written.api) else {
            if !self.is_broken(path) {
                self.missing(path, "a remote engine needs `remote` (its URL) and `api`", example);
            }
            return None;
        };
        let Some(api) = Api::named(api) else {
            let help = self.suggest(api, Api::ALL.map(|(name, _)| name));
            let message = format!("there is no API `{api}`: expected one of {}", Api::names());
            self.error("bad-value", &path.key("api"), message).help = help;
            return None;
        };
        let mut address = match EngineAddress::new(api, url) {
            Ok(address) => address,
            Err(error) => {
                self.error("bad-value", &path.key("remote"), format!("{error:#}")).help =
                    Some(example.into());
                return None;
            }
        };
        let text = |value: &Option<String>| value.clone();
        let number = |value: Option<u64>| value.map(|n| n.to_string());
        let values = [
            text(&written.model),
            text(&written.key_env),
            text(&written.tokenizer),
            number(written.slots),
            number(written.requests_per_minute),
            number(written.tokens_per_minute),
            number(written.budget),
            number(written.timeout),
            number(written.context),
        ];
        for (name, value) in EngineAddress::SETTINGS.into_iter().zip(values) {
            if let Some(Err(error)) = value.map(|value| address.set(name, &value)) {
                self.error("bad-value", &path.key(name), format!("{error:#}")).help =
                    Some("leave the field out for the default".into());
                return None;
            }
        }
        Some(address)
    }

    /// Settings that are together at a path, without those that are not valid.
    pub(super) fn hints(
        &mut self,
        model: Option<String>,
        sampling: Option<WrittenSampling>,
        path: &Path,
    ) -> Hints {
        let mut hints = Hints::written(model, sampling);
        hints.model = hints.model.filter(|name| self.has_model(name, &path.key("model")));
        for InvalidSetting { name, value, expected } in hints.take_invalid() {
            let message = format!("`{name}` is {value}, expected {expected}");
            self.error("bad-value", &path.key("sampling").key(name), message).help =
                Some("leave the field out for the model's own value or the default".into());
        }
        hints
    }

    /// True if the scenario names this model.
    pub(super) fn has_model(&mut self, name: &str, path: &Path) -> bool {
        if self.models.iter().any(|known| known == name) {
            return true;
        }
        if is_file(name) {
            // Earlier versions took a file here.
            let message = format!("`{name}` is not a name under `models`; it is taken as a model file");
            let help = format!("name it: `models: {{ {}: {name} }}`, and write that name here", plain(name));
            let span = self.tree.value(path);
            self.push(Diagnostic::warning("unknown-model", path.to_string(), span, message).help(help));
            self.models.push(name.to_string());
            return true;
        }
        if !self.is_broken(&Path::default().key("models")) && !self.is_open(&["models"]) {
            let known = self.models.clone();
            let help = self.suggest(name, known.iter().map(String::as_str));
            let help = help.unwrap_or_else(|| format!("list it: `models: {{ {}: FILE.gguf }}`", plain(name)));
            self.error("unknown-model", path, format!("there is no model `{name}` under `models`")).help =
                Some(help);
        }
        false
    }

    /// Rejects a memory that several models would have to continue with; warns of what no model will heed.
    pub(super) fn one_model_each(&mut self, scenario: &Scenario) {
        let plan = scenario.plan();
        let mut first: BTreeMap<_, &Turn> = BTreeMap::new();
        let mut reported = BTreeSet::new();
        for (_, turn) in plan.order() {
            let agent = scenario.agent(turn.speaker);
            let before = first.entry(turn.timeline).or_insert(turn);
            if agent.strategy.is_some()
                || before.hints.model == turn.hints.model
                || !reported.insert(turn.timeline)
            {
                continue;
            }
            let of = |turn: &Turn| match &turn.hints.model {
                Some(name) => format!("`{name}`"),
                None => "the scenario's own model".to_string(),
            };
            let (was, now) = (of(before), of(turn));
            let message = format!("`{}` is played by {was}, but at {} by {now}", agent.key, turn.path);
            let help = match turn.timeline.phase {
                None if scenario.phase(turn.phase).is_judge => {
                    "leave out `agent` or the judge's `model`: a judge from outside may have any model"
                        .to_string()
                }
                None => format!(
                    "a model can't continue from another model's memory: give `{}` one model, or `lifecycle: \
                     ephemeral` and one in each phase",
                    agent.key
                ),
                Some(_) => "an agent keeps its memory within a phase: give it one model there".to_string(),
            };
            let path = self.place(scenario, turn).or_else(|| self.place(scenario, before));
            let path = path.unwrap_or_else(|| Path::default().key("agents").key(&agent.key));
            self.error("two-models", &path, message).help = Some(help);
        }
        self.unheeded(scenario);
        let played = plan.order().filter_map(|(_, turn)| turn.hints.model.as_ref());
        let used: BTreeSet<&String> =
            played.chain(&scenario.hints.model).chain(&scenario.embeddings).collect();
        self.looks_up(scenario);
        for name in scenario.models.keys().filter(|name| !used.contains(name)) {
            let path = Path::default().key("models").key(name);
            let message = format!("no agent is played by the model `{name}`");
            self.unused(
                &path,
                &message,
                &format!("write `model: {name}` where it should be used, or remove it"),
            );
        }
    }

    /// Warns of a model for embeddings where nothing is looked up.
    fn looks_up(&mut self, scenario: &Scenario) {
        let retrieves = scenario.agents.iter().any(|agent| agent.memory.keep == Keep::Retrieve);
        let routes = scenario.phases.iter().any(|phase| phase.route.is_some());
        if scenario.embeddings.is_some() && !retrieves && !routes {
            let message = "`embeddings` has no effect here: nothing is looked up";
            let help = "remove it, or write `keep: retrieve` or a `route`";
            self.unused(&Path::default().key("embeddings"), message, help);
        }
    }

    /// Warns of settings of agents that no model plays.
    fn unheeded(&mut self, scenario: &Scenario) {
        let message =
            |key: &str| format!("`{key}` is played by a strategy, so a model setting has no effect");
        let help = "remove it, or the agent's `strategy`";
        for agent in scenario.agents.iter().filter(|agent| agent.strategy.is_some()) {
            let path = Path::default().key("agents").key(&agent.key);
            if let Some(path) = self.set_at(&path, &agent.hints) {
                self.unused(&path, &message(&agent.key), help);
            }
        }
        for (at, phase) in scenario.phases.iter().enumerate() {
            for (n, turn) in phase.script().iter().enumerate() {
                let agent = scenario.agent(turn.agent);
                let path = Path::default().key("phases").index(at).key("turns").index(n);
                let path = self.set_at(&path, &turn.hints).filter(|_| agent.strategy.is_some());
                path.into_iter().for_each(|path| self.unused(&path, &message(&agent.key), help));
            }
        }
    }

    /// The first field below a path that gives a setting.
    fn set_at(&self, path: &Path, hints: &Hints) -> Option<Path> {
        let fields = ["model", "sampling"].map(|name| path.key(name));
        fields.into_iter().find(|field| !hints.is_empty() && self.tree.find(field).is_some())
    }

    /// The field that gives a turn a model other than its agent's.
    fn place(&self, scenario: &Scenario, turn: &Turn) -> Option<Path> {
        let phase: &Phase = scenario.phase(turn.phase);
        let here = &phase.path;
        let of_turn = phase.script().iter().position(|script| {
            script.agent == turn.speaker
                && script.hints.model.is_some()
                && script.hints.model == turn.hints.model
        });
        let of_turn = of_turn.map(|at| here.key("turns").index(at).key("model"));
        of_turn.or_else(|| phase.hints.model.as_ref().map(|_| here.key("model")))
    }
}

/// True of what names a model's file instead of a model.
fn is_file(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf") && !is_code(name)
}

/// A name as `models` may have it.
fn plain(name: &str) -> String {
    if is_identifier(name) { name.to_string() } else { super::phases::identifier_from(name) }
}
