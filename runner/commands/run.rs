//! `greenroom run`: plays a scenario, once or many times.

use super::casting;
use super::claimed::Claimed;
use super::grouping::GroupingArgs;
use super::machine::Machine;
use super::play::Performance;
use super::repeat::Experiment;
use super::resume::{self, Resumed, resumed};
use super::sampling::SamplingArgs;
use super::{Exit, PathBounds, open_scenario};
use crate::diagnostic::printable;
use crate::experiment::{self, CASE, Design, Sweep, Tuning, Variant, combinations, parse_sweep};
use crate::replay::transcript_file;
use crate::run::{MAX_TOKENS, RunOptions, Seeding};
use crate::scenario::{Case, Given, Hints, Overrides, Scenario, parse_cast, parse_override};
use crate::stage::Control;
use crate::trace;
use crate::transcript::{self, Transcript};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Play a scenario: show the dialogue on the terminal, and write the results to a folder
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom run scenarios/prisoners-dilemma.yaml --seed 7 --set only_silent=20 \
                  --out runs/seven"
)]
pub(super) struct Args {
    /// The scenario, or with --resume the folder of the run
    file: PathBuf,
    /// Root seed; the seed of each turn is derived from it
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Set a variable to another value (repeatable)
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_json::Value)>,
    /// File with the `agents` of a scenario that has none
    #[arg(long, value_name = "FILE", value_parser = parse_cast)]
    agents: Option<(String, serde_json::Value)>,
    /// Play N times, run i with seed S+i, and summarize in tables, intervals and plots (docs/experiments.md)
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "continues"
    )]
    repeat: Option<u32>,
    /// Do so for each of these values of a variable (repeatable: all combinations), with the same seeds; also
    /// for `model`, `model.NAME`, `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`,
    /// `max_tokens`
    #[arg(long = "sweep", value_name = "K=V,V,…", value_parser = parse_sweep, conflicts_with = "continues")]
    sweeps: Vec<Sweep>,
    /// Play one of the scenario's `cases`, by name or number [default: play all of them once]
    #[arg(long, value_name = "N|NAME")]
    case: Option<String>,
    /// Play the K-th of N parts of these runs; other machines play the others, and `merge` joins their
    /// folders
    #[arg(long, value_name = "K/N", requires = "out")]
    shard: Option<experiment::Shard>,
    #[command(flatten)]
    grouping: GroupingArgs,
    /// Runs to play at once; the results do not depend on it [default: 4; 1 if a human plays]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[command(flatten)]
    pub(super) machine: Machine,
    /// Maximum tokens in a reply [default: the scenario's, else 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Folder for the results [default: runs/ID-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Drop every cache before each turn
    #[arg(long)]
    cold: bool,
    /// Continue an interrupted run (the latest of this scenario, or --out)
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    bounds: PathBounds,
    /// Begin with the memories of an earlier run
    #[arg(long = "continue", value_name = "RUN")]
    continues: Option<PathBuf>,
    /// Let agents call the programs and servers that the scenario declares as tools; they run with your
    /// permissions
    #[arg(long)]
    allow_tools: bool,
    /// Also show the run on a web page, for a browser on this machine; there it can be paused, stepped and
    /// stopped, and humans may answer
    #[arg(
        long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:8081",
        conflicts_with_all = ["repeat", "sweeps"]
    )]
    watch: Option<SocketAddr>,
    /// Also print what each agent's turns cost: tokens reused and computed, times to first token, bytes
    #[arg(long, conflicts_with_all = ["quiet", "repeat", "sweeps"])]
    stats: bool,
    /// Print only the path of the transcript, or of the experiment's folder
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(mut args: Args) -> anyhow::Result<Exit> {
    args.overrides.extend(args.agents.take());
    if let Some(wanted) = args.case.take().filter(|_| !args.file.is_dir()) {
        let Some(case) = case(&args, &wanted)? else { return Ok(Exit::Invalid) };
        args.overrides.splice(0..0, case);
    }
    let out = resume::folder(&args.file, args.out.as_deref(), args.resume)?;
    let goes_on = args.resume && args.repeat.is_none() && args.sweeps.is_empty();
    let begun_in = |folder: &Path| resumed(folder, &args.file, &args.bounds, &args.overrides, args.quiet);
    let mut begun = out.as_deref().filter(|_| goes_on).map(begun_in).transpose()?.flatten();
    let opened = match &begun {
        Some(Resumed { scenario, .. }) => Some(scenario.clone()),
        None => open_scenario(&args.file, &args.bounds, &args.overrides, args.quiet)?,
    };
    let Some(mut scenario) = opened else {
        return Ok(Exit::Invalid);
    };
    let claimed = Claimed::of(out.as_deref(), &scenario.id, args.resume)?;
    let folder = claimed.folder.clone();
    if goes_on && out.is_none() {
        begun = begun_in(&folder)?;
    }
    if let Some(begun) = &begun {
        scenario = begun.scenario.clone();
    }
    // Runs of a resumed experiment are below its folder.
    let runs: Vec<PathBuf> = if args.resume { runs_in(&folder) } else { Vec::new() };
    if let Some(by_rules) = runs.first().filter(|_| begun.is_none()).and_then(|run| rules_of(run)) {
        // All of its runs follow the same rules.
        args.overrides.insert(0, by_rules);
        let opened = open_scenario(&args.file, &args.bounds, &args.overrides, true)?;
        let Some(reopened) = opened else { return Ok(Exit::Invalid) };
        scenario = reopened;
    }
    let earlier: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
    let has_cases = plays_cases(&scenario);
    let seeding = match &begun {
        Some(begun) => Seeding::Recorded(begun.case.clone()),
        None if args.resume && has_cases => seeding_in(&folder, false, args.quiet)?,
        None if args.resume && scenario.case().is_some() => seeding_in(&folder, true, args.quiet)?,
        None => Seeding::ByCase,
    };
    let options = RunOptions {
        seed: args.seed,
        sampling: args.sampling.given(),
        max_tokens: args.max_tokens.unwrap_or(MAX_TOKENS) as usize,
        cold: args.cold,
        resume: args.resume,
        continues: args.continues.clone(),
        fork: None,
        root: args.bounds.root.clone(),
        seeding,
        named: begun.map(|begun| begun.named),
        models: casting::models(&args.machine.model.given, &scenario, &earlier)?,
        given: given_settings(&args),
        allow_tools: args.allow_tools,
        functions: args.machine.host.functions.clone(),
        recorded: BTreeMap::new(),
        control: args.machine.host.control(),
    };
    let go_on = resume::go_on(&folder, out.is_some());
    if has_cases && args.continues.is_some() {
        eprintln!("error: --continue allows one run only; choose a case with --case");
        return Ok(Exit::Invalid);
    }
    if has_cases && args.watch.is_some() {
        eprintln!("error: --watch shows one run only; choose a case with --case");
        return Ok(Exit::Invalid);
    }
    if args.repeat.is_none() && args.sweeps.is_empty() && !has_cases {
        if args.shard.is_some() {
            eprintln!("error: --shard needs several runs; add --repeat or --sweep");
            return Ok(Exit::Invalid);
        }
        if let Some(flag) = args.grouping.given() {
            eprintln!("error: {flag} needs several runs; add --repeat or --sweep");
            return Ok(Exit::Invalid);
        }
        refuse_other(&folder, transcript::FILE, experiment::FILE, args.resume)?;
        let control = if args.watch.is_some() { Control::remote(true) } else { options.control.clone() };
        let performance = Performance {
            scenario,
            options: RunOptions { control, ..options },
            folder,
            quiet: args.quiet,
            stats: args.stats,
            watch: args.watch,
            go_on,
        };
        return performance.play(&args.machine);
    }
    refuse_other(&folder, experiment::FILE, transcript::FILE, args.resume)?;
    let n = args.repeat.unwrap_or(1);
    let Some(design) = design(&args, options, n)? else { return Ok(Exit::Invalid) };
    if design.has_humans() && args.jobs.is_some_and(|jobs| jobs > 1) {
        eprintln!("error: a human can play in only one run at a time; remove --jobs");
        return Ok(Exit::Invalid);
    }
    let grouping = match args.grouping.of(design.cells.iter().map(|cell| &*cell.scenario)) {
        Ok(grouping) => grouping,
        Err(mistake) => {
            eprintln!("error: {mistake}");
            return Ok(Exit::Invalid);
        }
    };
    let experiment = Experiment {
        design,
        grouping,
        folder,
        jobs: usize::from(args.jobs.unwrap_or(4)),
        quiet: args.quiet,
        go_on,
    };
    experiment.play(&args.machine)
}

/// What the random numbers of an experiment of cases depend on: as in the runs that are in its folder
/// already.
fn seeding_in(folder: &Path, is_of_one: bool, quiet: bool) -> anyhow::Result<Seeding> {
    if !experiment::shares_seeds(folder, is_of_one)? {
        return Ok(Seeding::ByCase);
    }
    if !quiet {
        let shown = folder.display().to_string();
        eprintln!(
            "note: an earlier version began the experiment in {}; in its runs, all cases share random \
             numbers, so their results are not independent. It continues in the same way. For independent \
             cases, play it again in another folder",
            printable(&shown)
        );
    }
    Ok(Seeding::Recorded(None))
}

/// The override with which the scenario of a run is read, if an earlier version began it. (A run that can't
/// be read is reported when it is resumed.)
fn rules_of(run: &Path) -> Option<(String, serde_json::Value)> {
    Transcript::open_begun(&transcript_file(run)).ok()??.header.record.read_with()
}

/// Names of the settings given on the command line.
fn given_settings(args: &Args) -> Given {
    let hints = Hints { max_tokens: args.max_tokens.map(|n| n as usize), ..args.sampling.given() };
    hints.names().map(str::to_string).collect()
}

/// The run in a folder, or those of the experiment in it.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let is_run = |folder: &Path| folder.join(trace::FILE).is_file();
    let below = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        folders
    };
    let first = || {
        // Cells differ only in the swept values.
        let cells = [vec![folder.to_path_buf()], below(folder)].concat();
        cells.iter().flat_map(|cell| below(cell)).find(|run| is_run(run))
    };
    if is_run(folder) { vec![folder.to_path_buf()] } else { first().into_iter().collect() }
}

/// True for a scenario that is played once for each of its cases.
fn plays_cases(scenario: &Scenario) -> bool {
    scenario.case().is_none() && scenario.cases.is_some()
}

/// The overrides of a case's run. `None`: there is no case of this name, or the scenario can't be played.
fn case(args: &Args, wanted: &str) -> anyhow::Result<Option<Overrides>> {
    let Some(scenario) = open_scenario(&args.file, &args.bounds, &args.overrides, true)? else {
        return Ok(None);
    };
    match scenario.case_of(wanted) {
        Ok(case) => Ok(Some(case.overrides())),
        Err(mistake) => {
            eprintln!("error: --case {wanted}: {mistake}");
            Ok(None)
        }
    }
}

/// All cells with their scenarios, with each warning printed once. `None`: one of them can't be played.
fn design(args: &Args, options: RunOptions, n: u32) -> anyhow::Result<Option<Design>> {
    let Some(plain) = open_scenario(&args.file, &args.bounds, &args.overrides, true)? else {
        return Ok(None);
    };
    let cases: Vec<Option<&Case>> = match &plain.cases {
        Some(cases) if plays_cases(&plain) => cases.iter().map(Some).collect(),
        _ => vec![None],
    };
    let swept = combinations(&args.sweeps);
    let all = cases.into_iter().flat_map(|case| swept.iter().cloned().map(move |swept| (case, swept)));
    let mut cells = Vec::new();
    for (case, swept) in all {
        let (variables, tuning) = match Tuning::of(&plain, &swept) {
            Ok(tuned) => tuned,
            Err(mistake) => {
                eprintln!("error: {mistake}");
                return Ok(None);
            }
        };
        let of_case = case.map(Case::overrides).unwrap_or_default();
        let overrides: Overrides = of_case.iter().chain(&args.overrides).chain(&variables).cloned().collect();
        let Some(mut scenario) = open_scenario(&args.file, &args.bounds, &overrides, true)? else {
            case.inspect(|case| eprintln!("in the case `{}`", case.name));
            return Ok(None);
        };
        Arc::get_mut(&mut scenario).into_iter().for_each(|own| own.sources.share(&plain.sources));
        let name = case.map(|case| (CASE.to_string(), case.name.clone().into()));
        let values = name.into_iter().chain(swept).collect();
        cells.push(Variant { values, scenario, tuning });
    }
    let seeds: Option<Vec<u64>> = (0..u64::from(n)).map(|i| options.seed.checked_add(i)).collect();
    let seeds = seeds.with_context(|| format!("--seed {} is too large for {n} seeds", options.seed))?;
    Ok(Some(Design { cells, seeds, options, shard: args.shard }))
}

/// A folder that holds a run (or an experiment) is continued only on request, and only as the same kind.
pub(super) fn refuse_other(folder: &Path, own: &str, other: &str, resume: bool) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.join(other).exists() {
        let (found, help) = match other {
            experiment::FILE => ("an experiment", "give its --repeat and --sweep"),
            _ => ("a single run", "remove --repeat and --sweep"),
        };
        anyhow::bail!("{shown} contains {found}; {help}, or choose another folder with --out");
    }
    if !resume && folder.join(own).exists() {
        anyhow::bail!(
            "{shown} already contains a run; continue it with --resume, or choose another folder with --out"
        );
    }
    Ok(())
}
