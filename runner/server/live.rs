//! What the server is doing: requests as they run, what they cost, and totals for `/metrics`.

use greenroom_engine::Completion;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of turns that are remembered.
const MAX_PAST: usize = 2_000;
/// Maximum number of characters shown of an unfinished reply.
const MAX_SHOWN: usize = 600;

/// All requests, present and past.
#[derive(Debug)]
pub(super) struct Live {
    state: Mutex<LiveState>,
    registry: Registry,
    counts: Metrics,
    /// Bytes of memories that requests wrote to the disk.
    pub(super) written: AtomicU64,
}

#[derive(Debug, Default)]
struct LiveState {
    next: u64,
    requests: BTreeMap<u64, ActiveRequest>,
    past: VecDeque<EndedTurn>,
}

#[derive(Debug, Default)]
struct Metrics {
    requests: Family<ByStatus, Counter>,
    tokens: Family<ByKind, Counter>,
    matches: Family<ByMatch, Counter>,
    at_work: Gauge,
    waiting: Gauge,
    memory: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByStatus {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKind {
    kind: TokenUse,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
#[allow(non_camel_case_types)] // as they stand in the text
enum TokenUse {
    reused,
    prefilled,
    recomputed,
    generated,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByMatch {
    kind: &'static str,
}

/// An active request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ActiveRequest {
    pub(super) id: u64,
    #[serde(skip)]
    pub(super) tenant: String,
    pub(super) route: &'static str,
    pub(super) model: String,
    /// Name of the memory, once it is known.
    pub(super) memory: String,
    pub(super) stage: RequestStage,
    /// The end of the text so far.
    pub(super) text: String,
    #[serde(skip)]
    pub(super) since: Instant,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "stage")]
pub(super) enum RequestStage {
    /// It waits for a place.
    Waiting,
    /// Its prompt is being read: tokens so far, and in total.
    Reading { done: usize, total: usize },
    /// It is being answered.
    Speaking,
}

/// A turn that has ended.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EndedTurn {
    pub(super) number: u64,
    #[serde(skip)]
    pub(super) tenant: String,
    pub(super) model: String,
    pub(super) memory: String,
    #[serde(rename = "match")]
    pub(super) kind: &'static str,
    pub(super) source: &'static str,
    pub(super) reused: usize,
    pub(super) prefilled: usize,
    pub(super) recomputed: usize,
    pub(super) generated: usize,
    pub(super) ttft_ms: f64,
    pub(super) total_ms: f64,
}

/// An active request, until this is dropped.
#[derive(Debug)]
pub(super) struct RequestGuard {
    live: Arc<Live>,
    id: u64,
}

impl Live {
    pub(super) fn new() -> Arc<Self> {
        let (mut registry, counts) = (Registry::with_prefix("greenroom"), Metrics::default());
        registry.register("requests", "Requests by route and HTTP status", counts.requests.clone());
        registry.register("tokens", "Tokens by cost", counts.tokens.clone());
        registry.register("matches", "Turns by how the prompt matched the memory", counts.matches.clone());
        registry.register("requests_at_work", "Active requests", counts.at_work.clone());
        registry.register("requests_waiting", "Waiting requests", counts.waiting.clone());
        registry.register("memory_bytes", "Bytes of KV cache in RAM", counts.memory.clone());
        Arc::new(Self { state: Mutex::default(), registry, counts, written: AtomicU64::new(0) })
    }

    /// A request has arrived.
    pub(super) fn enter(self: &Arc<Self>, tenant: &str, route: &'static str, model: &str) -> RequestGuard {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        let request = ActiveRequest {
            id,
            tenant: tenant.to_string(),
            route,
            model: model.to_string(),
            memory: String::new(),
            stage: RequestStage::Waiting,
            text: String::new(),
            since: Instant::now(),
        };
        state.requests.insert(id, request);
        RequestGuard { live: self.clone(), id }
    }

    /// Active requests of a tenant.
    pub(super) fn requests(&self, tenant: &str) -> Vec<ActiveRequest> {
        self.state().requests.values().filter(|request| request.tenant == tenant).cloned().collect()
    }

    /// Turns of a tenant that have ended since the one of that number, oldest first.
    pub(super) fn past(&self, tenant: &str, since: u64) -> Vec<EndedTurn> {
        let state = self.state();
        state.past.iter().filter(|past| past.tenant == tenant && past.number > since).cloned().collect()
    }

    /// A request was answered with this status.
    pub(super) fn answered(&self, route: &str, status: u16) {
        self.counts.requests.get_or_create(&ByStatus { route: route.to_string(), status }).inc();
    }

    /// All figures in Prometheus's text format.
    pub(super) fn metrics(&self, load: super::queue::Load, memory: u64) -> String {
        self.counts.at_work.set(load.at_work as i64);
        self.counts.waiting.set(load.waiting as i64);
        self.counts.memory.set(i64::try_from(memory).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestGuard {
    fn change(&self, change: impl FnOnce(&mut ActiveRequest)) {
        if let Some(request) = self.live.state().requests.get_mut(&self.id) {
            change(request);
        }
    }

    pub(super) fn at(&self, stage: RequestStage) {
        self.change(|request| request.stage = stage);
    }

    pub(super) fn remembers(&self, memory: &str) {
        self.change(|request| memory.clone_into(&mut request.memory));
    }

    pub(super) fn says(&self, text: &str) {
        self.change(|request| {
            request.stage = RequestStage::Speaking;
            request.text.push_str(text);
            let excess = request.text.len().saturating_sub(MAX_SHOWN);
            let cut = (excess..request.text.len()).find(|at| request.text.is_char_boundary(*at));
            request.text.drain(..cut.unwrap_or(0));
        });
    }

    /// A turn of the request has ended.
    pub(super) fn ended(&self, completion: &Completion) {
        let usage = &completion.usage;
        let counts = &self.live.counts;
        let count = |kind, n: usize| counts.tokens.get_or_create(&ByKind { kind }).inc_by(n as u64);
        count(TokenUse::reused, usage.reused);
        count(TokenUse::prefilled, usage.prefilled);
        count(TokenUse::recomputed, usage.recomputed);
        count(TokenUse::generated, completion.ids.len());
        self.live.written.fetch_add(usage.bytes_written, Ordering::Relaxed);
        let kind = usage.kind.word();
        counts.matches.get_or_create(&ByMatch { kind }).inc();
        let mut state = self.live.state();
        let Some(request) = state.requests.get(&self.id) else { return };
        let number = state.past.back().map_or(1, |past| past.number + 1);
        let past = EndedTurn {
            number,
            tenant: request.tenant.clone(),
            model: request.model.clone(),
            memory: request.memory.clone(),
            kind,
            source: usage.source.word(),
            reused: usage.reused,
            prefilled: usage.prefilled,
            recomputed: usage.recomputed,
            generated: completion.ids.len(),
            ttft_ms: usage.ttft_ms,
            total_ms: usage.total_ms,
        };
        state.past.push_back(past);
        if state.past.len() > MAX_PAST {
            state.past.pop_front();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.live.state().requests.remove(&self.id);
    }
}
