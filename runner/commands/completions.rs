//! `greenroom completions`: lets a shell complete commands and flags.

use super::{Cli, Exit};
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

/// Print a shell script that completes commands and flags
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom completions bash > ~/.local/share/bash-completion/completions/greenroom"
)]
pub(super) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "greenroom", &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(Exit::Pass)
}
