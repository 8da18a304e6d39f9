//! A summary in Markdown, for a pull request or a workflow's page.

use super::tally;
use crate::diagnostic::printable;
use crate::diff::diff_lines;
use crate::verify::Verdict;
use std::fmt::Write as _;

/// Verdicts as Markdown: a table of all recordings, notes, then what is wrong, each with its cause.
pub fn markdown(verdicts: &[Verdict]) -> String {
    let mut out =
        format!("## Greenroom: {}\n\n| recording | turns | verdict |\n|---|--:|---|\n", tally(verdicts));
    for verdict in verdicts {
        let found = match verdict.problems.first() {
            None => match verdict.figures.as_slice() {
                [only] => format!("pass: {only}"),
                _ => "pass".to_string(),
            },
            Some(first) => first.headline(),
        };
        // Writing to a String can't fail.
        let turns = if verdict.of.is_none() { verdict.turns.to_string() } else { String::new() };
        let _ = writeln!(out, "| {} | {turns} | {} |", cell(&verdict.name()), cell(&found));
    }
    for verdict in verdicts.iter().filter(|verdict| verdict.figures.len() > 1) {
        let _ = writeln!(out, "\n{}:\n", cell(&verdict.name()));
        for figure in &verdict.figures {
            let _ = writeln!(out, "- {}", cell(&printable(figure)));
        }
    }
    let notes = verdicts.iter().flat_map(|v| v.notes.iter().map(move |note| (&v.file, note)));
    for (at, (file, note)) in notes.enumerate() {
        let line = if at == 0 { "\n" } else { "" };
        let _ = writeln!(out, "{line}- {}: {}", cell(file), cell(&printable(note)));
    }
    for verdict in verdicts.iter().filter(|verdict| !verdict.problems.is_empty()) {
        let _ = writeln!(out, "\n### {}", cell(&verdict.name()));
        for problem in &verdict.problems {
            let _ = writeln!(out, "\n**{}**", cell(&problem.headline()));
            let detail = Some(printable(&problem.detail).to_string()).filter(|detail| !detail.is_empty());
            let lines: Vec<String> = detail.into_iter().chain(problem.from()).collect();
            if !lines.is_empty() {
                let _ = writeln!(out, "\n{}", fenced("", &lines.join("\n")));
            }
            if problem.recorded != problem.now {
                let lines = diff_lines(&problem.recorded, &problem.now);
                let lines: Vec<String> = lines.iter().map(|(sign, text)| format!("{sign} {text}")).collect();
                let _ = writeln!(out, "\n{}", fenced("diff", &lines.join("\n")));
            }
        }
    }
    out
}

/// Text as code: nothing in it is markup, whatever a model said. The fence is longer than any in the text.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.lines().map(|line| line.chars().filter(|c| *c == '`').count()).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

/// Text in one cell of a table, without markup.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            c if "\\`*_[]|#!~@".contains(c) => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
