//! Plays a design: several runs at a time, and only the incomplete ones.
//!
//! Runs of one seed follow each other in an experiment, and each cell has the same seeds: they share
//! beginnings and, if they are of the same case, random numbers. A run begins when the previous one has its
//! first turn on record; if all began at once, each would read the common beginning.

use super::scores::scored;
use super::{Design, ExperimentRecord};
use crate::backend::Backend;
use crate::run::{FolderState, perform, standing};
use crate::scenario::TurnId;
use crate::stage::{End, Scene, Watch};
use crate::transcript::{self, Transcript};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, LocalSet};

/// A run has ended, now or before.
#[derive(Debug)]
pub struct EndedRun {
    /// Its folder, below the experiment's.
    pub folder: PathBuf,
    /// The reason why it failed, if it did.
    pub error: Option<anyhow::Error>,
}

/// Counts of the runs that were played, and those that failed.
#[derive(Debug, Default)]
pub struct PlayedCounts {
    /// Runs completed now.
    pub n_new: usize,
    /// Runs that were complete before.
    pub n_before: usize,
    /// Folders of runs that failed.
    pub failed: Vec<PathBuf>,
    /// True if it was stopped before its end.
    pub stopped: bool,
}

/// Reports when a run's first turn is on record. Then the next run begins: the common beginning has been
/// read, and is not read again.
struct Beginning(watch::Sender<bool>);

impl Watch for Beginning {
    fn see(&mut self, _id: TurnId, scene: Scene<'_>) {
        if matches!(scene, Scene::Written { .. }) {
            self.0.send_replace(true);
        }
    }
}

/// Plays all runs of a design that are not complete yet into `folder`, `jobs` at a time (one, where a human
/// plays), until `stop` is ready. A run's transcript does not depend on `jobs`; a failed run does not keep
/// others from being played.
///
/// # Errors
/// The folder holds another experiment, or a run of it that was made with other settings.
pub async fn play(
    design: &Design,
    backend: Arc<dyn Backend>,
    folder: &Path,
    jobs: usize,
    on_step: &mut dyn FnMut(&EndedRun),
    stop: impl Future<Output = ()>,
) -> anyhow::Result<PlayedCounts> {
    if let Some(cell) = design.cells.first() {
        ExperimentRecord::of(design, &cell.scenario).settle(folder)?;
    }
    let mut played = PlayedCounts::default();
    let mut left = Vec::new();
    for (cell, seed) in design.runs() {
        let (own, options) = (design.folder(cell, seed), design.options(cell, seed));
        let standing = standing(&design.cells[cell].scenario, &backend, &folder.join(&own), &options)?;
        if standing == FolderState::Complete {
            played.n_before += 1;
            on_step(&EndedRun { folder: own, error: None });
        } else {
            left.push((cell, seed));
        }
    }
    let (tell, stopping) = watch::channel(false);
    let places = Arc::new(Semaphore::new(if design.has_humans() { 1 } else { jobs.max(1) }));
    let set = LocalSet::new();
    let all = async {
        let mut running = JoinSet::new();
        let mut before = None;
        for (cell, seed) in left {
            let (begun, after) = watch::channel(false);
            let before = before.replace(after);
            let (scenario, options) = (design.cells[cell].scenario.clone(), design.options(cell, seed));
            let (own, backend) = (design.folder(cell, seed), backend.clone());
            let (into, places, mut stopping) = (folder.join(&own), places.clone(), stopping.clone());
            running.spawn_local(async move {
                let _place = places.acquire().await;
                if let Some(mut before) = before {
                    let _ = before.wait_for(|begun| *begun).await; // an error: it has ended
                }
                if *stopping.borrow() {
                    return (own, Ok(false)); // stopped before it began
                }
                let stopped = async move { drop(stopping.wait_for(|stopped| *stopped).await) };
                let ended =
                    perform(&scenario, backend, &into, &options, &mut Beginning(begun), stopped).await;
                (own, ended.map(|performed| performed.end != End::Stopped))
            });
        }
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop, if !played.stopped => {
                    played.stopped = true;
                    let _ = tell.send(true);
                }
                next = running.join_next() => {
                    let Some(joined) = next else { break };
                    let (folder, ended) = joined?;
                    let error = match ended {
                        Ok(true) => {
                            played.n_new += 1;
                            None
                        }
                        Ok(false) => continue,
                        Err(error) => {
                            played.failed.push(folder.clone());
                            Some(error)
                        }
                    };
                    on_step(&EndedRun { folder, error });
                }
            }
        }
        anyhow::Ok(())
    };
    set.run_until(all).await?;
    Ok(played)
}

/// The transcripts of a design's complete runs, as (cell, seed, folder below the experiment's, transcript).
///
/// # Errors
/// A transcript can't be read.
pub fn transcripts(design: &Design, folder: &Path) -> anyhow::Result<Vec<(usize, u64, PathBuf, Transcript)>> {
    let mut found = Vec::new();
    for cell in 0..design.cells.len() {
        for seed in &design.seeds {
            let own = design.folder(cell, *seed);
            let file = folder.join(&own).join(transcript::FILE);
            if file.exists() {
                let transcript = Transcript::open(&file)?;
                if transcript.footer.is_some() {
                    let transcript = scored(transcript, &folder.join(&own))?;
                    found.push((cell, *seed, own, transcript));
                }
            }
        }
    }
    Ok(found)
}
