//! Shows what differs between a recording and what would be read now, and verdicts on recordings.

use crate::diagnostic::printable;
use crate::diff::diff_lines;
use crate::verify::{Problem, Verdict};
use console::Style;
use std::fmt::Write as _;

/// Lines of a diff, `-` as recorded and `+` as it is now, in colour for a terminal.
pub fn show_diff(recorded: &str, now: &str, fancy: bool) -> String {
    let mut out = String::new();
    for (sign, text) in diff_lines(recorded, now) {
        let style = match sign {
            '-' => Style::new().red(),
            '+' => Style::new().green(),
            _ => Style::new().dim(),
        };
        let line = format!("{sign} {text}");
        let line = if fancy { style.force_styling(true).apply_to(line).to_string() } else { line };
        // Writing to a String can't fail.
        let _ = writeln!(out, "  {line}");
    }
    out
}

/// A verdict as text: what was found, and of a problem which turn, why, from where, and the difference.
pub fn show_verdict(verdict: &Verdict, fancy: bool) -> String {
    let mut out = String::new();
    if let Some(of) = verdict.of.as_ref().filter(|_| verdict.problems.is_empty()) {
        let _ = match verdict.figures.as_slice() {
            [only] => writeln!(out, "{}: {}: {}", verdict.file, printable(of), printable(only)),
            _ => writeln!(out, "{}: {}", verdict.file, printable(of)),
        };
        for figure in verdict.figures.iter().filter(|_| verdict.figures.len() > 1) {
            let _ = writeln!(out, "  {}", printable(figure));
        }
    } else if verdict.problems.is_empty() {
        let _ = write!(out, "{}: {} turns, nothing changed", verdict.file, verdict.turns);
        if let Some(score) = &verdict.score {
            let mean = score.mean_logprob.map_or(String::new(), |mean| format!(", {mean:.3} nats per token"));
            let _ = write!(out, "; {} draws, {} surprises{mean}", score.tokens, score.surprises.len());
        }
        if let Some(level) = verdict.again {
            let _ = write!(out, "; played again: the same ({level})");
        }
        out.push('\n');
    }
    verdict.problems.iter().for_each(|problem| out += &show_problem(&verdict.file, problem, fancy));
    for note in &verdict.notes {
        let _ = writeln!(out, "  note: {}", printable(note));
    }
    if let Some(pending) = &verdict.pending {
        let _ = writeln!(
            out,
            "  the recording as it would be made now: {pending} (use `greenroom review` to show, accept or \
             reject it)"
        );
    }
    out
}

fn show_problem(file: &str, problem: &Problem, fancy: bool) -> String {
    let line = problem.line.map_or(String::new(), |line| format!(":{line}"));
    let headline = problem.headline();
    let headline = if fancy { Style::new().bold().apply_to(headline).to_string() } else { headline };
    let mut out = format!("{file}{line}: {headline}\n");
    for text in [Some(printable(&problem.detail).to_string()), problem.from()].into_iter().flatten() {
        if !text.is_empty() {
            let _ = writeln!(out, "  {}", text.replace('\n', "\n  "));
        }
    }
    if problem.recorded != problem.now {
        out.push_str("  - recorded, + now\n");
        out.push_str(&show_diff(&problem.recorded, &problem.now, fancy));
    }
    out
}
