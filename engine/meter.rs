//! Counts of computed tokens, updated while requests are active.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens that were computed for requests: those of prompts that were not reused, as they are read, and those
/// of replies, as they are generated. What a request has cost by the time that it is cancelled, or fails, is
/// counted like the rest. Clones count together.
///
/// ```
/// use greenroom_engine::{Conversation, Meter, Request, SessionKey};
///
/// let meter = Meter::default();
/// let conversation = Conversation { next: "Good morning.".into(), ..Conversation::default() };
/// let request = Request::new(SessionKey::new("run", "ada"), conversation);
/// let request = Request { meter: Some(meter.clone()), ..request };
/// // An engine adds what it computes for the request; the caller may add work that is done elsewhere.
/// meter.add(3);
/// assert_eq!(request.meter.map(|of_request| of_request.total()), Some(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    /// Tokens so far.
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts tokens that were computed elsewhere.
    pub fn add(&self, tokens: usize) {
        self.0.fetch_add(tokens as u64, Ordering::Relaxed);
    }
}
