//! Verdicts as files for machines: JUnit XML, annotations of GitHub, a summary in Markdown, JSON.

mod github;
mod junit;
mod markdown;

pub use github::github;
pub use junit::junit;
pub use markdown::markdown;

use super::{Problem, ProblemKind, Verdict};
use crate::diagnostic::printable;
use crate::diff::diff_lines;

/// Verdicts as JSON: an array of [`Verdict`].
///
/// # Errors
/// A number that JSON can't hold.
pub fn json(verdicts: &[Verdict]) -> serde_json::Result<String> {
    serde_json::to_string_pretty(verdicts)
}

/// Counts of the verdicts, e.g. `2 pass, 1 drifts; 1 with carried replies`.
pub fn tally(verdicts: &[Verdict]) -> String {
    let (recordings, others): (Vec<&Verdict>, Vec<&Verdict>) =
        verdicts.iter().partition(|verdict| verdict.of.is_none());
    let count =
        |kind: Option<ProblemKind>| recordings.iter().filter(|verdict| verdict.worst() == kind).count();
    let words = [
        (None, "pass", "pass"),
        (Some(ProblemKind::Assertion), "fails an assertion", "fail an assertion"),
        (Some(ProblemKind::Invalid), "has an invalid scenario", "have an invalid scenario"),
        (Some(ProblemKind::Drift), "drifts", "drift"),
        (Some(ProblemKind::Environment), "can't be checked", "can't be checked"),
    ];
    let counted = words.iter().map(|(kind, one, many)| (count(*kind), one, many)).filter(|(n, ..)| *n > 0);
    let counted = counted.map(|(n, one, many)| format!("{n} {}", if n == 1 { one } else { many }));
    let carried = match verdicts.iter().filter(|verdict| verdict.carried).count() {
        0 => String::new(),
        n => format!("; {n} with carried replies"),
    };
    let is_failed = |verdict: &&&Verdict| verdict.worst() == Some(ProblemKind::Assertion);
    let failed = match others.iter().filter(is_failed).count() {
        0 => String::new(),
        1 => "; 1 assertion over many runs fails".to_string(),
        n => format!("; {n} assertions over many runs fail"),
    };
    let unread = match others.iter().filter(|verdict| verdict.worst() > Some(ProblemKind::Assertion)).count()
    {
        0 => String::new(),
        1 => "; 1 experiment can't be judged".to_string(),
        n => format!("; {n} experiments can't be judged"),
    };
    counted.collect::<Vec<_>>().join(", ") + &carried + &failed + &unread
}

impl Verdict {
    /// The worst kind of problem; `None`: it passes.
    pub fn worst(&self) -> Option<ProblemKind> {
        self.problems.iter().map(|problem| problem.kind).max()
    }
}

impl Problem {
    /// In one line: what happened where.
    pub fn headline(&self) -> String {
        let title = printable(&self.title);
        let at = printable(&self.at);
        match self.kind {
            ProblemKind::Drift => format!("drift at {at}: {title}"),
            ProblemKind::Assertion => format!("assertion failed: {title}"),
            ProblemKind::Invalid => format!("invalid scenario: {title}"),
            ProblemKind::Environment => title.to_string(),
        }
    }

    /// All that is known of it, without colours: cause, place, difference.
    pub fn plain(&self) -> String {
        let mut lines = vec![self.headline()];
        if !self.detail.is_empty() {
            lines.push(printable(&self.detail).to_string());
        }
        lines.extend(self.from());
        if self.recorded != self.now {
            lines.push("- recorded, + now".to_string());
            lines.extend(
                diff_lines(&self.recorded, &self.now).iter().map(|(sign, text)| format!("{sign} {text}")),
            );
        }
        lines.join("\n")
    }

    /// The place in the scenario that it comes from, as text.
    pub fn from(&self) -> Option<String> {
        let place = self.place.as_ref()?;
        let field = if place.field.is_empty() { String::new() } else { format!(" (`{}`)", place.field) };
        Some(format!("from {}:{}{field}", place.file, place.line))
    }
}
