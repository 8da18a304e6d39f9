//! Folders of stores: where they may be, and the files in them.

use crate::files::{self, FileKind};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of files and folders that a store is searched through.
const MAX_ENTRIES: usize = 20_000;

/// Gives the value of a variable.
type Lookup = dyn Fn(&str) -> Option<PathBuf>;

/// What of this process tells where stores are.
pub(super) struct Surroundings {
    /// Value of an environment variable, if it is set and not empty.
    pub(super) var: Box<Lookup>,
    pub(super) home: Option<PathBuf>,
    /// The user's folder for caches.
    pub(super) caches: Option<PathBuf>,
}

/// Folders of a store.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// All that were searched, those that are not there included.
    pub(super) searched: Vec<PathBuf>,
    pub(super) readable: Vec<PathBuf>,
    /// Those that are there but can't be read, each with the reason.
    pub(super) unread: Vec<String>,
}

impl Surroundings {
    pub(super) fn of_this_process() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { var: Box::new(var), home: dirs::home_dir(), caches: dirs::cache_dir() }
    }

    pub(super) fn var(&self, name: &str) -> Option<PathBuf> {
        (self.var)(name)
    }
}

impl Folders {
    pub(super) fn new(searched: Vec<PathBuf>) -> Self {
        let (mut readable, mut unread) = (Vec::new(), Vec::new());
        for folder in &searched {
            match std::fs::read_dir(folder) {
                Ok(_) => readable.push(folder.clone()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unread.push(format!("can't read {}: {error}", folder.display())),
            }
        }
        Self { searched, readable, unread }
    }
}

/// Files at a depth below a folder, each with its path from there, its parts joined by `/`. Links are
/// followed, a circle of them once.
pub(super) fn files(folder: &Path, depth: std::ops::RangeInclusive<usize>) -> Vec<(String, PathBuf)> {
    let all = walkdir::WalkDir::new(folder).min_depth(1).max_depth(*depth.end()).follow_links(true);
    let file = |entry: walkdir::DirEntry| {
        let parts = entry.path().strip_prefix(folder).ok()?.iter();
        let parts: Option<Vec<&str>> = parts.map(|part| part.to_str()).collect();
        let is_it = entry.depth() >= *depth.start() && entry.file_type().is_file();
        is_it.then_some((parts?.join("/"), entry.into_path()))
    };
    all.into_iter().take(MAX_ENTRIES).flatten().filter_map(file).collect()
}

/// Text of a small file of a store.
pub(super) fn text(path: &Path) -> io::Result<String> {
    files::read_text(path, FileKind::Store)
}

/// True if a file is a whole model or the first part of one, by its name: no other part, no image encoder
/// (`mmproj`).
pub fn is_model(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let Some(stem) = file.strip_suffix(".gguf") else { return false };
    !stem.contains("mmproj") && part(stem).is_none_or(|(no, _)| no == 1)
}

/// The number of a part of a model in the name of its file, and what is before it: `-00001-of-00003`.
pub(super) fn part(stem: &str) -> Option<(u32, &str)> {
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (before, no) = rest.rsplit_once('-')?;
    number(count)?;
    Some((number(no)?, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_from_what_lies_beside_them() {
        for name in ["org/repo/m.gguf", "M.GGUF", "m-00001-of-00003.gguf", "out-of-africa.gguf"] {
            assert!(is_model(name), "{name}");
        }
        for name in ["mmproj-m-f16.gguf", "org/m.mmproj.gguf", "m-00002-of-00003.gguf", "m.gguf.etag", "m"] {
            assert!(!is_model(name), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_circle_of_links_ends() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a");
        std::fs::create_dir(&inside).unwrap();
        std::os::unix::fs::symlink(folder.path(), inside.join("b")).unwrap();
        std::fs::write(inside.join("m.gguf"), "").unwrap();
        let found = files(folder.path(), 1..=9);
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a/m.gguf"]);
    }
}
