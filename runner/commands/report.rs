//! `greenroom report`: a run as one page for a browser.

use super::grouping::GroupingArgs;
use super::{Exit, Whereabouts};
use crate::experiment;
use crate::files;
use crate::replay::{other_scenario, transcript_file};
use crate::report::{self, MARK, ReportSources, comparison, html};
use crate::transcript;
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};

/// Bytes at a page's beginning that are searched for the mark.
const HEAD_BYTES: u64 = 4096;

/// Write a self-contained HTML page about a run or an experiment
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom report runs/gossip-1\n\
The page has no scripts and loads nothing, so it can be sent by mail or put on any server.")]
pub(super) struct Args {
    /// The run: its folder or transcript; or an experiment's folder (its runs get their own pages too)
    run: PathBuf,
    /// The page to write [default: report.html in the run's folder; for a transcript of another name, that
    /// name with .html]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw all turns that were possible, not only those that were played
    #[arg(long)]
    all_turns: bool,
    #[command(flatten)]
    grouping: GroupingArgs,
    #[command(flatten)]
    near: Whereabouts,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if args.run.join(experiment::FILE).exists() {
        return of_experiment(args);
    }
    if let Some(flag) = args.grouping.given() {
        bail!("{} is a single run; {flag} groups the figures of an experiment", args.run.display());
    }
    let given = args.output.is_some();
    let output = args.output.unwrap_or_else(|| beside(&transcript_file(&args.run)));
    refuse_notes(&output, given)?;
    let search = args.near.into();
    let sources = ReportSources::open(&args.run, &search)?;
    let header = &sources.transcript.header.record;
    if let Some(note) = other_scenario(&transcript_file(&args.run), header, &search) {
        eprintln!("note: {}", crate::diagnostic::printable(&note));
    }
    for caveat in &sources.caveats {
        eprintln!("note: {}: {}", caveat.title, crate::diagnostic::printable(&caveat.detail));
    }
    let page = html(&sources, args.all_turns)?;
    files::write_to(&output, page)?;
    println!("{}", output.display());
    Ok(Exit::Pass)
}

/// Makes the page of an experiment, and those of its runs, which it links to.
fn of_experiment(args: Args) -> anyhow::Result<Exit> {
    let folder = &args.run;
    let output = args.output.clone().unwrap_or_else(|| folder.join(report::FILE));
    refuse_notes(&output, args.output.is_some())?;
    let search = args.near.into();
    let (record, sample) = experiment::read(folder, &search)?;
    if sample.runs.is_empty() {
        bail!("{} has no complete run yet; continue with greenroom run … --resume", folder.display());
    }
    let grouping =
        args.grouping.of(sample.runs.iter().map(|run| &*run.scenario)).map_err(anyhow::Error::msg)?;
    for run in &sample.runs {
        let own = folder.join(&run.folder);
        let page = own.join(report::FILE);
        refuse_notes(&page, false)?;
        files::write(&page, html(&ReportSources::open(&own, &search)?, args.all_turns)?)?;
    }
    let n_planned = record.cells.len() * record.seeds.len();
    files::write_to(&output, comparison(&record.scenario, &sample, &grouping, n_planned)?)?;
    println!("{}", output.display());
    Ok(Exit::Pass)
}

/// Only a page made by this program is overwritten, unless the user named a pipe or a device.
fn refuse_notes(page: &Path, given: bool) -> anyhow::Result<()> {
    if (page.is_file() || !given && page.exists()) && !is_report(page)? {
        bail!("{} exists and is not a report; choose another file with -o", page.display());
    }
    Ok(())
}

/// The path of a transcript's page, unless another is given.
fn beside(file: &Path) -> PathBuf {
    if file.file_name().is_some_and(|name| name == transcript::FILE) {
        file.with_file_name(report::FILE)
    } else {
        file.with_extension("html")
    }
}

fn is_report(file: &Path) -> anyhow::Result<bool> {
    let head = files::head(file, HEAD_BYTES).with_context(|| format!("can't read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&head).contains(MARK))
}
