//! Tables for people.

use crate::diagnostic::printable;
use crate::trace::{AgentSummary, CacheSummary, CostSummary};
use comfy_table::{CellAlignment, Table, presets};
use std::collections::HashSet;

/// A row: the texts and their columns.
pub(super) type TableRow = Vec<(String, String)>;

/// Texts with their heads.
pub(super) fn row<const N: usize>(texts: [(&str, String); N]) -> TableRow {
    texts.into_iter().map(|(head, text)| (head.to_string(), text)).collect()
}

/// A table: head, rows, and the first column of numbers; on a terminal no wider than that.
pub fn table(head: &[&str], rows: Vec<Vec<String>>, numbers_from: usize) -> String {
    table_within(super::width(), head, rows, numbers_from)
}

/// Least columns that a text is wrapped to.
const MIN_COLUMNS: usize = 8;
/// Columns between two of a table's.
const GAP: usize = 2;

/// The same within some columns (`None`: as wide as it is). Texts wrap; numbers that do not fit are in
/// further tables below, after the texts that identify the rows.
pub fn table_within(
    width: Option<usize>,
    head: &[&str],
    rows: Vec<Vec<String>>,
    numbers_from: usize,
) -> String {
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let wide = |rows: &[Vec<String>], column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines());
        let cells = cells.map(console::measure_text_width).max().unwrap_or(0);
        GAP + cells.max(console::measure_text_width(head[column]))
    };
    let all = 0..head.len();
    let limit = width.unwrap_or(usize::MAX);
    if all.clone().map(|column| wide(&rows, column)).sum::<usize>() <= limit {
        return drawn(head, &rows, all.collect(), numbers_from);
    }
    let texts = 0..numbers_from.min(head.len());
    let widest = (texts.end..head.len()).map(|column| wide(&rows, column)).max().unwrap_or(0);
    loop {
        let taken: usize = texts.clone().map(|column| wide(&rows, column)).sum();
        let largest = texts.clone().max_by_key(|column| wide(&rows, *column));
        let Some(column) = largest.filter(|_| taken + widest > limit) else { break };
        let was = wide(&rows, column) - GAP;
        let to = was.saturating_sub(taken + widest - limit).max(MIN_COLUMNS);
        for row in &mut rows {
            if let Some(cell) = row.get_mut(column) {
                *cell = textwrap::fill(cell, to);
            }
        }
        if wide(&rows, column) - GAP >= was {
            break;
        }
    }
    let taken: usize = texts.clone().map(|column| wide(&rows, column)).sum();
    // As many texts as identify the rows, unless a row leaves out a repetition.
    let is_whole = rows.iter().all(|row| row.first().is_some_and(|cell| !cell.is_empty()));
    let apart = |n: &usize| rows.iter().map(|row| row.get(..*n)).collect::<HashSet<_>>().len() == rows.len();
    let keys = (1..texts.end).find(|n| is_whole && apart(n)).unwrap_or(texts.end);
    let mut blocks: Vec<(usize, Vec<usize>)> = Vec::new();
    for column in texts.end..head.len() {
        let own = wide(&rows, column);
        match blocks.last_mut() {
            Some((so_far, columns)) if *so_far + own <= limit => {
                *so_far += own;
                columns.push(column);
            }
            None => blocks.push((taken + own, texts.clone().chain([column]).collect())),
            Some(_) => {
                let keys = 0..keys;
                let taken: usize = keys.clone().map(|column| wide(&rows, column)).sum();
                blocks.push((taken + own, keys.chain([column]).collect()));
            }
        }
    }
    if blocks.is_empty() {
        blocks.push((taken, texts.collect()));
    }
    let blocks = blocks.into_iter().map(|(_, columns)| drawn(head, &rows, columns, numbers_from));
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// Some columns of a table.
fn drawn(head: &[&str], rows: &[Vec<String>], columns: Vec<usize>, numbers_from: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| head[*column].to_string()));
    for row in rows {
        table.add_row(columns.iter().map(|column| row.get(*column).map_or("", String::as_str)));
    }
    for (at, _) in columns.iter().enumerate().filter(|(_, column)| **column >= numbers_from) {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    if let (true, Some(head)) = (super::is_fancy(), lines.first_mut()) {
        *head = console::Style::new().bold().apply_to(&head).to_string();
    }
    lines.join("\n")
}

/// The cost of a run, by agent, then that of all memories.
pub fn costs(summary: &CostSummary) -> String {
    let mut head = vec![
        "agent",
        "lifecycle",
        "turns",
        "match",
        "reused",
        "prefilled",
        "recomputed",
        "generated",
        "TTFT ms",
    ];
    let has_models = summary.agents.values().any(|agent| !agent.models.is_empty());
    if has_models {
        head.insert(1, "model");
    }
    let rows = summary.agents.iter().map(|(key, agent)| {
        let tokens = &agent.tokens;
        let ttft = agent.median_ttft_ms().map_or("-".to_string(), |ms| format!("{ms:.1}"));
        let mut row = vec![
            key.clone(),
            agent.lifecycle.clone(),
            agent.turns.to_string(),
            kinds(agent),
            tokens.reused.to_string(),
            tokens.prefilled.to_string(),
            tokens.recomputed.to_string(),
            tokens.generated.to_string(),
            ttft,
        ];
        if has_models {
            let names: Vec<&str> = agent.models.iter().map(String::as_str).collect();
            row.insert(1, if names.is_empty() { "-".to_string() } else { names.join(", ") });
        }
        row
    });
    table(&head, rows.collect(), if has_models { 5 } else { 4 }) + &super::wrapped(&cache(&summary.cache), "")
}

/// What the memories of a run saved, in a line; empty where nothing was reused.
pub fn savings(cache: &CacheSummary) -> String {
    if cache.reused == 0 {
        return String::new();
    }
    let saved = match cache.saved_ms {
        ms if ms < 0.5 => String::new(), // a remote engine does not say
        ms if ms < 1e3 => format!(", saved about {ms:.0} ms"),
        ms if ms < 1e4 => format!(", saved about {:.1} s", ms / 1e3),
        ms => format!(", saved about {:.0} s", ms / 1e3),
    };
    let tokens = indicatif::HumanCount(cache.reused as u64);
    let text = format!("Reused {tokens} tokens of memory{saved} (--stats shows the cost of each agent)");
    super::wrapped(&text, "") + "\n"
}

/// The savings and costs of the memories, in a sentence.
fn cache(cache: &CacheSummary) -> String {
    if cache.reused == 0 {
        return String::new();
    }
    let seconds = |ms: f64| format!("{:.1} s", ms / 1e3);
    let mut text = format!(
        "\n\nMemory: {} tokens reused, about {} saved; at most {} in RAM, {} written",
        cache.reused,
        seconds(cache.saved_ms),
        bytes(cache.peak_bytes),
        bytes(cache.bytes_written),
    );
    if cache.bytes_read > 0 {
        let (waited, hidden) = (seconds(cache.waited_ms), seconds(cache.prefetch_ms));
        let read = bytes(cache.bytes_read);
        text += &format!(", {read} loaded ({waited} of waiting, {hidden} overlapped with other turns)");
    }
    if let Some(traffic) = cache.objects {
        let (requests, sent, received) =
            (counted(traffic.requests as usize, "request"), bytes(traffic.sent), bytes(traffic.received));
        text += &format!(", {requests} to the object store ({sent} sent, {received} received)");
    }
    if cache.adopted_turns > 0 {
        text += &format!(", {} on memory adopted from another device", counted(cache.adopted_turns, "turn"));
    }
    text + "."
}

fn kinds(agent: &AgentSummary) -> String {
    let kinds = agent.kinds;
    let counted = [
        (kinds.cold, "cold"),
        (kinds.prefix, "prefix"),
        (kinds.extend, "extend"),
        (kinds.exact, "exact"),
        (kinds.diverge, "diverge"),
    ];
    let counted = counted.into_iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}"));
    counted.collect::<Vec<_>>().join(", ")
}

/// A count with its noun, e.g. `1 error`, `2 errors`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Bytes with a unit, e.g. `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_are_a_line_that_a_person_reads_and_nothing_where_nothing_was_reused() {
        let of = |reused, saved_ms| savings(&CacheSummary { reused, saved_ms, ..CacheSummary::default() });
        let line = |what: &str| format!("Reused {what} (--stats shows the cost of each agent)\n");
        assert_eq!(of(0, 5.0), "");
        assert_eq!(of(191, 0.0), line("191 tokens of memory"));
        assert_eq!(of(191, 12.4), line("191 tokens of memory, saved about 12 ms"));
        assert_eq!(of(17_094, 1_480.0), line("17,094 tokens of memory, saved about 1.5 s"));
        assert_eq!(of(1_234_567, 75_400.0), line("1,234,567 tokens of memory, saved about 75 s"));
    }
}
