//! `greenroom man`: a man page for each command.

use super::{Cli, Exit};
use crate::files;
use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_mangen::Man;
use std::path::{Path, PathBuf};

/// Write man pages of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom man ~/.local/share/man/man1")]
pub(super) struct Args {
    /// The folder; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let n_pages = write(&program, folder)?;
    println!("{n_pages} man pages are in {}", folder.display());
    Ok(Exit::Pass)
}

/// Writes the pages of a command and of those below it, and counts them.
fn write(command: &clap::Command, folder: &Path) -> anyhow::Result<usize> {
    let mut n_pages = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        n_pages += write(below, folder)?;
    }
    let (page, mut text) = (Man::new(command.clone()), Vec::new());
    page.render(&mut text)?;
    files::write(&folder.join(page.get_filename()), text)?;
    Ok(n_pages)
}
