//! Plays a scenario into a folder: transcript, trace and summary; new, resumed, or carrying on another run.

use crate::backend::{Backend, Cast, Replay, Sampling, Session};
use crate::prompt::Memories;
use crate::replay;
use crate::scenario::{Plan, Scenario, compile};
use crate::stage::{End, Settings, Stage, Watch};
use crate::trace::{self, Summary, Trace};
use crate::transcript::{self, Continues, Header, Recorder, SamplingRecord, ScenarioRecord, Transcript};
use anyhow::{Context as _, bail};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How a scenario is to be played.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Root of all turns' seeds.
    pub seed: u64,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of a reply.
    pub max_tokens: usize,
    /// Compute everything anew at each turn.
    pub cold: bool,
    /// Go on with the run in the folder.
    pub resume: bool,
    /// Begin with the memories of another run (its folder or transcript).
    pub continues: Option<PathBuf>,
    /// The model's name, for the trace.
    pub model: String,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            sampling: Sampling::default(),
            max_tokens: 80,
            cold: false,
            resume: false,
            continues: None,
            model: String::new(),
        }
    }
}

/// A run that ended or was stopped.
#[derive(Debug)]
pub struct Performed {
    /// How it ended.
    pub end: End,
    /// What it cost.
    pub summary: Summary,
    /// Its transcript.
    pub transcript: PathBuf,
    /// Turns on record.
    pub n_written: usize,
    /// Turns of the plan, those that were skipped included.
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
    let started = Instant::now();
    let plan = Arc::new(compile(scenario));
    let mut stage = set(scenario, &plan, backend, folder, options)?;
    let played = stage.play(watch, stop).await;
    let n_written = stage.written().count();
    let on_record = stage.written();
    let on_record = on_record.map(|turn| (turn.path.as_str(), scenario.agent(turn.speaker).key.as_str()));
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let summary = Summary::count(scenario, &stage.trace, on_record, wall_ms);
    let text = serde_json::to_string_pretty(&summary)? + "\n";
    std::fs::write(folder.join("summary.json"), text).context("can't write summary.json")?;
    let transcript = folder.join(transcript::FILE);
    Ok(Performed { end: played?, summary, transcript, n_written, n_turns: plan.n_turns() })
}

fn set(
    scenario: &Arc<Scenario>,
    plan: &Arc<Plan>,
    backend: Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
) -> anyhow::Result<Stage> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let file = folder.join(transcript::FILE);
    let earlier = options.continues.as_deref().map(|run| replay::earlier(run, None)).transpose()?;
    let parent = options
        .continues
        .as_deref()
        .and_then(|run| Trace::run_of(&replay::transcript_file(run).with_file_name(trace::FILE)));
    let continues = options.continues.as_deref().zip(earlier.as_ref()).map(|(run, earlier)| Continues {
        path: portable(&replay::transcript_file(run), 2),
        hash: earlier.hash.clone(),
    });
    let timelines = earlier.map(|earlier| earlier.timelines).unwrap_or_default();
    let brought: Vec<String> = timelines.keys().cloned().collect();
    let memories = Memories::new(scenario.clone(), plan.clone(), timelines, options.seed);
    let backend: Arc<dyn Backend> = Arc::new(Cast::new(backend));
    warn_of_old_systems(scenario, &memories);
    let header = header(&memories, backend.as_ref(), options, continues);
    let session = |agent: String| (agent.clone(), parent.clone().map(|run| Session { run, agent }));
    let parents = brought.into_iter().map(session).filter_map(|(key, session)| Some((key, session?)));
    let settings = Settings {
        seed: options.seed,
        sampling: options.sampling.clone(),
        max_tokens: options.max_tokens,
        cold: options.cold,
        parents: parents.collect(),
    };
    let trace_file = folder.join(trace::FILE);
    if let Some(recorded) = recorded(&file, options.resume)? {
        let recorder = Recorder::resume(&file, &recorded, &header)?;
        let trace = Trace::resume(&trace_file, &scenario.id, &options.model)?;
        let backend = Arc::new(Replay::then(&recorded, backend));
        return Ok(Stage::new(memories, backend, settings, recorder, trace));
    }
    let trace = Trace::create(&trace_file, &scenario.id, &options.model)?;
    let recorder = Recorder::create(&file, header)?;
    Ok(Stage::new(memories, backend, settings, recorder, trace))
}

/// What an interrupted run left behind, if there is anything to go on from.
fn recorded(file: &Path, resume: bool) -> anyhow::Result<Option<Transcript>> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", file.display())),
    };
    if !resume {
        bail!(
            "{} holds a run already: go on with it by --resume, or choose another folder with --out",
            file.display()
        );
    }
    if !bytes.contains(&b'\n') {
        // The run was interrupted before its header stood: it begins anew.
        std::fs::remove_file(file).with_context(|| format!("can't remove {}", file.display()))?;
        return Ok(None);
    }
    Ok(Some(Transcript::parse(file, &String::from_utf8_lossy(&bytes))?))
}

fn warn_of_old_systems(scenario: &Scenario, memories: &Memories) {
    for (id, agent) in scenario.agents.iter().enumerate() {
        if memories.system(crate::scenario::AgentId(id)) != agent.system {
            tracing::warn!(
                "{} keeps the system prompt of the earlier run: its memory begins with it",
                agent.key
            );
        }
    }
}

fn header(
    memories: &Memories,
    backend: &dyn Backend,
    options: &RunOptions,
    continues: Option<Continues>,
) -> Header {
    let (scenario, card) = (memories.scenario(), backend.card());
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window } =
        options.sampling;
    Header {
        format: transcript::FORMAT,
        engine: concat!("greenroom ", env!("CARGO_PKG_VERSION")).to_string(),
        scenario: ScenarioRecord {
            id: scenario.id.clone(),
            path: portable(Path::new(&scenario.sources.main().name), 1),
            blake3: scenario.file_hash(),
        },
        plan: memories.plan().hash(),
        templates: scenario.template_hashes(),
        variables: scenario.variables.clone(),
        agents: replay::cast(memories),
        model: card.model,
        kv: card.kv,
        numerics: card.numerics,
        sampling: SamplingRecord { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window },
        max_tokens: options.max_tokens,
        seed: options.seed,
        continues,
    }
}

/// A path that says nothing of the machine: below the current folder, else its last `n_kept` parts alone.
fn portable(path: &Path, n_kept: usize) -> String {
    let inside = path.canonicalize().ok().zip(std::env::current_dir().and_then(|d| d.canonicalize()).ok());
    let below = inside.and_then(|(path, here)| path.strip_prefix(here).map(Path::to_path_buf).ok());
    let path = below.unwrap_or_else(|| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    let is_named = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let parts: Vec<_> =
        path.components().filter(is_named).map(|part| part.as_os_str().to_string_lossy()).collect();
    let skipped = if path.is_absolute() { parts.len().saturating_sub(n_kept) } else { 0 };
    parts[skipped..].join("/")
}
