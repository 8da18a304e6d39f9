//! The models that `check` counts with: those of the scenario, if they are available.

use crate::backend::{source, tokenizer};
use crate::commands::casting;
use crate::run::MAX_TOKENS;
use crate::scenario::{AgentId, EngineAddress, Scenario, TimelineId};
use greenroom_engine::PromptEncoder;
use std::collections::{BTreeMap, BTreeSet};

/// Tokenizers by the models' resolved names; `None`: a remote engine that only itself can count with.
pub(super) type Opened = BTreeMap<String, Option<PromptEncoder>>;

/// The tokenizers of a scenario's agents.
pub(super) struct AgentTokenizers<'a> {
    opened: &'a Opened,
    /// The tokenizer of agents without their own model.
    own: String,
    /// Each memory's model, by its name in the scenario and its resolved name.
    by_timeline: BTreeMap<TimelineId, (Option<String>, String)>,
}

impl<'a> AgentTokenizers<'a> {
    /// Opens what is not open yet. If a model that the scenario names is missing, this is reported, and the
    /// scenario's own is used for counting. The tokens of a remote engine that takes messages are not
    /// counted; this is reported, too.
    ///
    /// # Errors
    /// The scenario's own model can't be found or opened, or one that the command line gives.
    pub(super) fn new(
        scenario: &Scenario,
        given: &[casting::ModelArg],
        opened: &'a mut Opened,
    ) -> anyhow::Result<Self> {
        let given = casting::by_name(given)?;
        let plan = scenario.plan();
        let mut names: BTreeMap<TimelineId, Option<String>> = BTreeMap::new();
        plan.order().for_each(|(_, turn)| drop(names.insert(turn.timeline, turn.hints.model.clone())));
        let own = given.get("").cloned().or_else(|| scenario.own_model());
        let own = own.unwrap_or_else(|| "understudy".to_string());
        open(opened, &own)?;
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for name in names.values().flatten().collect::<BTreeSet<_>>() {
            let model = given.get(name).cloned().or_else(|| scenario.model(name)).unwrap_or_default();
            let model = match open(opened, &model) {
                Ok(()) => model,
                Err(error) if given.contains_key(name) => return Err(error),
                Err(error) => {
                    println!("note: the tokens of the model `{name}` are counted with {own}: {error:#}");
                    own.clone()
                }
            };
            found.insert(name.clone(), model);
        }
        let model = |name: &Option<String>| name.as_ref().and_then(|name| found.get(name)).unwrap_or(&own);
        let by_timeline = names.iter().map(|(id, name)| (*id, (name.clone(), model(name).clone()))).collect();
        let counting = Self { opened, own: own.clone(), by_timeline };
        for model in counting.models().into_iter().filter(|model| counting.prompter(model).is_none()) {
            println!(
                "note: the tokens of {model} can't be counted here, since only the engine has its tokenizer"
            );
        }
        Ok(counting)
    }

    /// The models, each once.
    pub(super) fn models(&self) -> BTreeSet<&str> {
        self.by_timeline.values().map(|(_, model)| model.as_str()).collect()
    }

    /// The model of agents without their own.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// The model of a memory.
    pub(super) fn of(&self, timeline: TimelineId) -> &str {
        self.by_timeline.get(&timeline).map_or(&self.own, |(_, model)| model)
    }

    /// A model's tokenizer; `None`: only the engine has it.
    pub(super) fn prompter(&self, model: &str) -> Option<&PromptEncoder> {
        self.opened[model].as_ref()
    }

    /// Tokens that a model's context holds, as far as this is known without asking a remote engine.
    pub(super) fn context(&self, model: &str) -> Option<usize> {
        let given = || model.parse::<EngineAddress>().ok()?.context;
        self.prompter(model).map_or_else(given, |prompter| Some(prompter.model().context_length))
    }

    /// Names of an agent's models; `-`: it has no model of its own.
    pub(super) fn names(&self, agent: AgentId) -> String {
        let own = self.by_timeline.iter().filter(|(timeline, _)| timeline.agent == agent);
        let names: BTreeSet<&str> = own.filter_map(|(_, (name, _))| name.as_deref()).collect();
        if names.is_empty() { "-".to_string() } else { names.into_iter().collect::<Vec<_>>().join(", ") }
    }
}

fn open(opened: &mut Opened, model: &str) -> anyhow::Result<()> {
    if !opened.contains_key(model) {
        let prompter = tokenizer(model)?.map(|file| PromptEncoder::open(&source(&file))).transpose()?;
        opened.insert(model.to_string(), prompter);
    }
    Ok(())
}

/// Maximum number of tokens in any reply: as given, or otherwise the most that the scenario allows for a
/// turn.
pub(super) fn longest(scenario: &Scenario, given: Option<u32>) -> usize {
    let all = scenario.hints.max_tokens.unwrap_or(MAX_TOKENS as usize);
    let plan = scenario.plan();
    let of_turns = plan.order().map(|(_, turn)| turn.hints.max_tokens.unwrap_or(all)).max();
    given.map_or(of_turns.unwrap_or(all), |n| n as usize)
}
