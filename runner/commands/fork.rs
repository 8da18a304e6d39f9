//! `greenroom fork`: plays on from a turn of a run in another way.

use super::casting;
use super::claimed::Claimed;
use super::machine::Machine;
use super::play::Performance;
use super::resume::go_on;
use super::run::refuse_other;
use super::sampling::number;
use super::{Exit, Whereabouts};
use crate::backend::Sampling;
use crate::experiment;
use crate::replay::{is_own_copy, load_with, other_scenario, transcript_file};
use crate::run::{Changes, ForkFrom, RunOptions, Say, Seeding, Tell};
use crate::scenario::{Hints, parse_override};
use crate::terminal::is_fancy;
use crate::transcript::{self, Transcript};
use std::path::PathBuf;

/// Continue a run differently from a given turn; everything before it stays
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom fork runs/prisoners-dilemma-1 --at yard --seed 8\n\
                        greenroom fork runs/prisoners-dilemma-1 --say \"yard/1/marco=I said nothing.\" \
                        --tell \"danny@two_sheets=The guard nods.\"\nThe original run is not changed.")]
pub(super) struct Args {
    /// The run: its folder or transcript
    run: PathBuf,
    /// First turn to play again: its path (yard/1/marco), or a phase [default: the first turn in --say
    /// or --tell]
    #[arg(long, value_name = "TURN", required_unless_present_any = ["said", "told"])]
    at: Option<String>,
    /// Replace what a turn's speaker says; for a choice, one of its options (repeatable)
    #[arg(long = "say", value_name = "TURN=TEXT", value_parser = parse_say)]
    said: Vec<Say>,
    /// Show this line before that turn to the cast of its phase, or to one AGENT only (repeatable)
    #[arg(long = "tell", value_name = "[AGENT@]TURN=TEXT", value_parser = parse_tell)]
    told: Vec<Tell>,
    /// Set a variable to another value from there on (repeatable); it must not change anything read before
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_json::Value)>,
    /// Root seed from there on [default: the run's]
    #[arg(long)]
    seed: Option<u64>,
    /// Temperature from there on; 0 is greedy [default: the run's]
    #[arg(long, value_name = "T", value_parser = number("temperature"))]
    temperature: Option<f32>,
    /// Maximum tokens in a reply from there on [default: the run's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    pub(super) machine: Machine,
    #[command(flatten)]
    near: Whereabouts,
    /// Folder for the results [default: runs/ID-N]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue an interrupted fork (the latest run of this scenario, or --out)
    #[arg(long)]
    resume: bool,
    /// Let agents call the programs and servers that the scenario declares as tools; they run with your
    /// permissions
    #[arg(long)]
    allow_tools: bool,
    /// Also print what each agent's turns cost: tokens reused and computed, times to first token, bytes
    #[arg(long, conflicts_with = "quiet")]
    stats: bool,
    /// Print only the path of the transcript
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let file = transcript_file(&args.run);
    let header = Transcript::open(&file)?.header.record;
    let loaded = load_with(&file, &header, &args.near.clone().into(), &args.overrides)?;
    let Some(scenario) = loaded.scenario else {
        eprint!("{}", loaded.report.render(is_fancy()));
        return Ok(Exit::Invalid);
    };
    let near = args.near.clone().into();
    if let Some(note) = other_scenario(&file, &header, &near) {
        eprintln!("note: {note}");
    }
    let named = is_own_copy(&file, &scenario).then(|| header.scenario.path.clone());
    let claimed = Claimed::of(args.out.as_deref(), &scenario.id, args.resume)?;
    let folder = claimed.folder.clone();
    refuse_other(&folder, transcript::FILE, experiment::FILE, args.resume)?;
    let temperature = args.temperature.unwrap_or(header.sampling.temperature);
    let sampling = Sampling { temperature, ..header.sampling };
    let of_models = header.models.into_iter().map(|(name, of)| (name, of.sampling));
    let recorded = [(String::new(), sampling)].into_iter().chain(of_models).collect();
    let own = if args.resume { folder.as_path() } else { &args.run };
    let earlier = [own, &args.run];
    let options = RunOptions {
        seed: args.seed.unwrap_or(header.seed),
        sampling: Hints::default(),
        max_tokens: args.max_tokens.map_or(header.max_tokens, |most| most as usize),
        seeding: Seeding::ByCase, // a fork keeps that of its run
        cold: false,
        resume: args.resume,
        continues: None,
        fork: Some(ForkFrom {
            run: args.run.clone(),
            at: args.at.clone(),
            changes: Changes { said: args.said, tells: args.told },
        }),
        root: args.near.bounds.root.clone(),
        named,
        models: casting::models(&args.machine.model.given, &scenario, &earlier)?,
        given: header.given.unwrap_or_default(),
        allow_tools: args.allow_tools,
        functions: args.machine.host.functions.clone(),
        recorded,
        control: args.machine.host.control(),
    };
    let go_on = go_on(&folder, args.out.is_some());
    Performance { scenario, options, folder, quiet: args.quiet, stats: args.stats, watch: None, go_on }
        .play(&args.machine)
}

/// `TURN=TEXT`.
fn parse_say(text: &str) -> Result<Say, String> {
    let (turn, text) =
        text.split_once('=').ok_or("expected TURN=TEXT, e.g. \"yard/1/marco=I said nothing.\"")?;
    Ok(Say { turn: turn.trim().to_string(), text: text.to_string() })
}

/// `TURN=TEXT` or `AGENT@TURN=TEXT`.
fn parse_tell(text: &str) -> Result<Tell, String> {
    let expected = "expected TURN=TEXT or AGENT@TURN=TEXT, e.g. \"marco@yard/1/danny=The guard nods.\"";
    let (place, text) = text.split_once('=').ok_or(expected)?;
    let (to, before) = match place.split_once('@') {
        Some((agent, turn)) => (Some(agent.trim().to_string()), turn),
        None => (None, place),
    };
    Ok(Tell { before: before.trim().to_string(), to, text: text.to_string() })
}
