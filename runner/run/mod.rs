//! Plays a scenario into a folder: transcript, trace and summary; new, resumed, continuing another run, or
//! forked from one.

mod changes;
mod header;
mod models;
mod past;

pub use changes::{Changes, Say, Tell};
pub use models::records;
pub use past::ForkFrom;

use crate::backend::{Backend, Sampling};
use crate::files;
use crate::prompt::{Edits, Memories};
use crate::replay;
use crate::scenario::{CaseId, Given, Hints, Plan, Scenario, copied, write_copy};
use crate::stage::{Control, Discreet, End, RecordedRetrievals, Settings, Stage, Watch};
use crate::tools::{self, ToolFunctions, Toolbox};
use crate::trace::{self, CostSummary, Trace};
use crate::transcript::{self, Header, Recorder, Transcript, TurnRecord};
use anyhow::{Context as _, bail};
use header::header;
use models::RunModels;
use past::RunPast;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Default maximum number of tokens in a reply.
pub const MAX_TOKENS: u32 = 80;

/// What the random numbers of a run depend on, besides its seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seeding {
    /// The content of the case that is played: different cases have different random numbers.
    #[default]
    ByCase,
    /// As in a recording: the case that its header names; `None` in recordings of earlier versions, in which
    /// all cases share random numbers.
    Recorded(Option<CaseId>),
}

/// Settings for playing a scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Root of all turns' seeds; in a run of a case, what their root is derived from.
    pub seed: u64,
    /// Tells whether the case that is played has random numbers of its own.
    pub seeding: Seeding,
    /// Sampling settings; those not given come from the scenario, else from the model file, else from the
    /// defaults.
    pub sampling: Hints,
    /// Maximum number of tokens in a reply.
    pub max_tokens: usize,
    /// Recompute everything at each turn.
    pub cold: bool,
    /// Resume the run in the folder.
    pub resume: bool,
    /// Begin with the memories of another run (its folder or transcript).
    pub continues: Option<PathBuf>,
    /// Begin instead with the first turns of another run.
    pub fork: Option<ForkFrom>,
    /// The folder that contains everything that an earlier run's files may name; `None`: that run's checkout,
    /// else its own folder.
    pub root: Option<PathBuf>,
    /// The scenario's recorded path, if the scenario was read from a run's copy; `None`: the path it was read
    /// from.
    pub named: Option<String>,
    /// Replacements for the models that the scenario names, by name; the empty name is the scenario's own.
    /// They are recorded in the trace.
    pub models: BTreeMap<String, String>,
    /// Settings that override the scenario's.
    pub given: Given,
    /// All sampling settings of models, as an earlier run had them, by the models' names in the scenario. Those
    /// of the empty name are its own model's, and those of models that are not listed.
    pub recorded: BTreeMap<String, Sampling>,
    /// True if the programs and servers that the scenario has as tools may run.
    pub allow_tools: bool,
    /// The functions that the scenario has as tools.
    pub functions: ToolFunctions,
    /// What may be done to the run while it plays, and where humans answer.
    pub control: Control,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            seeding: Seeding::default(),
            sampling: Hints::default(),
            max_tokens: MAX_TOKENS as usize,
            cold: false,
            resume: false,
            continues: None,
            fork: None,
            root: None,
            named: None,
            models: BTreeMap::new(),
            given: Given::new(),
            recorded: BTreeMap::new(),
            allow_tools: false,
            functions: ToolFunctions::default(),
            control: Control::default(),
        }
    }
}

/// A run that ended or was stopped.
#[derive(Debug)]
pub struct Performed {
    /// How it ended.
    pub end: End,
    /// Its cost.
    pub summary: CostSummary,
    /// Its transcript.
    pub transcript: PathBuf,
    /// Turns on record.
    pub n_written: usize,
    /// Turns of the plan, including skipped ones.
    pub n_turns: usize,
}

/// Plays a scenario into `folder`, until its end or until `stop` is ready.
///
/// # Errors
/// A turn that failed, a folder that can't be written, or one that holds another run.
pub async fn perform(
    scenario: &Arc<Scenario>,
    backend: Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
    watch: &mut dyn Watch,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Performed> {
    let (started, traffic) = (Instant::now(), backend.traffic());
    let plan = scenario.plan().clone();
    tokio::pin!(stop);
    let toolbox = tokio::select! {
        biased;
        toolbox = open_tools(scenario, options) => toolbox?,
        () = &mut stop => return Ok(not_begun(folder, &plan)),
    };
    let toolbox = Arc::new(toolbox);
    let (mut stage, known) = stage(scenario, &plan, backend.clone(), folder, options, toolbox.clone())?;
    let mut watch = Discreet::new(scenario, &plan, watch);
    let played = match stage.follow(known, &mut watch) {
        Ok(()) => stage.play(&mut watch, &options.control, stop).await,
        Err(error) => Err(error),
    };
    if matches!(played, Ok(End::Complete(_))) {
        watch.unveil();
    }
    let n_written = stage.written().count();
    let on_record = stage.written();
    let on_record = on_record.map(|turn| (turn.path.as_str(), scenario.agent(turn.speaker).key.as_str()));
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    toolbox.close().await;
    let mut summary = CostSummary::count(scenario, &stage.trace, on_record, wall_ms);
    let since = |now| now - traffic.unwrap_or_default();
    summary.cache.objects = backend.traffic().map(since);
    for turn in stage.written() {
        if let Some(agent) = summary.agents.get_mut(&scenario.agent(turn.speaker).key) {
            agent.models.extend(turn.hints.model.clone());
        }
    }
    let text = serde_json::to_string_pretty(&summary)? + "\n";
    let summed_up = files::write(&folder.join("summary.json"), text);
    let transcript = folder.join(transcript::FILE);
    let end = match (played, summed_up) {
        (Ok(end), summed_up) => summed_up.map(|()| end)?,
        (Err(error), Ok(())) => return Err(error),
        (Err(play), Err(summary)) => return Err(FailedTwice { play, summary }.into()),
    };
    Ok(Performed { end, summary, transcript, n_written, n_turns: plan.n_turns() })
}

/// A run that was stopped while its tools were starting.
fn not_begun(folder: &Path, plan: &Plan) -> Performed {
    let (transcript, n_turns) = (folder.join(transcript::FILE), plan.n_turns());
    Performed { end: End::Stopped, summary: CostSummary::default(), transcript, n_written: 0, n_turns }
}

/// The tools of a scenario, ready to be called.
async fn open_tools(scenario: &Scenario, options: &RunOptions) -> anyhow::Result<Toolbox> {
    let outside = Toolbox::outside(scenario);
    if outside.is_empty() {
        return Toolbox::at_rest(scenario).with_functions(scenario, options.functions.clone());
    }
    if !options.allow_tools {
        bail!(
            "agents may call programs or servers: {}. Check what they do, then allow them with --allow-tools",
            outside.join(", ")
        );
    }
    let opened = Toolbox::open(scenario, tools::folder(scenario, options.named.as_deref())?).await?;
    opened.with_functions(scenario, options.functions.clone())
}

/// A turn failed, and then the run's costs could not be written either.
#[derive(Debug, thiserror::Error)]
#[error("{play:#}; also, {summary:#}")]
pub struct FailedTwice {
    /// The error of the turn.
    pub play: anyhow::Error,
    /// The error that kept `summary.json` from being written.
    summary: anyhow::Error,
}

/// The state of a run's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// Nothing, or a run that was interrupted.
    Open,
    /// A complete run with the same settings.
    Complete,
}

/// State of a run's folder.
///
/// # Errors
/// A complete run that was made with other settings, or one that can't be read.
pub fn standing(
    scenario: &Arc<Scenario>,
    backend: &Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
) -> anyhow::Result<FolderState> {
    let file = folder.join(transcript::FILE);
    let Some(recorded) = recorded(&file, true)?.filter(|recorded| recorded.footer.is_some()) else {
        return Ok(FolderState::Open);
    };
    let toolbox = Arc::new(Toolbox::recorded(scenario, &recorded.header.record.tools));
    let set = Prepared::new(scenario, &scenario.plan().clone(), backend.clone(), options, toolbox)?;
    let same = transcript::same_settings(&recorded.header.record, &set.header);
    same.with_context(|| format!("{} was played with other settings", file.display()))?;
    Ok(FolderState::Complete)
}

/// Everything that is ready before the first turn.
struct Prepared {
    memories: Memories,
    backend: Arc<dyn Backend>,
    settings: Settings,
    header: Header,
    /// The lines that a fork shares with its run.
    known: Vec<TurnRecord>,
}

impl Prepared {
    fn new(
        scenario: &Arc<Scenario>,
        plan: &Arc<Plan>,
        backend: Arc<dyn Backend>,
        options: &RunOptions,
        toolbox: Arc<Toolbox>,
    ) -> anyhow::Result<Self> {
        let models = RunModels::open(scenario, plan, backend, options)?;
        let past = RunPast::of(scenario, plan, options, &models.sampling)?;
        let case = past.case(scenario, &options.seeding)?;
        let seeds = past.seeds(options.seed, case.as_ref());
        let edits = past.fork.as_ref().map(|fork| Edits::of(&fork.record, plan, scenario));
        let memories = Memories::new(scenario.clone(), plan.clone(), past.timelines.clone(), seeds);
        let memories = memories.with_edits(edits.unwrap_or_default()).with_given(options.given.clone());
        memories.begins()?;
        let known = past.fork.iter().flat_map(|fork| lines(&fork.before)).collect();
        let header = header(&memories, &models, options, &past, &toolbox, case);
        let RunModels { own: backend, sampling, max_tokens, named: models } = models;
        let embeddings =
            scenario.embeddings.as_ref().and_then(|name| Some(models.get(name)?.backend.clone()));
        let settings = Settings {
            toolbox,
            sampling,
            max_tokens,
            cold: options.cold,
            parents: past.parents,
            models,
            embeddings,
            retrievals: past
                .fork
                .as_ref()
                .map(|fork| RecordedRetrievals::of(&fork.before))
                .unwrap_or_default(),
            before: replay::settings_before(&header, plan),
        };
        Ok(Self { memories, backend, settings, header, known })
    }
}

/// A stage, and the lines of the turns whose replies are known.
fn stage(
    scenario: &Arc<Scenario>,
    plan: &Arc<Plan>,
    backend: Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
    toolbox: Arc<Toolbox>,
) -> anyhow::Result<(Stage, Vec<TurnRecord>)> {
    let Prepared { memories, backend, mut settings, header, mut known } =
        Prepared::new(scenario, plan, backend, options, toolbox)?;
    std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let file = folder.join(transcript::FILE);
    warn_of_old_systems(scenario, &memories);
    let trace_file = folder.join(trace::FILE);
    let (recorder, trace) = match recorded(&file, options.resume)? {
        Some(recorded) => {
            // A run that an earlier version began has none.
            let lacks_copy = copied(folder).is_none();
            let n = recorded.turns.len().min(known.len());
            known.splice(..n, lines(&recorded));
            settings.retrievals.extend(RecordedRetrievals::of(&recorded));
            let recorder = Recorder::resume(&file, &recorded, &header)?;
            if lacks_copy {
                write_copy(scenario, folder)?;
            }
            (recorder, Trace::resume(&trace_file, &scenario.id, &options.models)?)
        }
        None => {
            write_copy(scenario, folder)?;
            let trace = Trace::create(&trace_file, &scenario.id, &options.models)?;
            (Recorder::create(&file, header)?, trace)
        }
    };
    Ok((Stage::new(memories, backend, settings, recorder, trace), known))
}

fn lines(transcript: &Transcript) -> impl Iterator<Item = TurnRecord> {
    transcript.turns.iter().map(|turn| turn.record.clone())
}

/// The transcript of an interrupted run, if there is anything to resume.
fn recorded(file: &Path, resume: bool) -> anyhow::Result<Option<Transcript>> {
    if !resume && file.symlink_metadata().is_ok() {
        bail!(
            "{} already contains a run; continue it with --resume, or choose another folder with --out",
            file.display()
        );
    }
    let begun = Transcript::open_begun(file)?;
    if begun.is_none() && file.symlink_metadata().is_ok() {
        // The run was interrupted before its header was complete: it starts over.
        std::fs::remove_file(file).with_context(|| format!("can't remove {}", file.display()))?;
    }
    Ok(begun)
}

fn warn_of_old_systems(scenario: &Scenario, memories: &Memories) {
    for (id, agent) in scenario.agents.iter().enumerate() {
        if memories.system(crate::scenario::AgentId(id)) != agent.system {
            tracing::warn!(
                "{} keeps the system prompt of the earlier run, because its memory begins with it",
                agent.key
            );
        }
    }
}
