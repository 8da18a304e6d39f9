//! `greenroom diff`: what differs between two runs.

use super::Exit;
use crate::replay::transcript_file;
use crate::terminal::{is_fancy, show_differences};
use crate::transcript::Transcript;
use crate::verify::{Difference, differences};
use std::path::PathBuf;

/// Compare two runs: settings, first difference, results (exit 3 if replies differ)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom diff runs/gossip-1 runs/gossip-2")]
pub(super) struct Args {
    /// A run: its folder or transcript
    one: PathBuf,
    /// Another run
    other: PathBuf,
    /// Show every turn that differs, not only the first
    #[arg(long)]
    all: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let one = Transcript::open(&transcript_file(&args.one))?;
    let other = Transcript::open(&transcript_file(&args.other))?;
    let found = differences(&one, &other);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        print!("{}", show_differences(&found, one.turns.len(), args.all, is_fancy()));
    }
    let differs = found.iter().any(|found: &Difference| found.what.is_said());
    Ok(if differs { Exit::Drift } else { Exit::Pass })
}
