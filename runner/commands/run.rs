//! `greenroom run`: plays a scenario.

use super::{Exit, Memories, open_scenario, parse_size};
use crate::backend::{Embedded, EmbeddedConfig, Kv, ModelFile, Sampling, locate};
use crate::run::{Performed, RunOptions, perform};
use crate::scenario::{Scenario, compile, parse_override};
use crate::stage::{End, Unwatched, Watch};
use crate::terminal::{self, Dialogue};
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Play a scenario: the dialogue on the terminal, the record into a folder
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom run scenarios/gossip.yaml --seed 7 --set topic=music --out runs/g7"
)]
pub(super) struct Args {
    /// The scenario
    file: PathBuf,
    /// GGUF path, hf:ORG/REPO/FILE.gguf from the local cache, or the bundled `understudy`
    #[arg(long, default_value = "understudy", value_name = "PATH")]
    model: String,
    /// Formats of cached keys and values: auto (the family's own), f16, q8, q4, or a file of `kv-config`
    #[arg(long, default_value = "auto", value_name = "KV")]
    kv: Kv,
    /// Root of all turns' seeds
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Give a variable another value (repeatable)
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_yaml::Value)>,
    /// Most tokens of a reply
    #[arg(long, default_value_t = 80, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.7, value_name = "T", value_parser = non_negative)]
    temperature: f32,
    /// Sample from the K most likely tokens (0: all)
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: usize,
    /// Sample from the smallest set that reaches this probability
    #[arg(long, default_value_t = 0.95, value_name = "P", value_parser = non_negative)]
    top_p: f32,
    /// Drop tokens less likely than this share of the best
    #[arg(long, default_value_t = 0.05, value_name = "P", value_parser = non_negative)]
    min_p: f32,
    /// 1 is off
    #[arg(long, default_value_t = 1.1, value_name = "R", value_parser = non_negative)]
    repetition_penalty: f32,
    /// Folder for the record [default: runs/ID-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    memories: Memories,
    /// RAM for memories, e.g. 512M; 0 restores every agent from disk at each turn [default: half of what is free beside the
    /// model]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_memory: Option<u64>,
    /// Bytes that all memories may take on disk: the least worthy ones go when a run begins and ends (see `cache gc`)
    /// [default: no bound]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_disk: Option<u64>,
    /// Share nothing with runs of other tenants in the same cache folder
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    tenant: String,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Drop every cache before each turn
    #[arg(long)]
    cold: bool,
    /// Go on with an interrupted run (the latest of this scenario, or --out)
    #[arg(long)]
    resume: bool,
    /// Begin with the memories of an earlier run
    #[arg(long = "continue", value_name = "RUN")]
    continues: Option<PathBuf>,
    /// Print nothing but the transcript's path
    #[arg(long, short)]
    quiet: bool,
}

fn non_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("expected a number of at least 0".into()),
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let Some(scenario) = open_scenario(&args.file, &args.overrides, args.quiet)? else {
        return Ok(Exit::Invalid);
    };
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => default_folder(Path::new("runs"), &scenario.id, args.resume),
    };
    refuse_to_overwrite(&folder, args.resume)?;
    let backend = Arc::new(Embedded::open(&config(&args)?, &mut loading(args.quiet))?);
    let options = RunOptions {
        seed: args.seed,
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
            ..Sampling::default()
        },
        max_tokens: args.max_tokens as usize,
        cold: args.cold,
        resume: args.resume,
        continues: args.continues.clone(),
        model: args.model.clone(),
    };
    let mut watch = watcher(&scenario, args.quiet);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let performed =
        runtime.block_on(perform(&scenario, backend, &folder, &options, watch.as_mut(), stopped()));
    drop(watch);
    // A human who is being asked can't be called off: nobody waits for that.
    runtime.shutdown_background();
    let performed = performed.inspect_err(|_| eprintln!("{}", resume_hint(&args, &folder)))?;
    finish(&args, &folder, &scenario, &performed);
    Ok(match &performed.end {
        End::Stopped => Exit::Stopped,
        End::Complete(footer) if footer.assertions.iter().any(|assertion| !assertion.holds) => {
            Exit::AssertionFailed
        }
        End::Complete(_) => Exit::Pass,
    })
}

async fn stopped() {
    // Where signals can't be had, nothing stops the run but the shell.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn watcher(scenario: &Arc<Scenario>, quiet: bool) -> Box<dyn Watch> {
    if quiet {
        return Box::new(Unwatched);
    }
    let mut dialogue = Dialogue::new(scenario.clone(), Arc::new(compile(scenario)));
    dialogue.title();
    Box::new(dialogue)
}

fn finish(args: &Args, folder: &Path, scenario: &Scenario, performed: &Performed) {
    if let End::Complete(footer) = &performed.end {
        let results = terminal::results(scenario, footer, terminal::is_fancy());
        let failed = footer.assertions.iter().any(|assertion| !assertion.holds);
        match args.quiet {
            false if !results.is_empty() => print!("\n{results}"),
            true if failed => eprint!("{results}"),
            _ => {}
        }
    }
    if args.quiet {
        println!("{}", performed.transcript.display());
    } else {
        println!("\n{}", terminal::summary(&performed.summary));
        let (n, all, ms) = (performed.n_written, performed.n_turns, performed.summary.wall_ms);
        let turns = match &performed.end {
            End::Stopped => format!("{n} of at most {all} turns"),
            End::Complete(footer) if footer.skipped > 0 => format!("{n} turns ({} skipped)", footer.skipped),
            End::Complete(_) => format!("{n} turns"),
        };
        println!("\n{turns} in {:.1} s: {}", ms / 1e3, performed.transcript.display());
    }
    if performed.end == End::Stopped {
        eprintln!("stopped; {}", resume_hint(args, folder));
    }
}

fn resume_hint(args: &Args, folder: &Path) -> String {
    format!(
        "go on with: greenroom run {} --resume --out {} (and the same settings)",
        args.file.display(),
        folder.display()
    )
}

fn config(args: &Args) -> anyhow::Result<EmbeddedConfig> {
    let model = locate(&args.model)?;
    Ok(EmbeddedConfig {
        kv: args.kv.clone(),
        cache_dir: cache_dir(&args.memories)?,
        cache_key: args.memories.key()?,
        tenant: args.tenant.clone(),
        cache_disk: args.cache_disk,
        cache_memory: args.cache_memory.unwrap_or_else(|| share_of_free_memory(&model)),
        threads: args.threads.map(usize::from),
        self_check: true,
        ..EmbeddedConfig::new(model)
    })
}

/// Half of the memory that is free beside the model; a container's limit counts.
fn share_of_free_memory(model: &ModelFile) -> u64 {
    const LEAST: u64 = 256 << 20;
    let file = match model {
        ModelFile::Path(path) => std::fs::metadata(path).map_or(0, |file| file.len()),
        ModelFile::Understudy => 0,
    };
    let Ok(mut system) = sysinfo::System::new() else { return LEAST };
    system.refresh_memory();
    let free =
        system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory).min(system.available_memory());
    (free.saturating_sub(file) / 2).max(LEAST)
}

/// The folder that was asked for must be writable; where none was, memories may stay in RAM.
fn cache_dir(memories: &Memories) -> anyhow::Result<Option<PathBuf>> {
    let given = memories.cache_dir.as_deref();
    let Some(folder) = memories.folder() else {
        tracing::warn!("no home folder: memories stay in RAM and end with this run (--cache-dir keeps them)");
        return Ok(None);
    };
    match (writable(&folder), given) {
        (Ok(()), _) => Ok(Some(folder)),
        (Err(error), Some(_)) => {
            Err(error).with_context(|| format!("can't write to --cache-dir {}", folder.display()))
        }
        (Err(error), None) => {
            tracing::warn!(
                "can't write to {}: {error}; memories stay in RAM and end with this run (--cache-dir keeps them)",
                folder.display()
            );
            Ok(None)
        }
    }
}

fn writable(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(&probe)?;
    std::fs::remove_file(&probe)
}

/// `runs/ID-N`: the first that is free, or the latest to go on with.
fn default_folder(runs: &Path, id: &str, resume: bool) -> PathBuf {
    let folder = |n: usize| runs.join(format!("{id}-{n}"));
    let free = (1..).find(|n| !folder(*n).exists()).unwrap_or(1);
    folder(if resume { free.saturating_sub(1).max(1) } else { free })
}

fn refuse_to_overwrite(folder: &Path, resume: bool) -> anyhow::Result<()> {
    let file = folder.join(crate::transcript::FILE);
    if !resume && file.exists() {
        anyhow::bail!(
            "{} holds a run already: go on with it by --resume, or choose another folder with --out",
            file.display()
        );
    }
    Ok(())
}

/// Says that a model is being converted, on a terminal.
fn loading(quiet: bool) -> impl FnMut(u64, u64) {
    let show = !quiet && console::Term::stderr().is_term();
    let bar = if show { indicatif::ProgressBar::new(0) } else { indicatif::ProgressBar::hidden() };
    let style = indicatif::ProgressStyle::with_template("loading {wide_bar} {bytes} of {total_bytes}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}
