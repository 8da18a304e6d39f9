//! Plays one run on a terminal: the dialogue as it is spoken, then its results and costs.

use super::Exit;
use super::machine::Machine;
use super::watch::WatchPage;
use crate::run::{Performed, RunOptions, perform};
use crate::scenario::Scenario;
use crate::stage::{End, Unwatched, Watch};
use crate::terminal::{self, DialogueOutput};
use crate::transcript::{FILE, Transcript};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The scenario's own model, with its resolved name.
pub(super) fn own(options: &RunOptions) -> String {
    options.models.get("").cloned().unwrap_or_default()
}

/// All models that may answer in a run, with their resolved names.
pub(super) fn played(scenario: &Scenario, options: &RunOptions) -> BTreeSet<String> {
    let plan = scenario.plan();
    let named = plan.order().filter_map(|(_, turn)| turn.hints.model.as_deref());
    let named: BTreeSet<&str> = named.collect();
    let found = |name: &str| options.models.get(name).cloned().or_else(|| scenario.model(name));
    named.into_iter().filter_map(found).chain([own(options)]).collect()
}

/// A run to play.
pub(super) struct Performance {
    pub(super) scenario: Arc<Scenario>,
    pub(super) options: RunOptions,
    pub(super) folder: PathBuf,
    /// Print only the transcript's path.
    pub(super) quiet: bool,
    /// Print the cost of each agent's turns.
    pub(super) stats: bool,
    /// Address of a page that shows it.
    pub(super) watch: Option<SocketAddr>,
    /// Prints how to continue if it is interrupted.
    pub(super) go_on: String,
}

impl Performance {
    /// Plays it.
    pub(super) fn play(self, machine: &Machine) -> anyhow::Result<Exit> {
        let new_folder = machine.new_folder();
        let backend =
            machine.models(&played(&self.scenario, &self.options), &own(&self.options), self.quiet)?;
        if self.options.resume && !self.quiet {
            self.say_what_is_there();
        }
        let control = self.options.control.clone();
        let page = self.watch.map(|address| WatchPage::open(address, control)).transpose()?;
        let host = &machine.host;
        let run = self.folder.display().to_string();
        let watch = host.watcher(&self.scenario, &run).unwrap_or_else(|| self.watcher());
        let mut watch = match &page {
            Some(page) => page.beside(&self.scenario, watch),
            None => watch,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Self { scenario, options, folder, .. } = &self;
        let performed =
            runtime.block_on(perform(scenario, backend, folder, options, watch.as_mut(), host.stop()));
        drop(watch);
        // Waiting for a human's input can't be cancelled, so the program does not wait for it.
        runtime.shutdown_background();
        if let Some(page) = &page {
            page.say_end(&performed);
        }
        let performed = performed.inspect_err(|_| self.say_how_to_go_on())?;
        self.finish(&performed);
        if let Some(folder) = new_folder.filter(|folder| !self.quiet && folder.exists()) {
            println!("{}", machine.introduce_memories(&folder));
        }
        if let Some(page) = page.filter(|_| performed.end != End::Stopped) {
            page.end()?;
        }
        Ok(match &performed.end {
            End::Stopped => Exit::Stopped,
            End::Complete(footer) if !footer.holds() => Exit::AssertionFailed,
            End::Complete(_) => Exit::Pass,
        })
    }

    /// Prints what a resumed run has; if it can't be read, playing reports that.
    fn say_what_is_there(&self) {
        let folder = self.folder.display();
        match Transcript::open_begun(&self.folder.join(FILE)) {
            Ok(None) => eprintln!("{folder} contains no run to continue: a new run begins there"),
            Ok(Some(begun)) if begun.footer.is_none() => {
                eprintln!("continuing {folder} after {} turns, which are shown again", begun.turns.len());
            }
            _ => {}
        }
    }

    /// Prints how to continue after a failed turn: the turns before it are on record. A complete run has
    /// nothing left to play.
    fn say_how_to_go_on(&self) {
        let begun = Transcript::open_begun(&self.folder.join(FILE));
        if begun.is_ok_and(|begun| begun.is_some_and(|begun| begun.footer.is_none())) {
            eprintln!("{}", self.go_on);
        }
    }

    fn watcher(&self) -> Box<dyn Watch> {
        if self.quiet {
            return Box::new(Unwatched);
        }
        let plan = self.scenario.plan().clone();
        Box::new(DialogueOutput::new(self.scenario.clone(), plan).titled())
    }

    fn finish(&self, performed: &Performed) {
        let footer = if let End::Complete(footer) = &performed.end { Some(footer) } else { None };
        let results = footer.map(|footer| terminal::results(&self.scenario, footer, terminal::is_fancy()));
        let results = results.unwrap_or_default();
        if self.quiet {
            println!("{}", performed.transcript.display());
            terminal::output::flush();
            if footer.is_some_and(|footer| !footer.holds()) {
                eprint!("{results}");
            }
        } else {
            if !results.is_empty() {
                print!("\n{results}");
            }
            if self.stats {
                println!("\n{}", terminal::costs(&performed.summary));
            }
            let (n, all, ms) = (performed.n_written, performed.n_turns, performed.summary.wall_ms);
            let turns = match &performed.end {
                End::Stopped => format!("{n} of at most {all} turns"),
                End::Complete(footer) if footer.skipped > 0 => {
                    format!("{n} turns ({} skipped)", footer.skipped)
                }
                End::Complete(_) => format!("{n} turns"),
            };
            println!("\n{turns} in {:.1} s: {}", ms / 1e3, performed.transcript.display());
            if !self.stats {
                print!("{}", terminal::savings(&performed.summary.cache));
            }
        }
        if performed.end == End::Stopped {
            eprintln!("stopped; {}", self.go_on);
        }
    }
}
