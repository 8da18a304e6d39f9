//! The part of a reply shown while it streams, over all attempts: a repeated request starts it over.

use crate::backend::{Progress, Sink};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a reply's text is sent while it streams.
pub(super) struct ShownReply<'a> {
    sink: &'a Sink,
    bytes: AtomicUsize,
}

impl<'a> ShownReply<'a> {
    pub(super) fn new(sink: &'a Sink) -> Self {
        Self { sink, bytes: AtomicUsize::new(0) }
    }

    /// The sink, for what is not text.
    pub(super) fn sink(&self) -> &Sink {
        self.sink
    }

    /// Shows the part of `text` that no earlier attempt has shown; `said` is what the present attempt has
    /// said before, in bytes.
    pub(super) fn show(&self, said: &mut usize, text: &str) {
        let before = *said;
        *said += text.len();
        let known = self.bytes.fetch_max(*said, Ordering::Relaxed).saturating_sub(before);
        if let Some(new) = text.get(known..).filter(|new| !new.is_empty()) {
            (self.sink)(Progress::Text(new.to_string()));
        }
    }
}
