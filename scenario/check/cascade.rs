//! Consequences of a mistake are not reported: a field that could not be read is not missing as well, and a
//! name that is in what could not be read is not unknown.

use super::Checker;
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// The places of mistakes found so far.
#[derive(Default)]
pub(super) struct Broken {
    /// Diagnostics that are noted here.
    n_noted: usize,
    /// Paths with an error.
    at: BTreeSet<String>,
    /// Paths with an error at or below them.
    within: BTreeSet<String>,
    /// Paths whose value had the wrong type, and was read as if it were absent.
    cleared: BTreeSet<String>,
    /// Fields that unknown ones may have been meant for, by the path of their mapping.
    meant: BTreeMap<String, BTreeSet<String>>,
    /// Those of the scenario itself that are near an unknown one.
    near: BTreeSet<String>,
}

impl Broken {
    fn note(&mut self, found: &[Diagnostic]) {
        let errors = found[self.n_noted..].iter().filter(|found| found.severity == Severity::Error);
        for Diagnostic { path, code, meant, .. } in errors {
            self.at.insert(path.clone());
            self.within.extend(ways_up(path).map(str::to_string));
            if *code == "type" {
                self.cleared.insert(path.clone());
            }
            if *code == "unknown-key" {
                let parent = ways_up(path).nth(1).unwrap_or_default().to_string();
                if let ([near], "") = (meant.as_slice(), parent.as_str()) {
                    self.near.insert(near.clone());
                }
                self.meant.entry(parent).or_default().extend(meant.iter().cloned());
            }
        }
        self.n_noted = found.len();
    }
}

/// A path, and all above it.
fn ways_up(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(&path[..path.rfind(['.', '['])?]))
}

impl Checker {
    /// True if there is a mistake at a path or below it, or what it is in could not be read.
    pub(super) fn is_broken(&mut self, path: &Path) -> bool {
        self.broken.note(&self.found);
        let path = path.to_string();
        self.broken.within.contains(&path)
            || self.is_misspelled(&path)
            || ways_up(&path).any(|above| self.broken.cleared.contains(above))
    }

    /// True if a field may be there under another name.
    fn is_misspelled(&self, path: &str) -> bool {
        let parent = ways_up(path).nth(1).unwrap_or_default();
        let field = path[parent.len()..].trim_start_matches('.');
        self.broken.meant.get(parent).is_some_and(|meant| meant.contains(field))
    }

    /// True if any of these mappings of names may hold more than could be read, so that no name is known to
    /// be unknown.
    pub(super) fn is_open(&mut self, mappings: &[&str]) -> bool {
        self.broken.note(&self.found);
        let broken = &self.broken;
        let unread =
            mappings.iter().any(|field| broken.cleared.contains(*field) || broken.near.contains(*field));
        unread || self.names.partial || (mappings != ["phases"] && broken.within.contains("include"))
    }

    /// An error about something that is absent; not reported if it was found under another name, or could not
    /// be read.
    pub(super) fn missing(&mut self, path: &Path, message: &str, help: &str) {
        if !self.is_broken(path) {
            self.error("missing", path, message).help = Some(help.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_within_those_above_it() {
        let ways: Vec<&str> = ways_up("phases[0].agents[1]").collect();
        assert_eq!(ways, ["phases[0].agents[1]", "phases[0].agents", "phases[0]", "phases"]);
    }
}
