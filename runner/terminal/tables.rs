//! Tables for people.

use crate::diagnostic::printable;
use crate::trace::{AgentSummary, CacheSummary, Summary};
use comfy_table::{CellAlignment, Table, presets};

/// A table: head, rows, and from which column on numbers stand.
pub fn table(head: &[&str], rows: Vec<Vec<String>>, numbers_from: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().map(|text| text.to_string()));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for column in numbers_from..head.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    if let (true, Some(head)) = (super::is_fancy(), lines.first_mut()) {
        *head = console::Style::new().bold().apply_to(&head).to_string();
    }
    lines.join("\n")
}

/// The cost of a run, by agent.
pub fn summary(summary: &Summary) -> String {
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
    table(&head, rows.collect(), if has_models { 5 } else { 4 }) + &cache(&summary.cache)
}

/// The savings and costs of the memories, in a sentence.
fn cache(cache: &CacheSummary) -> String {
    if cache.reused == 0 {
        return String::new();
    }
    let seconds = |ms: f64| format!("{:.1} s", ms / 1e3);
    let mut text = format!(
        "\n\nMemory: {} tokens not computed again, about {} saved; at most {} in RAM, {} written",
        cache.reused,
        seconds(cache.saved_ms),
        bytes(cache.peak_bytes),
        bytes(cache.bytes_written),
    );
    if cache.bytes_read > 0 {
        let (waited, hidden) = (seconds(cache.waited_ms), seconds(cache.hidden_ms));
        let read = bytes(cache.bytes_read);
        text += &format!(", {read} read back: {waited} waited for, {hidden} while others spoke");
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
