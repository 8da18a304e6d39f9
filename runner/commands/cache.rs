//! `greenroom cache`: what the agents remember on disk.

use super::{Exit, default_cache_dir};
use crate::terminal::{bytes, table};
use anyhow::Context as _;
use greenroom_engine::cache;
use std::path::PathBuf;

/// List, remove or verify the memories on disk
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom cache ls\n         greenroom cache rm --agent marco")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
    /// The cache folder [default: the user's]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List memories: whose, of which run, how large
    Ls,
    /// Remove memories by id, run or agent
    Rm {
        /// Beginnings of ids or of runs' names
        ids: Vec<String>,
        /// Memories of this agent
        #[arg(long, value_name = "KEY")]
        agent: Option<String>,
        /// All memories
        #[arg(long)]
        all: bool,
    },
    /// Read every file and check every checksum
    Verify,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = args.cache_dir.or_else(default_cache_dir).context("no home folder: give --cache-dir")?;
    if !folder.exists() {
        println!("{}: nothing is cached there", folder.display());
        return Ok(Exit::Pass);
    }
    match args.action {
        Action::Ls => {
            let mut entries = cache::list(&folder)?;
            entries
                .sort_by(|a, b| (&a.session.run, &a.session.agent).cmp(&(&b.session.run, &b.session.agent)));
            let rows = entries.iter().map(row).collect();
            println!(
                "{}",
                table(&["id", "run", "agent", "model", "kv", "tokens", "size", "shared"], rows, 5)
            );
            let total: u64 = entries.iter().map(|e| e.bytes.saturating_sub(e.shared_bytes)).sum();
            println!("{} memories in {}, {} not shared", entries.len(), folder.display(), bytes(total));
            Ok(Exit::Pass)
        }
        Action::Rm { ids, agent, all } => {
            anyhow::ensure!(
                all || agent.is_some() || !ids.is_empty(),
                "say what to remove: ids, --agent KEY or --all"
            );
            let named = |entry: &cache::Entry| {
                let mut ids = ids.iter().filter(|id| !id.is_empty());
                ids.any(|id| entry.id.starts_with(id.as_str()) || entry.session.run.starts_with(id.as_str()))
            };
            let of = |entry: &cache::Entry| agent.as_ref().is_some_and(|key| entry.session.agent == *key);
            let (n, freed) = cache::remove(&folder, &|entry| all || named(entry) || of(entry))?;
            println!("removed {n} memories, {} freed", bytes(freed));
            Ok(Exit::Pass)
        }
        Action::Verify => {
            let verdict = cache::verify(&folder)?;
            verdict.problems.iter().for_each(|problem| println!("{problem}"));
            println!("{} files read, {} problems", verdict.files, verdict.problems.len());
            Ok(if verdict.problems.is_empty() { Exit::Pass } else { Exit::Environment })
        }
    }
}

fn row(entry: &cache::Entry) -> Vec<String> {
    let short = |text: &str| text.chars().take(12).collect::<String>();
    vec![
        short(&entry.id),
        short(&entry.session.run),
        entry.session.agent.clone(),
        entry.model.clone(),
        entry.format.clone(),
        entry.tokens.to_string(),
        bytes(entry.bytes),
        bytes(entry.shared_bytes),
    ]
}
