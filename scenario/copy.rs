//! The copy of a scenario in a run's folder: its file and everything that it includes, as they were played,
//! so that the run can be replayed, forked and reported wherever its folder is moved.
//!
//! Files are below [`FOLDER`], with the same relative paths as before, below the deepest folder that contains
//! them all; [`INDEX`] names the scenario's own file. It is written last: without it there is no copy.

use super::Scenario;
use crate::files::{self, FileKind};
use anyhow::{Context as _, bail, ensure};
use greenroom_yaml::diagnostic::Sources;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Name of the folder of the files, in a run's folder.
const FOLDER: &str = "scenario";
/// Name of the file next to it that names the scenario's own file.
const INDEX: &str = "scenario.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    /// Path of the scenario's own file below the folder, parts joined by `/`.
    main: String,
}

/// A copy that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The scenario's own file.
    pub main: PathBuf,
    /// The folder that holds all files.
    pub root: PathBuf,
}

/// Finds the copy in a run's folder, if there is one whose file is inside it.
pub fn copied(run: &Path) -> Option<Copied> {
    let text = files::read_text(&run.join(INDEX), FileKind::Scenario).ok()?;
    let Index { main } = serde_json::from_str(&text).ok()?;
    let is_plain =
        !main.is_empty() && Path::new(&main).components().all(|part| matches!(part, Component::Normal(_)));
    let root = run.join(FOLDER);
    let copied = Copied { main: root.join(main), root };
    let root = files::Root::given_or_of(Some(&copied.root), &copied.main).ok().filter(|_| is_plain)?;
    root.admit(&copied.main).is_ok_and(|real| real.is_file()).then_some(copied)
}

/// Writes the copy of a scenario into a run's folder, in place of one that is there.
///
/// # Errors
/// It can't be written, or other files are in its place.
pub fn write_copy(scenario: &Scenario, run: &Path) -> anyhow::Result<()> {
    let index = run.join(INDEX);
    let own = index.symlink_metadata().is_ok();
    if own {
        std::fs::remove_file(&index).with_context(|| format!("can't replace {}", index.display()))?;
    }
    let Laid { main, files, folders } = lay(&scenario.sources)?;
    let root = run.join(FOLDER);
    for folder in folders.iter().map(|folder| root.join(folder)) {
        std::fs::create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
    }
    for (path, text) in files {
        let file = root.join(path);
        let other = own
            || !file.exists()
            || files::read(&file, FileKind::Scenario).is_ok_and(|was| was == text.as_bytes());
        ensure!(
            other,
            "{} already exists and differs from the scenario being played; a run's folder holds a copy of \
             its scenario: choose another folder with --out",
            file.display()
        );
        files::write(&file, text)?;
    }
    let main = main.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
    files::write(&index, serde_json::to_string(&Index { main })? + "\n")
}

/// Places of files below one folder.
struct Laid<'a> {
    main: PathBuf,
    files: BTreeMap<PathBuf, &'a str>,
    /// All folders on the ways from the scenario to what it includes.
    folders: Vec<PathBuf>,
}

fn lay(sources: &Sources) -> anyhow::Result<Laid<'_>> {
    let main = Path::new(&sources.main().name);
    let here = main.parent().unwrap_or(Path::new(""));
    let name = main.file_name().context("a scenario has a file name")?;
    let included = || sources.iter().skip(1).map(|source| (source, Path::new(&source.name)));
    let way = |path: &'_ Path| -> Vec<_> {
        let below = path.strip_prefix(here).unwrap_or(path).components();
        below.map(|part| part.as_os_str().to_os_string()).collect()
    };
    let climbs = |path| {
        let (mut depth, mut highest) = (0i64, 0i64);
        for part in way(path) {
            depth += if part == ".." { -1 } else { i64::from(part != ".") };
            highest = highest.min(depth);
        }
        usize::try_from(-highest).unwrap_or_default()
    };
    let climbs = included().map(|(_, path)| climbs(path)).max().unwrap_or(0);
    let above = std::path::absolute(here).unwrap_or_else(|_| here.to_path_buf());
    let above: Vec<_> = above.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let missing = climbs.saturating_sub(above.len());
    let begin: PathBuf = above[above.len() - (climbs - missing)..].iter().collect();
    let begin: PathBuf = std::iter::repeat_n(Path::new("_"), missing).chain([begin.as_path()]).collect();
    let mut laid = Laid { main: begin.join(name), files: BTreeMap::new(), folders: vec![begin.clone()] };
    laid.files.insert(laid.main.clone(), &sources.main().text);
    for (source, path) in included() {
        let mut place = begin.clone();
        for part in way(path) {
            laid.folders.push(place.clone());
            match part.to_str() {
                Some("..") => drop(place.pop()),
                Some(".") => {}
                _ => place.push(part),
            }
        }
        if laid.files.insert(place, &source.text).is_some_and(|other| other != source.text) {
            bail!(
                "the path {} goes through a link, so the run's folder can't hold a copy of it",
                source.name
            );
        }
    }
    Ok(laid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_yaml::diagnostic::Source;

    fn laid(names: &[&str]) -> Vec<String> {
        let source = |name: &&str| Source { name: name.to_string(), text: name.to_string() };
        let mut sources = Sources::new(source(&names[0]));
        for name in &names[1..] {
            sources.add(source(name));
        }
        let laid = lay(&sources).unwrap();
        let mut files: Vec<String> = laid.files.keys().map(|path| path.display().to_string()).collect();
        files.insert(0, laid.main.display().to_string());
        files
    }

    #[test]
    fn files_stand_as_they_stood_to_each_other() {
        assert_eq!(laid(&["x.yaml"]), ["x.yaml", "x.yaml"]);
        assert_eq!(laid(&["/a/b/x.yaml", "/a/b/c/y.yaml"]), ["x.yaml", "c/y.yaml", "x.yaml"]);
        assert_eq!(
            laid(&["/a/b/x.yaml", "/a/b/../y.yaml", "/a/b/../b/z.yaml"]),
            ["b/x.yaml", "b/x.yaml", "b/z.yaml", "y.yaml"]
        );
        assert_eq!(laid(&["/a/b/x.yaml", "/a/b/c/../../../y.yaml"]), ["a/b/x.yaml", "a/b/x.yaml", "y.yaml"]);
        assert_eq!(laid(&["/x.yaml", "/../../y.yaml"]), ["_/_/x.yaml", "_/_/x.yaml", "y.yaml"]);
    }
}
