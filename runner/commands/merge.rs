//! `greenroom merge`: joins the parts of an experiment that several machines have played.

use super::grouping::GroupingArgs;
use super::{Exit, Whereabouts, repeat};
use crate::experiment;
use anyhow::bail;
use std::path::PathBuf;

/// Merge the parts of an experiment played with `run --shard`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom merge parts/1 parts/2 parts/3 --out runs/all")]
pub(super) struct Args {
    /// Folders of the parts
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// The new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Merge even if runs are missing
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    grouping: GroupingArgs,
    #[command(flatten)]
    near: Whereabouts,
    /// Print only the folder
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let missing = experiment::missing(&args.parts)?;
    if let Some(first) = missing.first().filter(|_| !args.partial) {
        bail!(
            "{} runs are missing, the first is {}; continue the incomplete parts (--resume), or merge \
             without them (--partial)",
            missing.len(),
            first.display()
        );
    }
    let search = args.near.into();
    let (_, part) = experiment::read(&args.parts[0], &search)?;
    let grouping =
        args.grouping.of(part.runs.iter().map(|run| &*run.scenario)).map_err(anyhow::Error::msg)?;
    let n = experiment::merge(&args.parts, &args.out)?;
    let (_, sample) = experiment::read(&args.out, &search)?;
    let holds = repeat::count(&sample, &grouping, &args.out, args.quiet)?;
    if !args.quiet {
        println!("\n{n} runs: {}", args.out.display());
    }
    Ok(if holds { Exit::Pass } else { Exit::AssertionFailed })
}
