//! `greenroom run --repeat`, `--sweep`: plays an experiment, then counts.

use super::Exit;
use super::machine::Machine;
use super::play::stopped;
use crate::experiment::{Design, Played, Step, play as play_design};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Plays what of a design is not played yet into `folder`, and writes its tables.
pub(super) fn play(
    design: &Design,
    machine: &Machine,
    folder: &Path,
    jobs: usize,
    quiet: bool,
    go_on: &str,
) -> anyhow::Result<Exit> {
    let backend = Arc::new(machine.open(quiet)?);
    let began = Instant::now();
    let bar = bar(design.runs().count(), quiet);
    let mut on_step = |step: &Step| {
        if let Some(error) = &step.error {
            bar.suspend(|| eprintln!("{}: {error:#}", folder.join(&step.folder).display()));
        }
        bar.inc(1);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = runtime.block_on(play_design(design, backend, folder, jobs, &mut on_step, stopped()));
    runtime.shutdown_background();
    bar.finish_and_clear();
    let played = played?;
    if played.stopped {
        eprintln!("stopped; {go_on}");
        return Ok(Exit::Stopped);
    }
    if !quiet {
        println!("{}", took(&played, began.elapsed().as_secs_f64()));
    }
    Ok(if played.failed.is_empty() { Exit::Pass } else { Exit::Environment })
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

fn took(played: &Played, seconds: f64) -> String {
    let before = match played.n_before {
        0 => String::new(),
        n => format!(", {n} were complete before"),
    };
    format!("{} runs in {seconds:.1} s{before}", played.n_new)
}
