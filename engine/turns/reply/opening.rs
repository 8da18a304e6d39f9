//! What a reply says before its speech or call: a thought, what ends one, and what leads to a speech.
//!
//! A thought that has reached its limit is ended by the ids with which the template ends one. A reply that has a
//! form (a grammar, or that of a call) begins with the ids that lead to a speech, unless a thought may come
//! first: one that the prompt has opened, or that the reply itself begins with.

use crate::text::chat::ReplyForm;
use crate::text::prefix::overlap;
use crate::text::thoughts::{ThoughtForm, ThoughtReader};
use std::sync::Arc;

/// The part of a reply before its speech.
#[derive(Default)]
pub(super) struct Opening {
    /// Finds its thought, and where its speech begins.
    pub(super) thoughts: ThoughtReader,
    /// Limit of the thought's tokens.
    pub(super) max_thought: usize,
    /// Ids that must be said: where they begin, and which.
    script: Option<(usize, Arc<[u32]>)>,
    /// Ids that end a thought.
    close: Arc<[u32]>,
    /// True if these end it though no speech begins with them.
    is_ended_by_script: bool,
    /// Ids that begin a thought, as long as a reply that has a form may begin with one.
    open: Arc<[u32]>,
    /// The id that begins no further thought once the limit is reached; `None`: it begins other things, too.
    thinks_by: Option<u32>,
    /// What a reply without a thought begins with, if it has a form.
    lead: Arc<[u32]>,
    /// The same of a call that needs no header of a speech.
    call_lead: Arc<[u32]>,
    /// Number of ids that lead to its speech, of a reply that does not begin with a thought.
    pub(super) n_lead: usize,
    /// Number of ids before its speech or call.
    pub(super) n_before: usize,
}

impl Opening {
    /// Thoughts of this form, without a limit.
    pub(super) fn of_text(thoughts: ThoughtForm) -> Self {
        Self { thoughts: ThoughtReader::new(thoughts), max_thought: usize::MAX, ..Self::default() }
    }

    /// Replies of this form, with a thought of at most so many tokens.
    pub(super) fn new(form: &ReplyForm, max_thought: usize) -> Self {
        let [close, lead, call_lead, open] =
            [&form.close, &form.lead, &form.call_lead, &form.open].map(|ids| Arc::from(&ids[..]));
        // (Harmony begins a thought and a speech by the same id.)
        let thinks_by = form.open.first().copied().filter(|id| form.lead.first() != Some(id));
        let thoughts = ThoughtReader::new(form.thoughts.clone());
        let mut opening =
            Self { thoughts, max_thought, close, lead, call_lead, open, thinks_by, ..Self::default() };
        opening.limit_thought(&[]);
        opening
    }

    /// It leads to a call that needs no header of a speech.
    pub(super) fn lead_to_call(&mut self) {
        let close = self.close.strip_suffix(&*self.lead).filter(|close| !close.is_empty());
        if let Some(close) = close.filter(|_| !self.lead.is_empty()) {
            (self.close, self.is_ended_by_script) = (close.into(), true);
        }
        self.lead = self.call_lead.clone();
    }

    /// A reply that has a form begins: with a thought, if there may be one, or with what leads to its speech.
    /// True if its speech begins at once.
    pub(super) fn begin_form(&mut self, thinks: bool) -> bool {
        let may_think = thinks && (self.thoughts.is_in_thought() || !self.open.is_empty());
        if may_think || self.script.is_some() {
            return false;
        }
        (self.open, self.n_lead) = (Arc::default(), self.lead.len());
        self.script = (!self.lead.is_empty()).then(|| (0, self.lead.clone()));
        self.script.is_none()
    }

    /// A reply that has a form, and may think first, begins with this id. True if its speech begins with it.
    pub(super) fn begin_with(&mut self, id: u32) -> bool {
        if !self.opens(id) {
            return self.begin_form(false);
        }
        self.script = Some((0, self.open.clone()));
        false
    }

    /// True if the first id of a reply begins a thought.
    pub(super) fn opens(&self, id: u32) -> bool {
        self.open.first() == Some(&id)
    }

    /// True if a reply that has a form may begin with a thought of its own.
    pub(super) fn may_open(&self) -> bool {
        !self.open.is_empty() && !self.thoughts.is_in_thought()
    }

    /// Ends a thought that has reached its limit, as far as it has not begun to end.
    fn limit_thought(&mut self, ids: &[u32]) {
        let is_over = self.thoughts.is_in_thought() && ids.len() >= self.max_thought;
        if is_over && self.script.is_none() && !self.close.is_empty() {
            self.script = Some((ids.len() - overlap(ids, &self.close), self.close.clone()));
        }
    }

    /// True if the next id is given.
    pub(super) fn is_scripted(&self) -> bool {
        self.script.is_some()
    }

    /// The id that must be said after `n` of them.
    pub(super) fn forced(&self, n: usize) -> Option<u32> {
        let (begin, ids) = self.script.as_ref()?;
        ids.get(n - begin).copied()
    }

    /// The id that a reply which has a form begins with, where it does not think first; `None`: its form says.
    pub(super) fn first_of_lead(&self) -> Option<u32> {
        self.lead.first().copied()
    }

    /// True if an id would begin a further thought after `n` ids, when none may be.
    pub(super) fn refuses(&self, id: u32, n: usize) -> bool {
        Some(id) == self.thinks_by && !self.thoughts.is_in_thought() && n >= self.max_thought
    }

    /// True if an id goes on with a thought though it ends replies (harmony ends each message by the same id).
    pub(super) fn goes_on_with(&self, id: u32) -> bool {
        self.thoughts.is_in_thought() && self.close.first() == Some(&id)
    }

    /// Takes note of the last of these ids and their bytes, before which there were `known` bytes. `None`: it is
    /// of the speech; else, whether the speech begins with the next one.
    pub(super) fn see(&mut self, ids: &[u32], bytes: &[u8], known: usize) -> Option<bool> {
        self.limit_thought(ids);
        if let Some((begin, script)) = &self.script {
            let is_over = begin + script.len() <= ids.len();
            let is_close = *script == self.close;
            if is_over {
                self.script = None;
            }
            if is_over && is_close && self.thoughts.is_in_thought() {
                if self.is_ended_by_script {
                    self.thoughts.end_thought_at(bytes);
                } else {
                    self.close = Arc::default(); // marks of another kind: it ends by itself, or at the limit
                }
            }
            return Some(is_over && !self.thoughts.is_in_thought());
        }
        if self.thoughts.is_in_thought() {
            return Some(false);
        }
        (self.thoughts.head() > known).then_some(true)
    }

    /// True if a thought's tokens are the reply's: it has no limit of its own, or can't be ended.
    pub(super) fn counts_thought(&self, is_asked: bool) -> bool {
        is_asked || self.close.is_empty()
    }

    /// Tokens that may stand before a speech besides those of the reply.
    pub(super) fn n_besides(&self, counts_thought: bool) -> usize {
        let lead = self.n_lead.max(self.lead.len() * usize::from(!self.open.is_empty()));
        match self.counts_thought(counts_thought) {
            true => lead,
            false => self.max_thought.saturating_add(self.close.len() + lead),
        }
    }
}
