//! `greenroom fork`: plays on from a turn of a run in another way.

use super::casting;
use super::machine::Machine;
use super::play::Performance;
use super::run::{Claimed, refuse_other};
use super::{Exit, Whereabouts};
use crate::backend::Sampling;
use crate::experiment;
use crate::replay::{load_with, transcript_file};
use crate::run::{ForkFrom, RunOptions};
use crate::scenario::parse_override;
use crate::terminal::is_fancy;
use crate::transcript::{self, Transcript};
use std::path::PathBuf;

/// Play on from a turn of a run in another way: what comes before it is taken from the recording and the agents' memories
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom fork runs/prisoners-dilemma-1 --at two_sheets --set only_silent=20\n\
The run that it comes from stays as it is."
)]
pub(super) struct Args {
    /// The run: its folder or transcript
    run: PathBuf,
    /// The first turn to play anew: its path (yard/1/marco), or a phase's name
    #[arg(long, value_name = "TURN")]
    at: String,
    /// Give a variable another value from there on (repeatable); it must change nothing that was read before
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_json::Value)>,
    /// Root of the seeds of turns from there on [default: the run's own]
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    near: Whereabouts,
    /// Folder for the record [default: runs/ID-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with an interrupted fork (the latest run of this scenario, or --out)
    #[arg(long)]
    resume: bool,
    /// Print nothing but the transcript's path
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let file = transcript_file(&args.run);
    let header = Transcript::open(&file)?.header.record;
    let loaded = load_with(&file, &header, &args.near.clone().into(), &args.overrides)?;
    let Some(scenario) = loaded.scenario else {
        eprint!("{}", loaded.report.render(is_fancy()));
        return Ok(Exit::Invalid);
    };
    let claimed = Claimed::of(args.out.as_deref(), &scenario.id, args.resume)?;
    let folder = claimed.folder.clone();
    refuse_other(&folder, transcript::FILE, experiment::FILE, args.resume)?;
    let recorded = header.models.into_iter().map(|(name, of)| (name, Sampling::from(of.sampling)));
    let own = if args.resume { folder.as_path() } else { &args.run };
    let earlier = [own, &args.run];
    let options = RunOptions {
        seed: args.seed.unwrap_or(header.seed),
        sampling: Sampling::from(header.sampling).into(),
        max_tokens: header.max_tokens,
        cold: false,
        resume: args.resume,
        continues: None,
        fork: Some(ForkFrom { run: args.run.clone(), at: args.at.clone() }),
        root: args.near.bounds.root.clone(),
        models: casting::models(&args.machine.model.given, &scenario, &earlier)?,
        given: header.given.unwrap_or_default(),
        recorded: recorded.collect(),
    };
    let (run, at, out) = (args.run.display(), &args.at, folder.display());
    let go_on =
        format!("go on with: greenroom fork {run} --at {at} --resume --out {out} (and the same settings)");
    Performance { scenario, options, folder, quiet: args.quiet, go_on }.play(&args.machine)
}
