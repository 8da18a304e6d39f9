//! `greenroom cache`: what the agents remember on disk.

use super::{Exit, MemoryArgs, parse_size};
use crate::terminal::{bytes, counted, printable, table};
use anyhow::Context as _;
use greenroom_engine::cache::{Details, Folder, Removed, StoredSession};
use jiff::Timestamp;

/// List, show, remove, bound or verify the memories on disk
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom cache ls\n         greenroom cache rm --scenario gossip --older-than \
                  7d\n         greenroom cache gc --max-bytes 2G"
)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    memories: MemoryArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List memories: whose, of which run, how large, how old
    #[command(after_help = "Example: greenroom cache ls --cache-dir /var/cache/greenroom")]
    Ls,
    /// Show one memory: what the agent has read and said, and where it is stored
    #[command(after_help = "Example: greenroom cache show 3f9a")]
    Show {
        /// Beginning of its id
        id: String,
    },
    /// Remove memories permanently; data shared with other memories stays until the last of them is removed
    #[command(
        after_help = "Example: greenroom cache rm --scenario gossip --older-than 7d\n         greenroom \
                      cache rm 3f9a 70c2"
    )]
    Rm(Select),
    /// Remove what no memory needs, then the least valuable memories until the folder is small enough
    ///
    /// A memory's value is the time to compute it again, times its turns, divided by the hours since the last
    /// turn and by its bytes.
    #[command(after_help = "Example: greenroom cache gc --max-bytes 2G")]
    Gc {
        /// Bytes to keep at most, e.g. 2G
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        max_bytes: u64,
    },
    /// Read every file and check every checksum; report what is damaged, missing or unknown
    #[command(after_help = "Example: greenroom cache verify")]
    Verify,
}

/// Memories that meet all that is given.
#[derive(Debug, clap::Args)]
struct Select {
    /// Ids, or the beginnings of ids
    ids: Vec<String>,
    /// Only memories of this agent
    #[arg(long, value_name = "KEY")]
    agent: Option<String>,
    /// Only memories of this scenario
    #[arg(long, value_name = "ID")]
    scenario: Option<String>,
    /// Only memories of this run (or the beginning of its name)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only memories of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only memories not used for this long, e.g. 12h, 7d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Option<u64>,
    /// All memories, including encrypted ones
    #[arg(long, conflicts_with_all = ["ids", "agent", "scenario", "run", "model", "older_than"])]
    all: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let (dir, key) =
        (args.memories.folder().context("there is no home folder; use --cache-dir")?, args.memories.key()?);
    // The command manages the objects in the store, not this machine's copies.
    let no_copies = args.memories.objects().map(|_| tempfile::tempdir()).transpose();
    let no_copies = no_copies.context("there is no folder for fetched files")?;
    let (folder, place) = match args.memories.objects().zip(no_copies.as_ref()) {
        Some((address, front)) => {
            (Folder::in_objects(address, front.path(), key.as_ref())?, address.to_string())
        }
        None if !dir.exists() => {
            println!("{}: the cache is empty", dir.display());
            return Ok(Exit::Pass);
        }
        None => (Folder::new(&dir, key.as_ref()), dir.display().to_string()),
    };
    match args.action {
        Action::Ls => {
            let entries = folder.list()?;
            let now = Timestamp::now().as_second().unsigned_abs();
            let rows = entries.iter().map(|entry| row(entry, now)).collect();
            let head =
                ["id", "scenario", "run", "agent", "model", "kv", "tokens", "size", "shared", "last used"];
            println!("{}", table(&head, rows, 6));
            let n = if entries.len() == 1 {
                "1 memory".to_owned()
            } else {
                format!("{} memories", entries.len())
            };
            println!("{n} in {place}, {} in all", bytes(folder.bytes()?));
            let others = folder.other_keys()?;
            if others > 0 {
                let others = counted(others, "part");
                println!("{others} in the folder can't be read with this key (see --cache-key-file)");
            }
        }
        Action::Show { id } => show(&folder.show(&id)?),
        Action::Rm(select) => {
            anyhow::ensure!(
                select.says_something(),
                "nothing to remove was given; expected ids, --agent, --scenario, --run, --model, \
                 --older-than, or --all"
            );
            let now = Timestamp::now().as_second().unsigned_abs();
            return Ok(report(if select.all {
                folder.clear()?
            } else {
                folder.remove(&|entry| select.picks(entry, now))?
            }));
        }
        Action::Gc { max_bytes } => {
            let exit = report(folder.shrink(max_bytes)?);
            println!("{} left in {place}", bytes(folder.bytes()?));
            return Ok(exit);
        }
        Action::Verify => {
            let verdict = folder.verify()?;
            verdict.problems.iter().for_each(|problem| println!("{}", printable(problem)));
            println!(
                "{} read, {}",
                counted(verdict.files, "file"),
                counted(verdict.problems.len(), "problem")
            );
            return Ok(if verdict.problems.is_empty() { Exit::Pass } else { Exit::Environment });
        }
    }
    Ok(Exit::Pass)
}

fn report(removed: Removed) -> Exit {
    let memories = if removed.sessions == 1 { "memory" } else { "memories" };
    println!("removed {} {memories}, {} freed", removed.sessions, bytes(removed.bytes));
    if removed.unread == 0 {
        return Exit::Pass;
    }
    println!("{} could not be read; data that may belong to it was kept", counted(removed.unread, "file"));
    Exit::Environment
}

impl Select {
    fn says_something(&self) -> bool {
        let named = [&self.agent, &self.scenario, &self.run, &self.model].iter().any(|given| given.is_some());
        self.all || named || self.older_than.is_some() || !self.ids.is_empty()
    }

    fn picks(&self, entry: &StoredSession, now: u64) -> bool {
        let (scenario, run) = run_of(entry);
        let is = |given: &Option<String>, found: &str| given.as_ref().is_none_or(|given| given == found);
        let begins =
            |beginning: &String, text: &str| !beginning.is_empty() && text.starts_with(beginning.as_str());
        (self.ids.is_empty() || self.ids.iter().any(|id| begins(id, &entry.id)))
            && is(&self.agent, &entry.session.agent)
            && is(&self.scenario, scenario)
            && self.run.as_ref().is_none_or(|name| begins(name, run) || *name == entry.session.run)
            && is(&self.model, &entry.model)
            && self.older_than.is_none_or(|age| now.saturating_sub(entry.saved_at) >= age)
    }
}

/// Scenario and name of a run, as [`crate::trace::Trace::create`] joins them.
fn run_of(entry: &StoredSession) -> (&str, &str) {
    entry.session.run.rsplit_once('-').unwrap_or(("", &entry.session.run))
}

fn show(details: &Details) {
    let Details { entry, .. } = details;
    let (scenario, run) = run_of(entry);
    let shared = details.blocks.iter().filter(|(_, owners)| *owners > 1).count();
    let rows = [
        ("id", entry.id.clone()),
        ("agent", printable(&entry.session.agent)),
        ("scenario", printable(scenario)),
        ("run", printable(run)),
        ("tenant", printable(&details.tenant)),
        ("model", format!("{} ({})", printable(&entry.model), details.model_identity)),
        ("numerics", details.numerics.clone()),
        ("kv", format!("{} (first layer)", entry.format)),
        ("last used", Timestamp::from_second(entry.saved_at as i64).map_or(String::new(), |t| t.to_string())),
        ("turns", entry.turns.to_string()),
        ("tokens", format!("{} ({:.1} s to compute again)", entry.tokens, entry.seconds)),
        (
            "blocks",
            format!("{}, {shared} of them shared, and {} tokens", details.blocks.len(), details.tail_tokens),
        ),
        ("states", if details.n_states > 0 { details.n_states.to_string() } else { String::new() }),
        ("size", format!("{}, {} of it shared", bytes(entry.bytes), bytes(entry.shared_bytes))),
    ];
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        println!("{name:<9} {value}");
    }
    for (kind, n, text) in &details.segments {
        println!("\n-- {kind}, {}", counted(*n, "token"));
        println!("{}", printable(text));
    }
}

fn row(entry: &StoredSession, now: u64) -> Vec<String> {
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let (scenario, run) = run_of(entry);
    vec![
        short(&entry.id),
        printable(scenario),
        short(&printable(run)),
        printable(&entry.session.agent),
        printable(&entry.model),
        entry.format.clone(),
        entry.tokens.to_string(),
        bytes(entry.bytes),
        bytes(entry.shared_bytes),
        age(now.saturating_sub(entry.saved_at)),
    ]
}

/// Seconds in the largest unit that fits, e.g. `3h ago`.
fn age(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let fits = units.iter().find(|(size, _)| seconds >= *size);
    fits.map_or_else(|| "now".to_owned(), |(size, unit)| format!("{}{unit} ago", seconds / size))
}

/// Parses an age: `30min`, `12h`, `7d`.
fn parse_age(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not an age; expected e.g. 30min, 12h or 7d");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?);
    let seconds = match unit {
        "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds)).ok_or_else(wrong)
}
