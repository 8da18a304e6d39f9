//! The folder for a run's record, where the command line names none: `runs/ID-N`.

use anyhow::Context as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The folder for a run's record.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) folder: PathBuf,
    /// It was made for this run.
    made: bool,
}

impl Claimed {
    /// The one given, or `runs/ID-N`: the one after the latest, made at once so that no other run takes it,
    /// or the latest to resume.
    pub(super) fn of(out: Option<&Path>, id: &str, resume: bool) -> anyhow::Result<Self> {
        match out {
            Some(folder) => Ok(Self { folder: folder.to_path_buf(), made: false }),
            None => Self::below(Path::new("runs"), id, resume),
        }
    }

    fn below(runs: &Path, id: &str, resume: bool) -> anyhow::Result<Self> {
        let folder = |n: usize| runs.join(format!("{id}-{n}"));
        let latest = latest(runs, id);
        if resume {
            return Ok(Self { folder: folder(latest.unwrap_or(1)), made: false });
        }
        let can_not = |folder: &Path| format!("can't create {}", folder.display());
        std::fs::create_dir_all(runs).with_context(|| can_not(runs))?;
        for n in latest.map_or(1, |latest| latest.saturating_add(1)).. {
            match std::fs::create_dir(folder(n)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && n < usize::MAX => {}
                made => {
                    made.with_context(|| can_not(&folder(n)))?;
                    return Ok(Self { folder: folder(n), made: true });
                }
            }
        }
        anyhow::bail!("there is no free number for another run of {id} in {}", runs.display())
    }
}

impl Drop for Claimed {
    /// A run that never began leaves no folder.
    fn drop(&mut self) {
        if self.made {
            // Refused if the folder is not empty.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// The highest N of the folders `ID-N`, whatever numbers are missing below it.
fn latest(runs: &Path, id: &str) -> Option<usize> {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let number = |name: &str| {
        let digits = name.strip_prefix(id)?.strip_prefix('-')?;
        digits.parse::<usize>().ok().filter(|n| n.to_string() == digits)
    };
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.filter_map(|entry| number(entry.file_name().to_str()?)).max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_latest_run_has_the_highest_number_whatever_is_missing_below() {
        let runs = tempfile::tempdir().unwrap();
        let claim = |resume| Claimed::below(runs.path(), "boat", resume).unwrap();
        assert_eq!(claim(true).folder, runs.path().join("boat-1"));
        for name in ["boat-1", "boat-3", "boat-12", "boat-x", "boat-013", "boat-4-20", "other-40", "boat"] {
            std::fs::create_dir(runs.path().join(name)).unwrap();
        }
        std::fs::write(runs.path().join("boat-50"), "no folder").unwrap();
        assert_eq!(claim(true).folder, runs.path().join("boat-12"));
        let next = claim(false);
        assert_eq!(next.folder, runs.path().join("boat-13"));
        // Another one at the same time; and a run that never began leaves no folder.
        assert_eq!(claim(false).folder, runs.path().join("boat-14"));
        drop(next);
        assert_eq!(claim(true).folder, runs.path().join("boat-12"));
    }
}
