//! `greenroom run --repeat`, `--sweep`: plays an experiment, then counts.

use super::Exit;
use super::machine::Machine;
use super::play::{own, played as played_by};
use crate::experiment::{self, Design, EndedRun, PlayedCounts, Shard, play as play_design, transcripts};
use crate::statistics::{
    Cell, Grouping, Run, Sample, Summary, figure_tables, plots, scripts, summarize_by, tables_by,
};
use crate::terminal::{failure, is_fancy, output, statistics, too_few};
use crate::transcript::{AssertionRecord, Footer, Transcript};
use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// An experiment to play.
pub(super) struct Experiment {
    pub(super) design: Design,
    /// What its figures are over.
    pub(super) grouping: Grouping,
    pub(super) folder: PathBuf,
    /// Runs to play at once.
    pub(super) jobs: usize,
    pub(super) quiet: bool,
    /// How to continue it.
    pub(super) go_on: String,
}

impl Experiment {
    /// Plays its unplayed runs into its folder, and writes its tables.
    pub(super) fn play(self, machine: &Machine) -> anyhow::Result<Exit> {
        let Self { design, grouping, folder, jobs, quiet, go_on } = self;
        let (design, folder) = (&design, folder.as_path());
        let cells = design.cells.iter();
        let models = cells.flat_map(|cell| {
            let swept = cell.tuning.models().cloned();
            played_by(&cell.scenario, &design.options).into_iter().chain(swept)
        });
        let new_folder = machine.new_folder();
        let backend = machine.models(&models.collect(), &own(&design.options), quiet)?;
        let host = &machine.host;
        let began = Instant::now();
        // A bar would be drawn over the question to a human.
        let bar = bar(design.runs().count(), quiet || design.has_humans());
        let mut on_step = |step: &EndedRun| {
            let run = folder.join(&step.folder);
            let seen = || host.on_run.as_ref().map_or(Ok(()), |see| see(&run));
            let error = step.error.as_ref().map(|error| format!("{error:#}"));
            if let Some(error) = error.or_else(|| seen().err().map(|error| format!("{error:#}"))) {
                bar.suspend(|| eprintln!("{}: {error}", run.display()));
            }
            bar.inc(1);
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let played = runtime.block_on(play_design(design, backend, folder, jobs, &mut on_step, host.stop()));
        runtime.shutdown_background();
        bar.finish_and_clear();
        let played = played?;
        if played.stopped {
            eprintln!("stopped; {go_on}");
            return Ok(Exit::Stopped);
        }
        let took = duration_text(&played, began.elapsed().as_secs_f64());
        let sample = sample(design, folder)?;
        let holds = match design.shard {
            None => count(&sample, &grouping, folder, quiet)?,
            Some(Shard { number, of }) => {
                if quiet {
                    println!("{}", folder.display());
                } else {
                    println!(
                        "part {number} of {of}; when all parts are played, run: greenroom merge PART… --out \
                     FOLDER"
                    );
                }
                hold(&sample)
            }
        };
        if !quiet {
            println!("\n{took}: {}", folder.display());
            if let Some(memories) = new_folder.filter(|memories| memories.exists()) {
                println!("{}", machine.introduce_memories(&memories));
            }
        }
        Ok(if !played.failed.is_empty() {
            Exit::Environment
        } else if !holds {
            Exit::AssertionFailed
        } else {
            Exit::Pass
        })
    }
}

/// The complete runs of a design.
fn sample(design: &Design, folder: &Path) -> anyhow::Result<Sample> {
    let cell = |cell: &experiment::Variant| Cell { values: cell.values.clone() };
    let run = |(cell, seed, own, transcript): (usize, u64, PathBuf, Transcript)| Run {
        cell,
        seed,
        folder: own.display().to_string(),
        transcript,
        scenario: design.cells[cell].scenario.clone(),
    };
    let cells = design.cells.iter().map(cell).collect();
    Ok(Sample { cells, runs: transcripts(design, folder)?.into_iter().map(run).collect() })
}

/// Writes tables, figures and plots next to the runs; prints the figures. False: an assertion failed in a
/// run.
pub(super) fn count(
    sample: &Sample,
    grouping: &Grouping,
    folder: &Path,
    quiet: bool,
) -> anyhow::Result<bool> {
    let mut files = tables_by(sample, grouping).write(folder)?;
    let summary = summarize_by(sample, grouping);
    files.extend(figure_tables(&summary).write(folder)?);
    files.push(summary.write(folder)?);
    files.extend(plots(sample, &summary, folder)?);
    files.extend(scripts(&summary, folder)?);
    if quiet {
        println!("{}", folder.display());
        output::flush();
        eprint!("{}", failures(sample, &summary));
    } else {
        print!("{}{}", statistics(&summary, &files, is_fancy()), failures(sample, &summary));
    }
    Ok(hold(sample) && summary.holds())
}

/// The assertions that failed, and in how many runs; then those that did not hold in the share of runs that
/// they need.
fn failures(sample: &Sample, summary: &Summary) -> String {
    let footers: Vec<&Footer> =
        sample.runs.iter().filter_map(|run| Some(&run.transcript.footer.as_ref()?.record)).collect();
    let mut failed: IndexMap<String, (&AssertionRecord, usize)> = IndexMap::new();
    for assertion in footers.iter().flat_map(|footer| &footer.assertions).filter(|each| each.fails()) {
        failed.entry(assertion.name()).or_insert((assertion, 0)).1 += 1;
    }
    let line = |(first, n)| failure(first, Some((n, footers.len())), is_fancy());
    let of_many = summary.assertions.iter().filter(|assertion| !assertion.holds());
    let of_many = of_many.map(|assertion| too_few(assertion, is_fancy()));
    failed.into_values().map(line).chain(of_many).collect()
}

/// True if all assertions passed in all runs, but for those that need a share of runs.
fn hold(sample: &Sample) -> bool {
    let mut footers = sample.runs.iter().filter_map(|run| run.transcript.footer.as_ref());
    footers.all(|footer| footer.record.holds())
}

fn bar(n: usize, quiet: bool) -> ProgressBar {
    if quiet || !console::Term::stderr().is_term() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {eta} left");
    let bar = ProgressBar::new(n as u64);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

fn duration_text(played: &PlayedCounts, seconds: f64) -> String {
    let before = match played.n_before {
        0 => String::new(),
        1 => ", 1 was already complete".to_owned(),
        n => format!(", {n} were already complete"),
    };
    format!("{} runs in {seconds:.1} s{before}", played.n_new)
}
