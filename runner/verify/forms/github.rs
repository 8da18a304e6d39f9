//! GitHub's workflow commands: an annotation on the line that a problem comes from.
//! <https://docs.github.com/actions/reference/workflow-commands-for-github-actions>

use crate::diagnostic::printable;
use crate::verify::Verdict;
use std::path::Path;

/// An `::error` line for each problem: on the scenario's line if it comes from there, else on the
/// recording's; a `::notice` for each note, on the recording's first line. Files are named from `root` on,
/// the checkout's folder, if they lie below it.
pub fn github(verdicts: &[Verdict], root: Option<&Path>) -> String {
    let mut out = String::new();
    for (verdict, problem) in verdicts.iter().flat_map(|v| v.problems.iter().map(move |problem| (v, problem)))
    {
        let (file, line) = match &problem.place {
            Some(place) => (place.file.as_str(), place.line),
            None => (verdict.file.as_str(), problem.line.unwrap_or(1)),
        };
        let title = property(&format!("greenroom: {}", problem.headline()));
        let message = data(&format!("{}\n{}", verdict.file, problem.plain()));
        out +=
            &format!("::error file={},line={line},title={title}::{message}\n", property(&below(root, file)));
    }
    for (verdict, note) in verdicts.iter().flat_map(|v| v.notes.iter().map(move |note| (v, note))) {
        let file = property(&below(root, &verdict.file));
        let message = data(&format!("{}\n{}", verdict.file, printable(note)));
        out += &format!("::notice file={file},line=1,title=greenroom%3A note::{message}\n");
    }
    out
}

/// A file's path from the root on.
fn below(root: Option<&Path>, file: &str) -> String {
    let inside = || {
        let (root, file) = (root?.canonicalize().ok()?, Path::new(file).canonicalize().ok()?);
        Some(file.strip_prefix(root).ok()?.display().to_string())
    };
    inside().unwrap_or_else(|| file.to_string())
}

/// Text after the second `::`.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Text of a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
