//! The commands of the program, one file each, and what they share: exit codes and the model argument.

// The standard macros panic on a closed pipe (`greenroom check … | head`) or a full disk; in the commands
// they are shadowed by these, which leave that to `terminal::output`.
macro_rules! print {
    ($($text:tt)*) => { crate::terminal::output::out(&format!($($text)*)) };
}
macro_rules! println {
    () => { crate::terminal::output::out("\n") };
    ($($text:tt)*) => { crate::terminal::output::out(&(format!($($text)*) + "\n")) };
}
macro_rules! eprint {
    ($($text:tt)*) => { crate::terminal::output::err(&format!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { crate::terminal::output::err(&(format!($($text)*) + "\n")) };
}

mod cache;
mod call;
mod casting;
mod check;
mod claimed;
mod completions;
mod devices;
mod diff;
mod explain;
mod fork;
mod graph;
mod grouping;
mod host;
mod import;
mod lsp;
mod machine;
mod man;
mod merge;
mod migrate;
mod models;
mod new;
mod play;
mod pull;
mod repeat;
mod replay;
mod report;
mod resume;
mod review;
mod run;
mod sampling;
mod schema;
mod serve;
mod stop;
mod watch;

pub use call::{Called, Opened, call, open};
pub use host::{EventSink, Host, RunSink};

use crate::backend::{CacheKey, ObjectsAddress};
use crate::diagnostic::Severity;
use crate::files::{self, FileKind};
use crate::rehearsal;
use crate::replay::Search;
use crate::run::FailedTwice;
use crate::scenario::{Loaded, Overrides, Scenario};
use crate::terminal::{counted, is_fancy, output, printable};
use anyhow::Context as _;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Exit code of a command; scripts may rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Pass = 0,
    /// An assertion of the scenario failed.
    AssertionFailed = 1,
    /// The scenario (or the command line) is wrong.
    Invalid = 2,
    /// A recording does not match.
    Drift = 3,
    /// Anything else: a bad model, a full disk.
    Environment = 4,
    /// Stopped by Ctrl-C or SIGTERM.
    Stopped = 130,
}

/// Plays multi-agent scenarios on a local language model, with memory that is never computed twice.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, max_term_width = 100)]
#[command(after_help = "Example: greenroom run scenarios/prisoners-dilemma.yaml\n\
Exit codes: 0 pass, 1 assertion failed, 2 invalid scenario, 3 drift, 4 environment, 130 stopped")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print more details (RUST_LOG=… selects which).
    #[arg(long, short, global = true, display_order = 100)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Check(check::Args),
    New(new::Args),
    Graph(graph::Args),
    Fork(fork::Args),
    Merge(merge::Args),
    Explain(explain::Args),
    Import(import::Args),
    Migrate(migrate::Args),
    Replay(replay::Args),
    Report(report::Args),
    Review(review::Args),
    Diff(diff::Args),
    Schema(schema::Args),
    Cache(cache::Args),
    Pull(pull::Args),
    Models(models::Args),
    Devices(devices::Args),
    Serve(serve::Args),
    Lsp(lsp::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Runs `greenroom` on the process's arguments.
pub fn main() -> ExitCode {
    ExitCode::from(main_with(std::env::args_os()))
}

/// Runs the program with these arguments, the first of which is its name, and returns its exit code.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> u8 {
    program(args, grouped(Cli::command()), |cli: Cli| (cli.verbose, move || cli.command.run()))
}

/// The commands, grouped by task.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Write a scenario", &["new", "check", "graph", "schema", "import", "migrate", "lsp"]),
    ("Play a scenario", &["run", "fork", "merge"]),
    ("Inspect what happened", &["explain", "report", "diff"]),
    ("Test with recordings", &["replay", "review"]),
    ("Serve other programs", &["serve"]),
    ("Models, memories and this machine", &["pull", "models", "cache", "devices", "completions", "man"]),
];

/// Help that lists the commands in [`GROUPS`].
fn grouped(command: clap::Command) -> clap::Command {
    let header = *command.get_styles().get_header();
    let width =
        usize::from(console::Term::stdout().size_checked().map_or(100, |(_, width)| width)).clamp(40, 100);
    let line = |name: &&str| {
        let about = command.find_subcommand(name).and_then(clap::Command::get_about);
        let about = about.map_or_else(String::new, ToString::to_string);
        let options = textwrap::Options::new(width).subsequent_indent("              ");
        textwrap::fill(&format!("  {name:<11} {about}"), options)
    };
    let group = |(title, names): &(&str, &[&str])| {
        let lines: Vec<String> = names.iter().map(line).collect();
        format!("{header}{title}:{header:#}\n{}\n\n", lines.join("\n"))
    };
    let groups: String = GROUPS.iter().map(group).collect();
    let options = format!("{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{options}"))
}

/// Runs a program on the process's arguments; `of` returns whether it is verbose, and what it does.
pub fn program<C: Parser, R: FnOnce() -> anyhow::Result<Exit>>(
    args: impl IntoIterator<Item = OsString>,
    command: clap::Command,
    of: impl FnOnce(C) -> (bool, R),
) -> u8 {
    let parsed =
        command.try_get_matches_from(args).and_then(|mut matches| C::from_arg_matches_mut(&mut matches));
    let code = match parsed.map(of) {
        Ok((verbose, run)) => {
            logging(verbose);
            run().unwrap_or_else(|error| failed(&error)) as u8
        }
        Err(shown) => print_clap_error(&shown),
    };
    if let Err(error) = output::finish() {
        eprintln!("error: can't write to standard output: {error}");
        return Exit::Environment as u8;
    }
    code
}

/// The standard library's message about a number that it can't parse, and what a user needs to know.
const NUMBER_ERRORS: [(&str, &str); 5] = [
    ("invalid digit found in string", "expected a whole number of at least 0"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "expected a number"),
];

/// Prints the command line's error, or the output of `--help` and `--version`.
fn print_clap_error(shown: &clap::Error) -> u8 {
    let text = shown.render();
    if shown.use_stderr() {
        let text = if is_fancy_err() { text.ansi().to_string() } else { text.to_string() };
        eprint!("{}", NUMBER_ERRORS.iter().fold(text, |text, (of_std, ours)| text.replace(of_std, ours)));
    } else if is_fancy() {
        print!("{}", text.ansi());
    } else {
        print!("{text}");
    }
    u8::try_from(shown.exit_code()).unwrap_or(Exit::Invalid as u8)
}

impl Command {
    /// The command with what the program brings that calls it.
    fn hosted(mut self, host: Host) -> Self {
        match &mut self {
            Self::Run(args) => args.machine.host = host,
            Self::Fork(args) => args.machine.host = host,
            _ => {}
        }
        self
    }

    fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Run(args) => run::run(*args),
            Self::Check(args) => check::run(args),
            Self::New(args) => new::run(args),
            Self::Graph(args) => graph::run(args),
            Self::Fork(args) => fork::run(args),
            Self::Merge(args) => merge::run(args),
            Self::Explain(args) => explain::run(args),
            Self::Import(args) => import::run(args),
            Self::Migrate(args) => migrate::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Report(args) => report::run(args),
            Self::Review(args) => review::run(args),
            Self::Diff(args) => diff::run(args),
            Self::Schema(args) => schema::run(args),
            Self::Cache(args) => cache::run(args),
            Self::Pull(args) => pull::run(args),
            Self::Models(args) => models::run(args),
            Self::Devices(args) => devices::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Lsp(args) => lsp::run(args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

/// Prints the error.
fn failed(error: &anyhow::Error) -> Exit {
    let twice = error.downcast_ref::<FailedTwice>().map(|twice| &twice.play);
    let drift = twice.unwrap_or(error).downcast_ref::<crate::transcript::Drift>();
    eprintln!("error: {}", printable(&format!("{error:#}")));
    if let Some(drift) = drift.filter(|drift| drift.recorded != drift.now) {
        eprint!("{}", crate::terminal::show_diff(&drift.recorded, &drift.now, false));
    }
    if drift.is_some() { Exit::Drift } else { Exit::Environment }
}

fn logging(verbose: bool) {
    use tracing_subscriber::EnvFilter;
    let default = if verbose { "info,greenroom=debug,greenroom_engine=debug" } else { "warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A warning that can't be written is lost; reporting that on standard error again would end the program.
    let subscriber = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr).with_ansi(is_fancy_err());
    let subscriber = subscriber.with_target(verbose).without_time();
    // A second subscriber (in a test) is refused; the first one serves.
    let _ = subscriber.try_init();
}

/// Tells whether standard error is a terminal with colours enabled.
fn is_fancy_err() -> bool {
    !output::is_captured() && console::Term::stderr().is_term() && console::colors_enabled_stderr()
}

/// Bounds within which a scenario may lead to other files.
#[derive(Clone, Debug, clap::Args)]
struct PathBounds {
    /// Folder that must contain all files that scenarios and recordings name [default: the nearest folder
    /// with .git, else the file's own folder]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Places where a recording finds the files that it names.
#[derive(Clone, Debug, clap::Args)]
struct Whereabouts {
    /// The scenario, if it has moved
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    #[command(flatten)]
    bounds: PathBounds,
}

impl From<Whereabouts> for Search {
    fn from(args: Whereabouts) -> Self {
        Self { scenario: args.scenario, root: args.bounds.root, file_first: false }
    }
}

/// Loads a scenario file and prints its errors to standard error. `None`: it can't be played.
fn open_scenario(
    file: &Path,
    bounds: &PathBounds,
    overrides: &Overrides,
    quiet: bool,
) -> anyhow::Result<Option<Arc<Scenario>>> {
    let Loaded { scenario, report, .. } = rehearsal::open_below(file, bounds.root.as_deref(), overrides)?;
    if !quiet || scenario.is_none() {
        eprint!("{}", report.render(is_fancy_err()));
    }
    if scenario.is_none() {
        let count = |severity| report.diagnostics.iter().filter(|d| d.severity == severity).count();
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let (errors, warnings) = (counted(errors, "error"), counted(warnings, "warning"));
        eprintln!("{}: {errors}, {warnings}", file.display());
    }
    Ok(scenario)
}

/// Parses a size in bytes: `512M`, `2G`, `0`.
fn parse_size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.trim_end_matches("IB").trim_end_matches('B');
    let (number, shift) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 10),
        Some('M') => (&upper[..upper.len() - 1], 20),
        Some('G') => (&upper[..upper.len() - 1], 30),
        Some('T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let number: u64 =
        number.trim().parse().map_err(|_| format!("`{text}` is not a size; expected e.g. 512M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// The user's cache folder for greenroom.
pub fn default_cache_dir() -> Option<PathBuf> {
    dirs::cache_dir().map(|folder| folder.join("greenroom"))
}

/// The folder of the memories, and the key to read them.
#[derive(Clone, Debug, clap::Args)]
struct MemoryArgs {
    /// Where memories are kept [default: the user's cache folder]: a folder, or, in builds with the feature
    /// `objects`, an object store shared by machines: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or
    /// az://CONTAINER/FOLDER (docs/object-store.md)
    #[arg(
        long, value_name = "DIR", global = true,
        value_parser = PathBufValueParser::new().try_map(Location::new)
    )]
    cache_dir: Option<Location>,
    /// File with the secret that encrypts memories (`openssl rand -hex 32 > FILE`); or set the secret itself
    /// in the environment variable GREENROOM_CACHE_KEY
    #[arg(long, value_name = "FILE", global = true)]
    cache_key_file: Option<PathBuf>,
}

/// A place for memories.
#[derive(Clone, Debug)]
enum Location {
    Folder(PathBuf),
    Objects(ObjectsAddress),
}

impl Location {
    fn new(given: PathBuf) -> anyhow::Result<Self> {
        let Some(address) = given.to_str().filter(|text| text.contains("://")) else {
            return Ok(Self::Folder(given));
        };
        Ok(Self::Objects(address.parse()?))
    }
}

impl MemoryArgs {
    /// The folder of memories; for an object store the folder of copies.
    fn folder(&self) -> Option<PathBuf> {
        match &self.cache_dir {
            Some(Location::Folder(folder)) => Some(folder.clone()),
            Some(Location::Objects(address)) => {
                Some(default_cache_dir()?.join("objects").join(address.folder_name()))
            }
            None => default_cache_dir(),
        }
    }

    fn objects(&self) -> Option<&ObjectsAddress> {
        match &self.cache_dir {
            Some(Location::Objects(address)) => Some(address),
            _ => None,
        }
    }

    fn key(&self) -> anyhow::Result<Option<CacheKey>> {
        let (secret, from) = match (&self.cache_key_file, std::env::var("GREENROOM_CACHE_KEY")) {
            (Some(file), _) => {
                let secret = files::read_text(file, FileKind::CacheKey);
                let secret =
                    secret.with_context(|| format!("can't read --cache-key-file {}", file.display()))?;
                (secret, format!("--cache-key-file {}", file.display()))
            }
            (None, Ok(secret)) => (secret, "GREENROOM_CACHE_KEY".to_owned()),
            (None, Err(_)) => return Ok(None),
        };
        Ok(Some(CacheKey::new(&secret).context(from)?))
    }
}
