//! Flags for the model, the place of its memories, and the share of this machine that it may use.

use super::host::Host;
use super::{Location, MemoryArgs, casting, parse_size};
use crate::backend::{
    Backend, Device, EmbeddedConfig, Kv, Loading, ModelFile, Pool, Reach, bytes_in, locate,
};
use crate::files;
use crate::scenario::EngineAddress;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The model that answers.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// GGUF file, a name that `models` or `pull` lists (such as ollama:NAME), hf:ORG/REPO/FILE.gguf, the
    /// bundled `understudy`, or a remote engine (API+URL, docs/engines.md), for agents to whom the scenario
    /// assigns no model; NAME=MODEL replaces a model that it names (repeatable) [default: the scenario's, else
    /// understudy; when resuming or forking, the run's]
    #[arg(long = "model", value_name = "[NAME=]MODEL", value_parser = casting::parse)]
    pub(super) given: Vec<casting::ModelArg>,
    /// KV cache formats: auto (the model family's), f16, q8, q8/q4 (keys/values), q4-m (q4, but q8 for the
    /// keys of one layer in six), q4, or a file from `greenroom-lab kv-config`
    #[arg(long, default_value = "auto", value_name = "KV")]
    kv: Kv,
    /// Device that runs it: auto (whichever answers sooner, a GPU or the processor), cpu, gpu, or gpu:NAME
    /// (see `devices`)
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: Device,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Allow the remote engines that the scenario names: they receive what agents read, and the API keys that
    /// it names
    #[arg(long)]
    allow_remote: bool,
}

/// The model, and where memories are kept.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Machine {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    memories: MemoryArgs,
    /// RAM for memories, e.g. 512M; 0 restores every agent from disk at each turn [default: half of the RAM
    /// that the model leaves free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_memory: Option<u64>,
    /// Maximum size of all memories on disk (for an object store: of local copies), or `unlimited`; the least
    /// valuable ones are removed when a run begins and ends, and while a server runs (see `cache gc`)
    /// [default: a fifth of the space that is free or taken by memories, at most 16G]
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    cache_disk: Option<Limit>,
    /// Reuse memories that another device computed instead of reading everything again; turns based on them
    /// are marked in the trace, and may differ from what either device alone would say
    #[arg(long)]
    adopt: bool,
    /// A smaller draft model with the same vocabulary, for speculative decoding: the same replies, sooner
    /// where its guesses are right. Its cache takes at most an eighth of --cache-memory
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// Share nothing with runs of other tenants in the same cache folder
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(super) tenant: String,
    /// What a program brings that calls this command.
    #[arg(skip)]
    pub(super) host: Host,
}

impl ModelArgs {
    /// Opens the model that recordings are read with, and others as scenarios name them; memories stay in RAM
    /// and end with it.
    pub(super) fn open(&self) -> anyhow::Result<Pool> {
        let given = casting::by_name(&self.given)?;
        let own = given.get("").map_or("understudy", String::as_str);
        Pool::open(self.config([own])?, own, given.clone(), self.reach(), Box::new(|| Box::new(|_| {})))
    }

    /// The remote engines that may be used.
    fn reach(&self) -> Reach {
        match self.allow_remote {
            true => Reach::All,
            false => Reach::Given(self.given.iter().map(|(_, model)| model.clone()).collect()),
        }
    }

    /// The first of these models that is available, and the memory that all of them leave free.
    fn config<'a>(&self, models: impl IntoIterator<Item = &'a str>) -> anyhow::Result<EmbeddedConfig> {
        let mut models = models.into_iter().filter(|model| !EngineAddress::is_meant(model)).map(locate);
        let model = models.next().transpose()?.unwrap_or(ModelFile::Understudy);
        // If one of the others is missing, an error names it when it is opened.
        let models: Vec<ModelFile> = [model.clone()].into_iter().chain(models.flatten()).collect();
        Ok(EmbeddedConfig {
            device: self.device.clone(),
            kv: self.kv.clone(),
            cache_memory: share_of_free_memory(&models),
            threads: self.threads.map(usize::from),
            self_check: true,
            ..EmbeddedConfig::new(model)
        })
    }
}

impl Machine {
    /// The first of these models, the memory that all of them leave free, and the place of their memories.
    pub(super) fn config(&self, models: &BTreeSet<String>, own: &str) -> anyhow::Result<EmbeddedConfig> {
        let others = models.iter().map(String::as_str).filter(|model| *model != own);
        let models = [own].into_iter().chain(others).chain(self.draft.as_deref());
        let config = self.model.config(models)?;
        let cache_dir = cache_dir(&self.memories)?;
        Ok(EmbeddedConfig {
            cache_disk: cache_dir.as_deref().and_then(|folder| self.disk_limit(folder)),
            is_default_bound: self.cache_disk.is_none(),
            cache_dir,
            objects: self.memories.objects().cloned(),
            cache_key: self.memories.key()?,
            tenant: self.tenant.clone(),
            cache_memory: self.cache_memory.unwrap_or(config.cache_memory),
            adopt: self.adopt,
            draft: self.draft.as_deref().map(locate).transpose().context("--draft")?,
            ..config
        })
    }

    /// Bytes that memories in a folder may take; `None`: it is not limited.
    fn disk_limit(&self, folder: &Path) -> Option<u64> {
        match self.cache_disk {
            Some(Limit::Bytes(bytes)) => Some(bytes),
            Some(Limit::Unlimited) => None,
            None => Some(share_of_disk(folder)),
        }
    }

    /// The folder of memories, if there is none yet: to be named when a run has made it.
    pub(super) fn new_folder(&self) -> Option<PathBuf> {
        self.memories.folder().filter(|folder| !folder.exists())
    }

    /// Prints where memories are kept, and how much space they may take.
    pub(super) fn introduce_memories(&self, folder: &Path) -> String {
        let limit = self.disk_limit(folder).map_or("without a limit".to_string(), |limit| {
            format!("up to {}", crate::terminal::bytes(limit))
        });
        format!(
            "Agents' memories are kept in {}, {limit} (--cache-disk changes this, `greenroom cache` lists \
             and removes them)",
            folder.display()
        )
    }

    /// The models of a run: those of the program that calls the command, else opened as the flags say.
    pub(super) fn models(
        &self,
        models: &BTreeSet<String>,
        own: &str,
        quiet: bool,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        match &self.host.backend {
            Some(backend) => Ok(backend.clone()),
            None => Ok(Arc::new(self.open_pool(models, own, quiet)?)),
        }
    }

    /// Opens the first of these models, with a bar on a terminal while it is converted, and the others on
    /// demand.
    pub(super) fn open_pool(
        &self,
        models: &BTreeSet<String>,
        own: &str,
        quiet: bool,
    ) -> anyhow::Result<Pool> {
        let config = self.config(models, own)?;
        if !EngineAddress::is_meant(own) {
            introduce(&config.model, quiet);
        }
        Pool::open(
            config,
            own,
            BTreeMap::new(),
            self.model.reach(),
            Box::new(move || Box::new(loading(quiet))),
        )
    }
}

/// A limit on the space that memories take.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Bytes(u64),
    Unlimited,
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "unlimited" {
        return Ok(Limit::Unlimited);
    }
    let limit = parse_size(text).map(Limit::Bytes);
    limit.map_err(|error| error.replace("expected e.g. 512M or 2G", "expected e.g. 512M, 2G or `unlimited`"))
}

/// A fifth of the space that is free or taken by the memories of a folder, at most 16 GiB.
fn share_of_disk(folder: &Path) -> u64 {
    const SHARE: u64 = 5;
    const MAX_BYTES: u64 = 16 << 30;
    let Ok(free) = fs4::available_space(folder) else { return MAX_BYTES };
    (free.saturating_add(bytes_in(folder)) / SHARE).min(MAX_BYTES)
}

/// The least memory that caches have.
const MIN_CACHE_BYTES: u64 = 256 << 20;

/// Bytes of this machine's memory, and those that are free; a container's limits count. `None`: not known.
fn memory() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let limits = system.cgroup_limits();
    let (total, free) =
        limits.map_or((u64::MAX, u64::MAX), |limits| (limits.total_memory, limits.free_memory));
    Some((total.min(system.total_memory()), free.min(system.available_memory())))
}

/// True if weights of this size and the least cache fit in this machine's memory; `None`: not known.
pub(super) fn fits(weights: u64) -> Option<bool> {
    memory().map(|(total, _)| weights.saturating_add(MIN_CACHE_BYTES) <= total)
}

/// Half of the memory that the models leave free.
fn share_of_free_memory(models: &[ModelFile]) -> u64 {
    let size = |model: &ModelFile| match model {
        ModelFile::Path(path) => std::fs::metadata(path).map_or(0, |file| file.len()),
        ModelFile::Understudy => 0,
    };
    let files: u64 = models.iter().map(size).sum();
    let free = memory().map_or(0, |(_, free)| free);
    (free.saturating_sub(files) / 2).max(MIN_CACHE_BYTES)
}

/// A requested folder must be writable, and so must that of copies; if none was requested, memories may stay
/// in RAM.
fn cache_dir(memories: &MemoryArgs) -> anyhow::Result<Option<PathBuf>> {
    let Some(folder) = memories.folder() else {
        anyhow::ensure!(
            memories.objects().is_none(),
            "there is no home folder for local copies of the object store; set XDG_CACHE_HOME"
        );
        tracing::warn!(
            "there is no home folder: memories stay in RAM and end with this run (use --cache-dir to keep \
            them)"
        );
        return Ok(None);
    };
    match (writable(&folder), &memories.cache_dir) {
        (Ok(()), _) => Ok(Some(folder)),
        (Err(error), Some(Location::Folder(_))) => {
            Err(error).with_context(|| format!("can't write to --cache-dir {}", folder.display()))
        }
        (Err(error), Some(Location::Objects(address))) => Err(error).with_context(|| {
            format!("can't write to {}, where local copies of {address} are kept", folder.display())
        }),
        (Err(error), None) => {
            tracing::warn!(
                "can't write to {}: {error}; memories stay in RAM and end with this run (use --cache-dir to \
                 keep them)",
                folder.display()
            );
            Ok(None)
        }
    }
}

/// Makes a folder and tries to write to it. Its contents are durable, so it and the folders above it must be,
/// too.
fn writable(folder: &Path) -> std::io::Result<()> {
    let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let made: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(folder)?;
    for dir in made.iter().rev() {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        files::sync_folder(parent.unwrap_or(Path::new(".")))?;
    }
    tempfile::tempfile_in(folder).map(drop)
}

/// Tells the user at the terminal what to expect from the model.
fn introduce(model: &ModelFile, quiet: bool) {
    let watched = console::Term::stdout().is_term() && console::Term::stderr().is_term();
    if *model == ModelFile::Understudy && watched && !quiet {
        eprintln!(
            "Playing with the bundled understudy: 4 million parameters, simple talk. `greenroom pull` lists \
             real models for --model."
        );
    }
}

/// Shows the progress of opening a model on a terminal.
pub(super) fn loading(quiet: bool) -> impl FnMut(Loading) {
    let show = !quiet && console::Term::stderr().is_term();
    let bar = if show { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let bar = bar.with_finish(ProgressFinish::AndClear);
    let style =
        |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style("loading {wide_bar} {bytes} of {total_bytes}"));
    move |opening| match opening {
        Loading::Weights { done, total } => {
            bar.set_length(total);
            bar.set_position(done);
        }
        Loading::Measuring => {
            bar.set_style(style("measuring the model's keys for its cache (only once) {spinner} {elapsed}"));
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        _ => {}
    }
}
