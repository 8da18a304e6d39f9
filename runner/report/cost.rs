//! Cost of a turn: what its cache contained, and what was computed.

use super::cast::CastIndex;
use super::dialogue::TurnLine;
use crate::backend::CacheSource;
use crate::trace::TurnTrace;
use serde::Serialize;

/// Cost of a turn.
#[derive(Debug, Serialize)]
pub(super) struct CostRow {
    pub(super) n: usize,
    /// Column in the figure, from 0.
    #[serde(skip)]
    pub(super) column: usize,
    pub(super) is_summary: bool,
    is_call: bool,
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
    /// Reason why the cache was not used, or only partly.
    reason: Option<String>,
    /// Devices whose memory was adopted.
    adopted: Option<String>,
}

/// The cost of a line, if the trace has it.
pub(super) fn row(cast: &CastIndex, line: &TurnLine<'_>, column: usize, cost: &TurnTrace) -> Option<CostRow> {
    let kind = cost.kind?.word();
    let state = match cost.source {
        Some(CacheSource::Memory) => "hot",
        Some(CacheSource::Disk) => "warm",
        _ => "cold",
    };
    let key = &line.record.agent;
    Some(CostRow {
        n: line.n,
        column,
        is_summary: line.is_summary,
        is_call: line.is_call,
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
        adopted: cost.adopted.clone(),
    })
}
