//! `greenroom-lab man`: man pages of `greenroom`, for releases.

use anyhow::Context as _;
use clap::CommandFactory as _;
use greenroom::commands::{Cli, Exit};
use std::path::PathBuf;

/// Write the man pages of greenroom into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab man dist/man")]
pub(super) struct Args {
    /// The folder; created if it does not exist
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let can_not = || format!("can't write into {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(can_not)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).with_context(can_not)?;
    println!("man pages are in {}", args.folder.display());
    Ok(Exit::Pass)
}
