//! `greenroom replay`: holds recordings against their scenarios, without a model.

use super::Exit;
use crate::replay::{brought_along, load_scenario, origin, replay, transcript_file};
use crate::terminal::{is_fancy, report_drift, results};
use crate::transcript::{Cause, Drift, ReadError, Transcript};
use std::path::{Path, PathBuf};

/// Check recordings against their scenarios, with no model: exit 3 and a diff at the first thing that changed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom replay runs/gossip-1\n\
The scenario is found by the path in the recording, near the transcript or in the current folder.")]
pub(super) struct Args {
    /// Runs: their folders or transcripts
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// The scenario, if it has moved
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let mut worst = Exit::Pass;
    for run in &args.runs {
        let exit = one(run, args.scenario.as_deref()).unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            Exit::Environment
        });
        if exit as u8 > worst as u8 {
            worst = exit;
        }
    }
    Ok(worst)
}

fn one(run: &Path, scenario: Option<&Path>) -> anyhow::Result<Exit> {
    let file = transcript_file(run);
    let shown = file.display().to_string();
    let transcript = match Transcript::open(&file) {
        Ok(transcript) => transcript,
        Err(error) => match error.downcast_ref::<ReadError>() {
            Some(unreadable) => {
                let drift =
                    Drift::new(format!("line {}", unreadable.line), Cause::Unreadable, error.to_string());
                print!("{}", report_drift(&shown, &drift, None, is_fancy()));
                return Ok(Exit::Drift);
            }
            None => return Err(error),
        },
    };
    let header = &transcript.header.record;
    let loaded = load_scenario(&file, header, scenario)?;
    let Some(scenario) = loaded.scenario else {
        eprint!("{}", loaded.report.render(is_fancy()));
        return Ok(Exit::Invalid);
    };
    let replayed = brought_along(&file, header).and_then(|brought| replay(&scenario, &transcript, brought));
    match replayed {
        Ok(replayed) => {
            println!("{shown}: {} turns, nothing changed", transcript.turns.len());
            replayed.notes.iter().for_each(|note| println!("  note: {note}"));
            if replayed.footer.assertions.iter().all(|assertion| assertion.holds) {
                return Ok(Exit::Pass);
            }
            print!("{}", results(&scenario, &replayed.footer, is_fancy()));
            Ok(Exit::AssertionFailed)
        }
        Err(error) => {
            let Some(drift) = error.downcast_ref::<Drift>() else { return Err(error) };
            let origin = origin(&scenario, header, drift);
            let origin = origin
                .as_ref()
                .map(|(field, line)| (scenario.sources.main().name.as_str(), field.as_str(), *line));
            print!("{}", report_drift(&shown, drift, origin, is_fancy()));
            Ok(Exit::Drift)
        }
    }
}
