//! Checks how memories continue when they are full.

use super::Checker;
use crate::schema::WrittenMemory;
use crate::{Keep, MemoryPolicy};
use greenroom_yaml::Path;

/// Default number of recent pieces that `retrieve` keeps.
const RECENT: usize = 4;
/// Nearest pieces that it keeps.
const NEAREST: usize = 8;

impl Checker {
    /// An agent's memory; `path` is the agent's.
    pub(super) fn memory(&mut self, written: Option<WrittenMemory>, path: &Path) -> MemoryPolicy {
        let here = path.key("memory");
        let Some(WrittenMemory { keep, recent, nearest }) = written else {
            return MemoryPolicy::default();
        };
        let Some(keep) = keep else {
            if !self.is_broken(&here.key("keep")) {
                let message = "a memory needs `keep`: all, summary, window or retrieve";
                self.missing(&here, message, "e.g. `memory: { keep: window }`");
            }
            return MemoryPolicy::default();
        };
        let has_pieces = matches!(keep, Keep::Window | Keep::Retrieve);
        if recent.is_some() && !has_pieces {
            let message = "`recent` has no effect here: no pieces are kept";
            self.unused(&here.key("recent"), message, "remove it, or write `keep: window`");
        }
        if nearest.is_some() && keep != Keep::Retrieve {
            let message = "`nearest` has no effect here: nothing is looked up";
            self.unused(&here.key("nearest"), message, "remove it, or write `keep: retrieve`");
        }
        if keep == Keep::Window && recent == Some(0) {
            let message = "`recent` is 0, so this window keeps nothing";
            self.error("bad-value", &here.key("recent"), message).help =
                Some("give at least 1, or leave it out for as many as fit".into());
        }
        if keep == Keep::Retrieve && nearest == Some(0) {
            let message = "`nearest` must be at least 1: with 0, nothing is looked up";
            self.error("bad-value", &here.key("nearest"), message).help =
                Some("write `keep: window` for the most recent pieces only".into());
        }
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let recent = recent.map(count).or((keep == Keep::Retrieve).then_some(RECENT));
        MemoryPolicy { keep, recent, nearest: nearest.map_or(NEAREST, count) }
    }
}
