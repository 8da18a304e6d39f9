//! The caches turn by turn: what they held and what was computed, as the trace has it; totals as in `summary.json`.

use super::cast::Cast;
use super::chart::{Chart, chart};
use super::dialogue::TurnLine;
use super::sources::Sources;
use crate::backend::{Match, Origin};
use crate::trace::TurnTrace;
use serde::Serialize;

/// Totals, figure and table.
#[derive(Debug, Serialize)]
pub(super) struct Cache {
    totals: Totals,
    chart: Chart,
    rows: Vec<Row>,
    /// Turns that no model answered, or of which nothing is known.
    n_without: usize,
}

/// Sums over all turns that are on record.
#[derive(Debug, Default, Serialize)]
struct Totals {
    reused: u64,
    prefilled: u64,
    recomputed: u64,
    generated: u64,
    /// Per cent of the prompts' tokens that were reused.
    share: f64,
    saved_ms: f64,
    waited_ms: f64,
    bytes_read: u64,
    bytes_written: u64,
    peak_bytes: u64,
}

/// Cost of a turn.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) n: usize,
    /// Column in the figure, from 0.
    #[serde(skip)]
    pub(super) column: usize,
    pub(super) is_summary: bool,
    pub(super) key: String,
    pub(super) place: usize,
    pub(super) name: String,
    /// `hot`, `warm` or `cold`: reused from memory, from disk, or not at all.
    pub(super) state: &'static str,
    /// Match between the prompt and the cache.
    kind: &'static str,
    pub(super) reused: u64,
    pub(super) prefilled: u64,
    pub(super) recomputed: u64,
    pub(super) generated: u64,
    pub(super) ttft_ms: Option<f64>,
    total_ms: Option<f64>,
    /// Reason why the cache was not used, or not wholly.
    reason: Option<String>,
}

/// The account of the caches; `None` without a trace of any turn on record.
pub(super) fn cache(sources: &Sources, cast: &Cast, lines: &[TurnLine<'_>]) -> Option<Cache> {
    let trace = sources.trace.as_ref()?;
    let (mut rows, mut totals) = (Vec::new(), Totals::default());
    for (column, line) in lines.iter().enumerate() {
        let Some(cost) = trace.turns.get(&line.record.path) else { continue };
        totals.add(cost);
        rows.extend(row(cast, line, column, cost));
    }
    if rows.is_empty() {
        return None;
    }
    let prompt = totals.reused.saturating_add(totals.prefilled).saturating_add(totals.recomputed);
    totals.share = 100.0 * totals.reused as f64 / prompt.max(1) as f64;
    let n_without = lines.len() - rows.len();
    Some(Cache { totals, chart: chart(sources, cast, lines, &rows), rows, n_without })
}

fn row(cast: &Cast, line: &TurnLine<'_>, column: usize, cost: &TurnTrace) -> Option<Row> {
    let kind = kind(cost.kind?);
    let state = match cost.source {
        Some(Origin::Memory) => "hot",
        Some(Origin::Disk) => "warm",
        _ => "cold",
    };
    let key = &line.record.agent;
    Some(Row {
        n: line.n,
        column,
        is_summary: line.is_summary,
        key: key.clone(),
        place: cast.place(key),
        name: cast.name(key).to_string(),
        state,
        kind,
        reused: cost.tokens.reused as u64,
        prefilled: cost.tokens.prefilled as u64,
        recomputed: cost.tokens.recomputed as u64,
        generated: cost.tokens.generated as u64,
        ttft_ms: cost.ttft_ms,
        total_ms: cost.total_ms,
        reason: cost.reason.clone(),
    })
}

/// The match between a prompt and the cache, as the trace writes it.
pub(super) fn kind(kind: Match) -> &'static str {
    match kind {
        Match::Cold => "cold",
        Match::Prefix => "prefix",
        Match::Extend => "extend",
        Match::Exact => "exact",
        Match::Diverge => "diverge",
    }
}

impl Totals {
    /// The trace is a file from outside: no figure in it may overflow a sum.
    fn add(&mut self, cost: &TurnTrace) {
        let tokens = cost.tokens;
        for (sum, n) in [
            (&mut self.reused, tokens.reused as u64),
            (&mut self.prefilled, tokens.prefilled as u64),
            (&mut self.recomputed, tokens.recomputed as u64),
            (&mut self.generated, tokens.generated as u64),
            (&mut self.bytes_read, cost.bytes_read),
            (&mut self.bytes_written, cost.bytes_written),
        ] {
            *sum = sum.saturating_add(n);
        }
        self.saved_ms += cost.saved_ms;
        self.waited_ms += cost.waited_ms;
        self.peak_bytes = self.peak_bytes.max(cost.memory_bytes);
    }
}
