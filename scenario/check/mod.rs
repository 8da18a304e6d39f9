//! From the file as written to a scenario that can be trusted: every reference resolved, every template
//! tried, and all mistakes reported at once, each with its place and a remedy.

mod braces;
mod cascade;
mod cases;
mod cast;
mod choices;
mod expressions;
mod fields;
mod forms;
mod hints;
mod include;
mod items;
mod judges;
mod language;
mod memory;
mod parts;
mod payoff;
mod personas;
mod phases;
mod present;
mod routes;
mod schemas;
mod scripts;
mod spans;
mod state;
mod steps;
mod strategies;
mod texts;
mod tool_servers;
mod tools;
mod topology;
mod types;
mod unroll;

pub use spans::{name_of, name_span, template_error};
pub use steps::Steps;

use super::Case;
use super::language::Language;
use super::older;
use super::papers;
use super::read;
use super::schema::{PhaseNames, Written, WrittenPart};
use super::template::FIRST_RULES;
use super::{Agent, Content, Phase, PhaseId, Scenario};
use crate::files::{self, FileKind, Root};
use anyhow::{Context as _, ensure};
use greenroom_yaml::diagnostic::{
    Diagnostic, Report, Severity, Source, Sources, Span, Suggestion, suggest, suggestion,
};
use greenroom_yaml::{Path, PathStep, Tree, parse};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values from the command line that replace a scenario's variables.
pub type Overrides = Vec<(String, Value)>;

/// A file as loaded: a scenario if it can be played, and all diagnostics.
#[derive(Debug)]
pub struct Loaded {
    /// The scenario, if there is no error.
    pub scenario: Option<Arc<Scenario>>,
    /// Errors and warnings.
    pub report: Report,
}

impl Loaded {
    /// Adds mistakes that were found later; a scenario with an error can't be played.
    pub fn with(self, found: Vec<Diagnostic>) -> Self {
        let Self { scenario, report: Report { sources, mut diagnostics } } = self;
        diagnostics.extend(found);
        Self::new(scenario, sources, diagnostics)
    }

    fn new(scenario: Option<Arc<Scenario>>, sources: Sources, mut diagnostics: Vec<Diagnostic>) -> Self {
        if diagnostics.len() > MAX_REPORTED {
            let rest = diagnostics.split_off(MAX_REPORTED);
            let worst = rest.iter().map(|found| found.severity).min().unwrap_or(Severity::Warning);
            let message = format!("{} more errors not shown", rest.len());
            let found = Diagnostic::error("too-many", "", rest[0].span, message).help("fix the others first");
            diagnostics.push(Diagnostic { severity: worst, ..found });
        }
        // A key that is not an agent's has a value of whatever type.
        let unknown: Vec<String> = diagnostics
            .iter()
            .filter(|found| found.code == "unknown-agent")
            .map(|found| found.path.clone())
            .collect();
        diagnostics.retain(|found| found.code != "type" || !unknown.contains(&found.path));
        diagnostics.sort_by_key(|diagnostic| (diagnostic.span, diagnostic.severity));
        diagnostics.dedup();
        // A mistake in what all agents of a table have is one mistake.
        diagnostics.dedup_by(|one, other| {
            let same = one.span == other.span && one.code == other.code && one.span.end > 0;
            let is_agents = |found: &Diagnostic| found.path.starts_with("agents.");
            same && one.path != other.path && is_agents(one) && is_agents(other)
        });
        let report = Report { sources, diagnostics };
        Self { scenario: scenario.filter(|_| report.n_errors() == 0), report }
    }
}

/// Reads and checks a scenario's text, which may not include files. `name` is what messages call it. What
/// depends on the course of a run is not tried here: `greenroom_play::rehearsal::load` does that too.
pub fn load(name: &str, text: &str, overrides: &[(String, Value)]) -> Loaded {
    let none = |_: &str, _: FileKind| {
        Err(std::io::Error::other("only a scenario that is read from a file can name other files"))
    };
    load_with(name, text, overrides, &none)
}

/// Reads and checks a scenario file and the files that it includes, which lie in its checkout, or else in its
/// folder.
///
/// # Errors
/// The file can't be read, or is not a text. Everything else is in the report.
pub fn open(path: &std::path::Path, overrides: &[(String, Value)]) -> anyhow::Result<Loaded> {
    open_below(path, None, overrides)
}

/// The same; its includes are in the folder `root`, if one is given.
///
/// # Errors
/// As [`open`]; there is no folder `root`.
pub fn open_below(
    path: &std::path::Path,
    root: Option<&std::path::Path>,
    overrides: &[(String, Value)],
) -> anyhow::Result<Loaded> {
    let text = files::read_text(path, FileKind::Scenario).with_context(|| {
        let meant = if path.exists() { None } else { similar_scenario(path) };
        let meant = meant.map(|meant| format!(" (did you mean {}?)", meant.display())).unwrap_or_default();
        format!("can't read the scenario {}{meant}", path.display())
    })?;
    open_text(path, &text, root, overrides)
}

/// The same for a text that is not in the file at `path` yet.
///
/// # Errors
/// There is no folder `root`.
pub fn open_text(
    path: &std::path::Path,
    text: &str,
    root: Option<&std::path::Path>,
    overrides: &[(String, Value)],
) -> anyhow::Result<Loaded> {
    let root = Root::given_or_of(root, path)?;
    let folder = path.parent().map(std::path::Path::to_path_buf).unwrap_or_default();
    let read = |name: &str, kind: FileKind| files::read(&root.admit(&folder.join(name))?, kind);
    Ok(load_with(&path.display().to_string(), text, overrides, &read))
}

/// The same for a scenario that another file names: one that is none is not quoted, because the author of
/// that file may not be meant to see it.
///
/// # Errors
/// As [`open_below`]; the file is not a scenario.
pub fn open_named(
    path: &std::path::Path,
    root: Option<&std::path::Path>,
    overrides: &[(String, Value)],
) -> anyhow::Result<Loaded> {
    let text = files::read_text(path, FileKind::Scenario);
    let text = text.with_context(|| format!("can't read the scenario {}", path.display()))?;
    let is_scenario = include::not_a_scenario_reason(&text).is_none();
    ensure!(
        is_scenario,
        "{} is not a valid scenario; run `greenroom check` to see its errors",
        path.display()
    );
    open_below(path, root, overrides)
}

/// The scenario that a person may mean by a path at which there is none: one of a similar name in the same
/// folder, or in `scenarios` below it.
fn similar_scenario(path: &std::path::Path) -> Option<std::path::PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    [folder.to_path_buf(), folder.join("scenarios")].into_iter().find_map(|folder| {
        let entries = std::fs::read_dir(std::path::Path::new(".").join(&folder)).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let names: Vec<String> =
            names.filter(|name| name.ends_with(".yaml") || name.ends_with(".yml")).collect();
        match suggestion(name, names.iter().map(String::as_str))? {
            Suggestion::Near(near) => Some(folder.join(near)),
            Suggestion::Any(_) => None,
        }
    })
}

/// Reads a file of a kind by the name that the scenario gives it.
type ReadNamed<'a> = dyn Fn(&str, FileKind) -> std::io::Result<Vec<u8>> + 'a;

fn load_with(name: &str, text: &str, overrides: &[(String, Value)], read: &ReadNamed<'_>) -> Loaded {
    let sources = Sources::new(Source { name: name.to_string(), text: text.to_string() });
    let (mut tree, mut found) = Tree::read(sources.main(), 0);
    let readable = !found.iter().any(|diagnostic| diagnostic.code == "yaml");
    let cast = overrides.iter().rev().find(|(name, _)| name == CAST).filter(|_| readable);
    if let Some((_, cast)) = cast {
        papers::put_cast(&mut tree, cast, &mut found);
    }
    let ending = if readable { papers::translate(&mut tree, &mut found) } else { None };
    let renewed = older::renew(&mut tree);
    // In the papers' format, names are no older than the rest.
    found.extend(older::warning(&renewed).filter(|_| ending.is_none()));
    let written = if readable { read::read(&tree, &mut found) } else { None };
    let (names, broken, models) = Default::default();
    let language = Arc::default();
    let (tools, cases, has_cases, steps) = Default::default();
    let by_first_rules = overrides.iter().any(|(name, _)| name == FIRST_RULES);
    let mut checker = Checker {
        sources,
        tree,
        found,
        names,
        broken,
        language,
        ending,
        models,
        tools,
        cases,
        has_cases,
        steps,
        by_first_rules,
    };
    let scenario = written.and_then(|mut written| {
        checker.include(&mut written, read);
        checker.read_personas(&mut written, read);
        checker.read_cases(&mut written, overrides, read);
        checker.known_variables(&written, overrides);
        checker.read_schemas(&mut written, read);
        checker.read_tools(&mut written, read);
        checker.scenario(written, overrides)
    });
    Loaded::new(scenario, checker.sources, checker.found)
}

/// `k=v` of `--set`, the value typed as YAML types it.
///
/// # Errors
/// As text, for the command line.
pub fn parse_override(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = parse(value).map_err(|error| format!("the value is not valid YAML: {error}"))?;
    Ok((key.trim().to_string(), value))
}

/// The cast of a file, read from outside for a scenario that has none: an override like any other.
///
/// # Errors
/// As text, for the command line.
pub fn parse_cast(file: &str) -> Result<(String, Value), String> {
    let text = files::read_text(std::path::Path::new(file), FileKind::Scenario);
    let text = text.map_err(|error| format!("can't read {file}: {error}"))?;
    let mut value = parse(&text).map_err(|error| format!("{file} is not valid YAML: {error}"))?;
    let cast = value.get_mut("agents").map(Value::take).unwrap_or(value);
    match cast.as_object() {
        Some(agents) if !agents.is_empty() => Ok((CAST.to_string(), cast)),
        _ => Err(format!("{file} contains no cast: expected `agents:`, or agents by key")),
    }
}

/// The override that is a cast; no variable can have this name.
pub const CAST: &str = "agents";
/// Maximum number of errors and warnings that are reported of one scenario.
const MAX_REPORTED: usize = 500;

struct Checker {
    sources: Sources,
    tree: Tree,
    found: Vec<Diagnostic>,
    names: Names,
    broken: cascade::Broken,
    language: Arc<Language>,
    ending: Option<papers::Ending>,
    /// Names of the models.
    models: Vec<String>,
    /// The cases of its file, where it can be read.
    cases: Option<Vec<Case>>,
    /// True if it names a file of cases.
    has_cases: bool,
    /// The tools, in the order of the file.
    tools: Vec<super::Tool>,
    /// Steps left for texts that are rendered before the run.
    steps: Steps,
    /// True of a scenario that is read for a recording by the first rules.
    by_first_rules: bool,
}

/// The names that templates and expressions may use, known before any of them is read.
#[derive(Default)]
struct Names {
    variables: Vec<String>,
    values: BTreeMap<String, Value>,
    agents: Vec<Agent>,
    phases: Vec<String>,
    /// The position of each phase, and the blocks around it, by their indices.
    places: Vec<Path>,
    state: Vec<String>,
    /// The state's values before the first turn.
    initial: BTreeMap<String, Value>,
    lets: Vec<state::Intermediate>,
    /// The names of the items of each block that is played for each of a list, by its place.
    items: Vec<(Path, Vec<String>)>,
    /// The phase whose choices have payoffs.
    payoff: Vec<PhaseId>,
    /// True if there may be more that could not be read.
    partial: bool,
}

impl Names {
    fn new(
        variables: &BTreeMap<String, Value>,
        agents: &[Agent],
        parts: &Option<Vec<Option<WrittenPart>>>,
        payoff: &Option<super::schema::WrittenPayoff>,
    ) -> Self {
        let (mut phases, mut places) = (Vec::new(), Vec::new());
        named(parts.as_deref().unwrap_or_default(), &Path::default().key("phases"), &mut phases, &mut places);
        let partial = phases.iter().any(String::is_empty);
        let valued: Vec<&String> = match payoff.as_ref().and_then(|payoff| payoff.phase.as_ref()) {
            None => Vec::new(),
            Some(PhaseNames::One(name)) => vec![name],
            Some(PhaseNames::Many(names)) => names.iter().flatten().collect(),
        };
        let index = |name: &String| phases.iter().position(|phase| phase == name).map(PhaseId);
        let payoff = valued.into_iter().filter_map(index).collect();
        let (names, agents) = (variables.keys().cloned().collect(), agents.to_vec());
        let (state, lets, items, initial) = Default::default();
        Self {
            variables: names,
            values: variables.clone(),
            agents,
            phases,
            places,
            state,
            initial,
            lets,
            items,
            payoff,
            partial,
        }
    }

    /// Adds the phases of judges, after all others.
    fn add_judges(&mut self, judges: &[judges::JudgeDeclaration]) {
        self.phases.extend(judges.iter().map(|judge| judge.name.clone()));
        self.places.extend(judges.iter().map(|judge| judge.path.clone()));
    }

    fn phase(&self, name: &str) -> Option<PhaseId> {
        self.phases.iter().position(|phase| phase == name).map(PhaseId)
    }

    fn has_agent(&self, key: &str) -> bool {
        self.agents.iter().any(|agent| agent.key == key)
    }

    /// The phase that contains something.
    fn phase_at(&self, path: &Path) -> Option<PhaseId> {
        self.places.iter().position(|place| path.0.starts_with(&place.0)).map(PhaseId)
    }

    /// The outermost block that contains something.
    fn block_at<'a>(&self, path: &'a Path) -> Option<&'a [PathStep]> {
        let is_block = matches!(path.0.get(2), Some(PathStep::Key(key)) if key == "phases");
        is_block.then(|| &path.0[..2])
    }

    /// True if a phase is in the block that contains something, or in a block within it.
    fn is_in_block_of(&self, phase: PhaseId, path: &Path) -> bool {
        let block = self.block_at(path);
        block.is_some_and(|block| {
            self.places.get(phase.0).is_some_and(|place| place.0.starts_with(block) && place.0.len() > 2)
        })
    }
}

/// The names of all phases, those of judges included.
fn named_in(parts: &Option<Vec<Option<WrittenPart>>>, judges: &[judges::JudgeDeclaration]) -> Vec<String> {
    let (mut names, mut places) = (Vec::new(), Vec::new());
    named(parts.as_deref().unwrap_or_default(), &Path::default().key("phases"), &mut names, &mut places);
    names.extend(judges.iter().map(|judge| judge.name.clone()));
    names
}

/// Adds the names of phases and their places, those in blocks included.
fn named(parts: &[Option<WrittenPart>], path: &Path, names: &mut Vec<String>, places: &mut Vec<Path>) {
    for (at, part) in parts.iter().enumerate() {
        let path = path.index(at);
        match part {
            Some(WrittenPart::Block(block)) => {
                named(block.phases.as_deref().unwrap_or_default(), &path.key("phases"), names, places);
            }
            Some(WrittenPart::Phase(phase)) => {
                names.push(phase.name.clone().unwrap_or_default());
                places.push(path);
            }
            None => {
                names.push(String::new());
                places.push(path);
            }
        }
    }
}

impl Checker {
    fn scenario(&mut self, mut written: Written, overrides: &[(String, Value)]) -> Option<Arc<Scenario>> {
        let top = Path::default();
        let judges = self.judges(&mut written);
        let id = self.id(written.id.as_deref());
        self.language = self.language(written.language, &top.key("language"));
        let variables = self.names.values.clone();
        let models = self.models(written.models, &top.key("models"));
        let title = self.known_text(written.title, &top.key("title"));
        let description = self.known_text(written.description, &top.key("description"));
        let hints = self.hints(written.model.take(), written.sampling.take(), &top);
        let embeddings = written.embeddings.filter(|name| self.has_model(name, &top.key("embeddings")));
        self.names.phases = named_in(&written.phases, &judges);
        let (mut agents, systems) = self.agents(written.agents, &top.key("agents"));
        self.tools_are_used(&agents);
        let partial = self.names.partial;
        self.names = Names::new(&variables, &agents, &written.phases, &written.payoff);
        self.names.partial |= partial;
        self.names.add_judges(&judges);
        let (state, computed) = self.state(written.state.unwrap_or_default(), &top.key("state"));
        self.names.state = state.keys().cloned().collect();
        self.names.initial = state.clone();
        self.intermediate(written.lets.unwrap_or_default(), &top.key("let"));
        let (mut phases, blocks) = self.phases(written.phases, &top.key("phases"));
        let payoff = self.payoff(written.payoff, &phases, &top.key("payoff"));
        let n_cast = agents.len();
        self.ask_judges(judges, &mut phases, &mut agents);
        let outcomes = self.outcomes(written.outcome.unwrap_or_default(), &top.key("outcome"));
        let assertions =
            self.assertions(written.assertions.unwrap_or_default(), &top.key("assertions"), &outcomes);
        self.check_name_collisions(&variables, &agents[..n_cast], &phases);
        // Models that are named by their files.
        let models = self.models.iter().map(|name| (name.clone(), name.clone())).chain(models).collect();
        let lets = std::mem::take(&mut self.names.lets).into_iter();
        let lets = lets.filter_map(|known| Some((known.name, known.value?))).collect();
        let content = Content {
            title: title.unwrap_or_else(|| id.clone()),
            id,
            description: description.unwrap_or_default(),
            variables,
            cases: self.cases.take(),
            state,
            computed,
            lets,
            overrides: overrides.iter().filter(|(name, _)| name != FIRST_RULES).cloned().collect(),
            by_first_rules: self.by_first_rules,
            language: self.language.clone(),
            models,
            embeddings,
            tools: std::mem::take(&mut self.tools),
            hints,
            agents,
            phases,
            passes: Vec::new(),
            payoff,
            outcomes,
            ending: self.ending.take(),
            assertions,
        };
        self.complete(Scenario::new(content, self.sources.clone()), &systems, &blocks)
    }

    /// Checks what only a complete scenario shows: its texts are tried, and its blocks unrolled.
    fn complete(
        &mut self,
        mut scenario: Scenario,
        systems: &[Option<String>],
        blocks: &[unroll::BlockDeclaration],
    ) -> Option<Arc<Scenario>> {
        self.answers(&scenario.agents, &scenario.phases);
        self.answers_in_form(&scenario.agents, &scenario.phases);
        self.pick_several(&scenario.agents, &scenario.phases);
        self.systems(&mut scenario, systems);
        unroll::unroll(&mut scenario, blocks);
        self.all_play(&scenario);
        self.passes_exist(&scenario);
        self.check_hearing(&scenario.phases);
        let scenario = self.try_texts(scenario);
        if !self.has_errors() {
            self.one_model_each(&scenario);
            self.scripted(&scenario);
        }
        self.unrendered();
        let mut scenario = Arc::into_inner(scenario)?;
        scenario.tree = std::mem::take(&mut self.tree);
        Some(Arc::new(scenario))
    }

    fn error(&mut self, code: &'static str, path: &Path, message: impl Into<String>) -> &mut Diagnostic {
        let span = self.tree.value(path);
        self.push(Diagnostic::error(code, path.to_string(), span, message))
    }

    /// A suggestion of what was meant; not looked for where no more errors are reported.
    fn suggest<'a>(&self, found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
        if self.found.len() > MAX_REPORTED { None } else { suggest(found, known) }
    }

    fn push(&mut self, diagnostic: Diagnostic) -> &mut Diagnostic {
        let at = self.found.len();
        self.found.push(diagnostic);
        &mut self.found[at]
    }

    /// An error about a name that is on a line of a text value.
    fn error_at(
        &mut self,
        code: &'static str,
        path: &Path,
        (line, name): (usize, &str),
        message: String,
    ) -> &mut Diagnostic {
        let span = self.name_span(path, line, name);
        self.push(Diagnostic::error(code, path.to_string(), span, message))
    }

    /// The place of a name on a line of a text value; the line, where it is not found.
    fn name_span(&self, path: &Path, line: usize, name: &str) -> Span {
        if self.found.len() > MAX_REPORTED {
            return self.tree.text_line(&self.sources, path, line);
        }
        name_span(&self.sources, &self.tree, path, line, name)
    }

    /// Looks a word up in a closed list.
    fn word<T: Copy>(&mut self, path: &Path, what: &str, given: &str, known: &[(&str, T)]) -> Option<T> {
        let wanted = given.trim();
        let hit = known.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        if hit.is_none() {
            let help = self.suggest(wanted, known.iter().map(|(name, _)| *name));
            self.error("unknown-value", path, format!("`{wanted}` is not a valid {what}")).help = help;
        }
        hit
    }

    /// Templates refer to variables, agents and phases by name alone, so one name can't mean two of them.
    fn check_name_collisions(
        &mut self,
        variables: &BTreeMap<String, Value>,
        agents: &[Agent],
        phases: &[Phase],
    ) {
        let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
        let reserved = super::template::SYSTEM_NAMES.iter().chain(super::template::STAGE_NAMES);
        let judged = phases.iter().any(|phase| phase.is_judge);
        let reserved = reserved.chain(&["mine", "all", "outcome"]).chain(judged.then_some(&"verdict"));
        let reserved = reserved.chain(super::template::FUNCTIONS.iter().map(|(name, _)| name));
        seen.extend(
            reserved.map(|name| (name.to_string(), ("a name reserved in templates", Span::default()))),
        );
        let of_cases = ["case", "cases"].into_iter().filter(|_| self.has_cases);
        seen.extend(of_cases.map(|name| (name.to_string(), ("used by the file of cases", Span::default()))));
        let top = Path::default();
        let named = variables.keys().map(|k| (k.clone(), "a variable", top.key("variables").key(k.clone())));
        let state =
            self.names.state.iter().map(|k| (k.clone(), "something in the state", top.key("state").key(k)));
        let lets = self.names.lets.iter().map(|known| &known.name);
        let lets = lets.map(|k| (k.clone(), "an intermediate value", top.key("let").key(k)));
        let stated: Vec<_> = state.chain(lets).collect();
        let agents = agents.iter().map(|a| (a.key.clone(), "an agent", top.key("agents").key(a.key.clone())));
        let kind = |phase: &Phase| if phase.is_judge { "a judge" } else { "a phase" };
        let phases = phases.iter().map(|p| (p.name.clone(), kind(p), p.path.key("name")));
        let all: Vec<_> = named.chain(stated).chain(agents).chain(phases).collect();
        for (name, kind, path) in all {
            let span = if ["a phase", "a judge"].contains(&kind) {
                self.tree.value(&path)
            } else {
                self.tree.key(&path)
            };
            match seen.get(&name) {
                // Two phases or judges of one name have an error of their own.
                Some((other, _)) if *other == kind => {}
                Some((other, first)) => {
                    let own = first.end == 0;
                    let message = if own {
                        format!("`{name}` is {other}, so {kind} can't use it")
                    } else {
                        format!("`{name}` is the name of {kind} and of {other}")
                    };
                    let help = if own { "rename it" } else { "templates can't tell them apart: rename one" };
                    let found =
                        Diagnostic::error("ambiguous-name", path.to_string(), span, message).help(help);
                    self.push(if own { found } else { found.related(*first, "first defined here") });
                }
                None => {
                    seen.insert(name, (kind, span));
                }
            }
        }
    }

    fn has_errors(&self) -> bool {
        self.found.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// Letters, digits and `_`, not starting with a digit: what a template can name.
pub fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
