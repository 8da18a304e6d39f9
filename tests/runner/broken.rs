//! Every mistake that authors make is explained: a file of `broken/` for each, what is told of it as a snapshot.
//!
//! Files named `warn_*` can be played, and warned of; all others can't be.

use greenroom::diagnostic::{Report, Severity};
use greenroom::scenario::open;
use std::path::{Path, PathBuf};

/// The files, by name.
fn files() -> Vec<(String, PathBuf)> {
    // Relative, so that no snapshot names a machine's folders; tests run in the package's.
    let entries = std::fs::read_dir("tests/runner/broken").unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let files = files.filter(|path| !path.ends_with("ten_mistakes.yaml"));
    let mut files: Vec<_> =
        files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_string(), path)).collect();
    files.sort();
    files
}

fn report(path: &Path) -> Report {
    open(path, &[]).unwrap().report
}

#[test]
fn every_mistake_is_explained() {
    let files = files();
    assert!(files.len() > 100, "{}", files.len());
    for (name, path) in &files {
        let report = report(path);
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(name.as_str(), report.render(false));
        });
    }
}

#[test]
fn each_has_a_place_a_message_and_a_remedy() {
    for (name, path) in files() {
        let report = report(&path);
        let warned = name.starts_with("warn_");
        assert!(!report.diagnostics.is_empty(), "{name} is found to be right");
        assert_eq!(report.n_errors() == 0, warned, "{name}: {}", report.render(false));
        assert_eq!(report.diagnostics.len(), 1, "{name} has one mistake: {}", report.render(false));
        for found in &report.diagnostics {
            assert_eq!(found.severity == Severity::Warning, warned, "{name}: {found:?}");
            let source = report.sources.of(found.span);
            let (_, line, column) = report.sources.place(found.span);
            let text = source.text.lines().nth(line - 1);
            let text = text.unwrap_or_else(|| panic!("{name}: no line {line}"));
            assert!(column <= text.chars().count() + 1, "{name}: line {line} has no column {column}");
            assert!(found.span.start <= found.span.end && found.span.end <= source.text.len(), "{name}");
            assert!(!found.message.trim().is_empty(), "{name}");
            let helped = found.help.as_ref().is_some_and(|help| !help.trim().is_empty());
            assert!(helped, "{name}: no remedy for {}", found.message);
        }
        assert!(report.render(true).lines().count() >= report.diagnostics.len(), "{name}");
    }
}
