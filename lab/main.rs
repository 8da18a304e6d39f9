//! Measurements: the cost of a turn on this machine, and what a compressed cache costs a model.

// As in the commands of `greenroom`, `terminal::output` handles a closed pipe or a full disk.
macro_rules! print {
    ($($text:tt)*) => { greenroom::terminal::output::out(&format!($($text)*)) };
}
macro_rules! println {
    () => { greenroom::terminal::output::out("\n") };
    ($($text:tt)*) => { greenroom::terminal::output::out(&(format!($($text)*) + "\n")) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { greenroom::terminal::output::err(&(format!($($text)*) + "\n")) };
}

mod bench;
mod candle;
mod kv_config;
mod perplexity;
mod quality;
mod recall;
mod score;
mod simulate;

use clap::{CommandFactory as _, Parser, Subcommand};
use greenroom::commands::{Exit, program};

/// Measures models and machines with Greenroom's engine
#[derive(Debug, Parser)]
#[command(name = "greenroom-lab", version, max_term_width = 100)]
#[command(after_help = "Example: greenroom-lab bench prefill --model understudy")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print more details (RUST_LOG=… selects which).
    #[arg(long, short, global = true, display_order = 100)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Perplexity(perplexity::Args),
    Recall(recall::Args),
    KvConfig(kv_config::Args),
    Score(score::Args),
    Simulate(simulate::Args),
}

impl Command {
    fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Bench(args) => bench::run(args),
            Self::Perplexity(args) => perplexity::run(args),
            Self::Recall(args) => recall::run(args),
            Self::KvConfig(args) => kv_config::run(args),
            Self::Score(args) => score::run(args),
            Self::Simulate(args) => simulate::run(args),
        }
    }
}

fn main() -> std::process::ExitCode {
    program(std::env::args_os(), Cli::command(), |cli: Cli| (cli.verbose, move || cli.command.run())).into()
}
