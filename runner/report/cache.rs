//! The caches turn by turn: what they contained and what was computed, according to the trace; totals as in
//! `summary.json`.

use super::cast::CastIndex;
use super::chart::{Chart, chart};
use super::cost::{CostRow, row};
use super::dialogue::TurnLine;
use super::sources::ReportSources;
use crate::trace::TurnTrace;
use serde::Serialize;

/// Totals, figure and table.
#[derive(Debug, Serialize)]
pub(super) struct CacheView {
    totals: Totals,
    chart: Chart,
    rows: Vec<CostRow>,
    /// Turns that no model answered, or without a trace.
    n_without: usize,
}

/// Sums over all recorded turns.
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

/// The account of the caches; `None` without a trace of any turn on record.
pub(super) fn cache(sources: &ReportSources, cast: &CastIndex, lines: &[TurnLine<'_>]) -> Option<CacheView> {
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
    Some(CacheView { totals, chart: chart(sources, cast, lines, &rows), rows, n_without })
}

impl Totals {
    /// The trace is an external file: no figure in it may overflow a sum.
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
