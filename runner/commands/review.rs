//! `greenroom review`: shows recordings as they would be made now, the cause first, and accepts or rejects
//! them.

use super::{Exit, Whereabouts};
use crate::files::typed_line;
use crate::replay::transcript_file;
use crate::terminal::{is_fancy, output, show_differences, show_verdict};
use crate::transcript::Transcript;
use crate::verify::{
    JudgeQuestion, JudgeSettings, accept, differences, is_ci, pending_file, pendings, reject,
};
use anyhow::{Context as _, bail};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

/// Review recordings that have drifted, by cause, and accept or reject the new version
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom review scenarios/recordings\n\
                  `greenroom replay` writes a recording as it would be made now to RECORDING.new. Accepting \
                  it replaces the recording;\nrejecting it removes the new file. Nothing can be accepted in \
                  CI.")]
pub(super) struct Args {
    /// Recordings, or folders that contain some
    #[arg(default_value = ".")]
    paths: Vec<PathBuf>,
    /// Accept all without asking
    #[arg(long, conflicts_with = "reject")]
    accept: bool,
    /// Reject all without asking
    #[arg(long)]
    reject: bool,
    #[command(flatten)]
    near: Whereabouts,
}

enum ReviewAnswer {
    Accept,
    Reject,
    Skip,
    Quit,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if is_ci() {
        bail!(
            "recordings can't be accepted or rejected in CI (the variable CI is set); review on your \
             machine, then commit"
        );
    }
    let paths: Vec<PathBuf> = args.paths.iter().map(|path| run_or_folder(path)).collect();
    let pending = pendings(&paths)?;
    if pending.is_empty() {
        println!("nothing to review; `greenroom replay` writes RECORDING.new where a recording has drifted");
        return Ok(Exit::Pass);
    }
    let asks = !args.accept && !args.reject;
    if asks && !std::io::stdin().is_terminal() {
        bail!("{} to review, but there is no terminal to ask at; use --accept or --reject", pending.len());
    }
    let judge =
        JudgeSettings { search: args.near.into(), question: JudgeQuestion::Nothing, writes_pending: false };
    let (mut accepted, mut rejected) = (0, 0);
    for (at, recording) in pending.iter().enumerate() {
        println!("[{} of {}] {}", at + 1, pending.len(), recording.display());
        let shown = show(&judge, recording).inspect_err(|error| eprintln!("error: {error:#}"));
        let answer = if args.accept && shown.is_err() {
            ReviewAnswer::Skip // what can't be looked at is not accepted
        } else if args.accept {
            ReviewAnswer::Accept
        } else if args.reject {
            ReviewAnswer::Reject
        } else {
            ask()?
        };
        match answer {
            ReviewAnswer::Accept => {
                accept(recording)?;
                accepted += 1;
                println!("accepted: {}\n", recording.display());
            }
            ReviewAnswer::Reject => {
                reject(recording)?;
                rejected += 1;
                println!("rejected: {} is not changed\n", recording.display());
            }
            ReviewAnswer::Skip => println!(),
            ReviewAnswer::Quit => break,
        }
    }
    println!("{accepted} accepted, {rejected} rejected, {} left", pending.len() - accepted - rejected);
    Ok(Exit::Pass)
}

/// A run's folder means its transcript only if that has a pending change; any other folder means all
/// recordings below it.
fn run_or_folder(path: &Path) -> PathBuf {
    let file = transcript_file(path);
    if pending_file(&file).exists() { file } else { path.to_path_buf() }
}

/// The cause, then everything that would change.
fn show(judge: &JudgeSettings, recording: &Path) -> anyhow::Result<()> {
    let new = pending_file(recording);
    let verdict = judge.judge(recording);
    if verdict.problems.is_empty() {
        println!("{}: the recording still matches its scenario; a model said something else", verdict.file);
    } else {
        print!("{}", show_verdict(&verdict, is_fancy()));
    }
    let now = Transcript::open(&new).with_context(|| format!("{} can't be reviewed", new.display()))?;
    match Transcript::open(recording) {
        Ok(was) => {
            println!("accepting changes:");
            print!("{}", show_differences(&differences(&was, &now), was.turns.len(), false, is_fancy()));
        }
        Err(_) => println!("accepting replaces a recording that can't be read"),
    }
    if now.header.record.carried.is_some() {
        println!(
            "  its replies are carried over; no model has read the new prompts (use --rerun to play them)"
        );
    }
    Ok(())
}

fn ask() -> anyhow::Result<ReviewAnswer> {
    loop {
        print!("(a)ccept, (r)eject, (s)kip, (q)uit? ");
        output::flush();
        let Some(line) = typed_line(std::io::stdin().lock())? else { return Ok(ReviewAnswer::Quit) };
        match line.trim().to_lowercase().as_str() {
            "a" | "accept" | "y" | "yes" => return Ok(ReviewAnswer::Accept),
            "r" | "reject" | "n" | "no" => return Ok(ReviewAnswer::Reject),
            "s" | "skip" => return Ok(ReviewAnswer::Skip),
            "q" | "quit" => return Ok(ReviewAnswer::Quit),
            other => {
                println!("unknown answer `{}`; expected a, r, s or q", crate::diagnostic::printable(other))
            }
        }
    }
}
