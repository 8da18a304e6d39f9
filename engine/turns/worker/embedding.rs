//! Requests for embeddings: one after the other, a pass at a time between passes over turns. Room is kept for
//! the active one as for a turn; one that waits for room begins before turns that wait.

use super::Worker;
use crate::Meter;
use crate::scoring::embedding::{Embedder, EmbeddingSender};
use std::collections::VecDeque;

/// Requests for embeddings, the active one first.
#[derive(Default)]
pub(super) struct Embedding {
    requests: VecDeque<Embedder>,
    /// Bytes that are kept for the first one; 0: it has not begun.
    pub(super) need: u64,
    /// True if the first one found no room when it was last tried.
    pub(super) waits: bool,
}

impl Embedding {
    /// True if there is something to go on with now.
    pub(super) fn is_ready(&self) -> bool {
        !self.requests.is_empty() && !self.waits
    }

    /// True if a request has not begun.
    pub(super) fn is_next(&self) -> bool {
        !self.requests.is_empty() && self.need == 0
    }
}

impl Worker {
    /// Takes a request, or tells what is wrong with it.
    pub(super) fn embed(&mut self, texts: Vec<Vec<u32>>, meter: Option<Meter>, answer: EmbeddingSender) {
        match Embedder::new(&self.device, texts, meter, answer) {
            Ok(embedder) => self.embedding.requests.push_back(embedder),
            Err((e, answer)) => drop(answer.send(Err(e))),
        }
    }

    /// One pass of the request whose turn it is.
    pub(super) fn go_on_embedding(&mut self) {
        self.drop_cancelled_embeddings();
        let Some(mut embedder) = self.embedding.requests.pop_front() else { return };
        if self.embedding.need == 0 {
            let need = embedder.need().max(1);
            self.embedding.waits = !self.fits(need);
            if self.embedding.waits {
                return self.embedding.requests.push_front(embedder);
            }
            self.embedding.need = need;
            self.enforce_budget();
        }
        let share = self.memory.share.clone();
        let step = {
            let _baton = share.as_ref().map(|share| share.baton());
            embedder.step()
        };
        match step {
            Ok(false) => self.embedding.requests.push_front(embedder),
            step => {
                embedder.answer(step.map(drop));
                self.make_way();
            }
        }
    }

    /// Gives back the room that was kept: those that wait may begin.
    fn make_way(&mut self) {
        (self.embedding.need, self.embedding.waits, self.held_up) = (0, false, false);
        self.enforce_budget();
    }

    fn drop_cancelled_embeddings(&mut self) {
        let is_first_cancelled = self.embedding.requests.front().is_some_and(Embedder::is_cancelled);
        self.embedding.requests.retain(|embedder| !embedder.is_cancelled());
        if is_first_cancelled {
            self.make_way();
        }
    }
}
