//! Shows what differs between two recordings.

use super::show_diff;
use crate::diagnostic::printable;
use crate::verify::{Difference, What};
use console::Style;
use std::fmt::Write as _;

/// Settings and results a line each; of the turns the first that differs (or all), as a diff, and how many
/// do. `n_turns`: those of the first recording.
pub fn show_differences(found: &[Difference], n_turns: usize, all: bool, fancy: bool) -> String {
    let mut out = String::new();
    if found.is_empty() {
        return "  nothing differs\n".to_string();
    }
    let bold = |text: String| if fancy { Style::new().bold().apply_to(text).to_string() } else { text };
    let line = |what: &str, found: &Difference| {
        let (at, (was, now)) = (printable(&found.at), distinguished(&found.was, &found.now));
        format!("  {} {at}: {was} -> {now}\n", bold(format!("{what:<9}")))
    };
    for setting in found.iter().filter(|found| found.what == What::Setting) {
        out += &line("setting", setting);
    }
    let in_turn = |what| matches!(what, What::Gone | What::New | What::Prompt | What::Reply | What::Detail);
    let turns: Vec<&Difference> = found.iter().filter(|found| in_turn(found.what)).collect();
    let mut paths: Vec<&str> = turns.iter().map(|found| found.at.as_str()).collect();
    paths.dedup();
    for turn in turns.iter().take(if all { usize::MAX } else { 1 }) {
        let place = turn.line.map_or(String::new(), |line| format!(" (line {line})"));
        let words = turn.what.words();
        let _ = writeln!(out, "  {} {}{place}: {words}", bold(format!("{:<9}", "turn")), printable(&turn.at));
        for line in show_diff(&turn.was, &turn.now, fancy).lines() {
            let _ = writeln!(out, "  {line}");
        }
    }
    if let (false, Some(first)) = (paths.is_empty(), paths.first()) {
        let n = paths.len();
        let n_new = turns.iter().filter(|found| found.what == What::New).count();
        let part = format!(
            "{n} of {} {}, from {first} on",
            n_turns + n_new,
            if n == 1 { "differs" } else { "differ" }
        );
        let _ = writeln!(out, "  {} {part}", bold(format!("{:<9}", counted_word(n))));
    }
    for result in found.iter().filter(|found| found.what.is_result()) {
        let word = format!("{:?}", result.what).to_lowercase();
        out += &line(&word, result);
    }
    out
}

fn counted_word(n: usize) -> &'static str {
    if n == 1 { "turn" } else { "turns" }
}

/// Two different values in one line each, cut so that the difference is seen.
fn distinguished(was: &str, now: &str) -> (String, String) {
    let both = (short(was), short(now));
    if both.0 != both.1 {
        return both;
    }
    // Quoted, so that also white space and an empty text are seen.
    let (was, now): (Vec<char>, Vec<char>) =
        (printable(&format!("{was:?}")).chars().collect(), printable(&format!("{now:?}")).chars().collect());
    let same = was.iter().zip(&now).take_while(|(was, now)| was == now).count();
    let from = same.saturating_sub(MAX_SHORT / 2);
    let window = |text: &[char]| {
        let to = text.len().min(from + MAX_SHORT);
        let (before, after) = (if from > 0 { "…" } else { "" }, if to < text.len() { "…" } else { "" });
        let shown: String = text.get(from..to).unwrap_or_default().iter().collect();
        format!("{before}{shown}{after}")
    };
    (window(&was), window(&now))
}

/// Longest value in characters.
const MAX_SHORT: usize = 70;

/// A value in one line.
fn short(text: &str) -> String {
    let text = printable(text).replace('\n', " ");
    // A plan's hash has a version before it.
    let digits = text.split_once(':').map_or(text.as_str(), |(_, digits)| digits);
    let is_hash = digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let kept: String = text.chars().take(if is_hash { text.len() - 56 } else { MAX_SHORT }).collect();
    if text.is_empty() {
        "nothing".to_string()
    } else if kept.len() < text.len() {
        format!("{kept}…")
    } else {
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_values_that_differ_are_never_shown_alike() {
        let long = |end: &str| format!("{{\"system\":\"{}{end}\"}}", "You are one of the two. ".repeat(9));
        let pairs = [
            (long("Be kind."), long("Be brief.")),
            (long(""), long("Be brief.")),
            ("a\nb".into(), "a b".into()),
            (String::new(), "nothing".into()),
            ("\u{1b}".repeat(80), "\u{1b}".repeat(81)),
            ("x".repeat(80), format!("{}…", "x".repeat(70))),
        ];
        for (was, now) in pairs {
            let (was, now) = distinguished(&was, &now);
            assert_ne!(was, now);
            assert!(was.chars().count() <= 74 && now.chars().count() <= 74, "{was} {now}");
        }
        let (was, now) = distinguished(&long("Be kind."), &long("Be brief."));
        assert!(was.contains("Be kind.") && now.contains("Be brief."), "{was} {now}");
    }
}
