//! `greenroom replay`: compares recordings with their scenarios, with or without a model.

use super::machine::ModelArgs;
use super::{Exit, Whereabouts};
use crate::experiment::{experiments, judge as judge_experiment};
use crate::files;
use crate::terminal::{counted, is_fancy, show_verdict};
use crate::verify::forms::{github, json, junit, markdown, tally};
use crate::verify::{JudgeQuestion, JudgeSettings, Level, ProblemKind, Verdict, is_ci, recordings};
use clap::ValueEnum;
use std::path::PathBuf;
use std::sync::Arc;

/// Check recordings against their scenarios without a model (exit 3 if anything changed)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom replay scenarios/recordings --junit replay.xml\n\
The scenario is found by the path in the recording, near the transcript or in the current folder.\n\
Exit codes: 0 pass, 1 assertion failed, 2 invalid scenario, 3 drift, 4 environment. See docs/ci.md.")]
pub(super) struct Args {
    /// Recordings: run folders (checked against the copy of the scenario in them, unless --scenario is
    /// given), transcripts, or folders that contain some (checked against the scenario files)
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    near: Whereabouts,
    /// Let the model read what was said, and report where its seeded sampler would have said something else
    #[arg(long, conflicts_with = "rerun")]
    score: bool,
    /// Share of draws that may differ
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", requires = "score", value_parser = share)]
    tolerance: f64,
    /// Play again, and compare every token, only choices and payoffs, or only assertions
    #[arg(
        long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "exact"
    )]
    rerun: Option<RerunLevel>,
    /// With --rerun, let agents call programs and servers where their calls differ from the recording; they
    /// run with your permissions
    #[arg(long, requires = "rerun")]
    allow_tools: bool,
    /// Write JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a summary in Markdown, e.g. to $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, conflicts_with = "github")]
    json: bool,
    /// Also print GitHub annotations, which show each problem at its line
    #[arg(long)]
    github: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RerunLevel {
    Exact,
    Choices,
    Assertions,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let runs = recordings(&args.runs)?;
    let judge = JudgeSettings {
        search: args.near.clone().into(),
        question: question(&args)?,
        writes_pending: !is_ci(),
    };
    let mut verdicts = Vec::new();
    for run in &runs {
        let verdict = judge.judge(run);
        if !args.json {
            print!("{}", show_verdict(&verdict, is_fancy()));
        }
        verdicts.push(verdict);
    }
    for folder in experiments(&args.runs) {
        for verdict in judge_experiment(&folder, &judge.search, &verdicts) {
            if !args.json {
                print!("{}", show_verdict(&verdict, is_fancy()));
            }
            verdicts.push(verdict);
        }
    }
    if args.json {
        println!("{}", json(&verdicts)?);
    } else if verdicts.len() > 1 {
        println!("{}: {}", counted(runs.len(), "recording"), tally(&verdicts));
    }
    if args.github {
        let root = std::env::var_os("GITHUB_WORKSPACE").map(PathBuf::from);
        print!("{}", github(&verdicts, root.as_deref()));
    }
    if let Some(file) = &args.junit {
        files::write_to(file, junit(&verdicts)?)?;
    }
    if let Some(file) = &args.markdown {
        files::write_to(file, markdown(&verdicts))?;
    }
    if !judge.writes_pending && !args.json && verdicts.iter().any(|v| v.worst() == Some(ProblemKind::Drift)) {
        println!("to accept the changes: run `greenroom replay` on your machine, then `greenroom review`");
    }
    Ok(exit(&verdicts))
}

fn question(args: &Args) -> anyhow::Result<JudgeQuestion> {
    let level = match args.rerun {
        Some(RerunLevel::Exact) => Level::Exact,
        Some(RerunLevel::Choices) => Level::Choices,
        Some(RerunLevel::Assertions) => Level::Assertions,
        None if args.score => {
            let model = Arc::new(args.model.open()?);
            return Ok(JudgeQuestion::Score { model, tolerance: args.tolerance });
        }
        None => return Ok(JudgeQuestion::Nothing),
    };
    Ok(JudgeQuestion::Rerun { model: Arc::new(args.model.open()?), level, allow_tools: args.allow_tools })
}

/// The worst of all.
fn exit(verdicts: &[Verdict]) -> Exit {
    match verdicts.iter().filter_map(Verdict::worst).max() {
        None => Exit::Pass,
        Some(ProblemKind::Assertion) => Exit::AssertionFailed,
        Some(ProblemKind::Invalid) => Exit::Invalid,
        Some(ProblemKind::Drift) => Exit::Drift,
        Some(ProblemKind::Environment) => Exit::Environment,
    }
}
