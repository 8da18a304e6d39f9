//! The part of a prompt that an engine should have cached, the part that it reports, and why the two differ.
//!
//! An agent's prompt begins with its last prompt and reply, so all of that can be in the engine's cache
//! except the reply's last token, which was sampled but never read. If less than that is reused, the rest was
//! computed again, and paid for, so it is reported with its likely cause.

use crate::backend::{CacheSource, MatchKind, Session, Usage};
use greenroom_engine::common_prefix;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Maximum number of tokens by which the text of a reply may differ from its sampled tokens and still count
/// as them.
const RESPELLED: usize = 8;

/// What engines hold of sessions, as far as this process has asked them.
#[derive(Default)]
pub(super) struct HeldSessions(Mutex<HashMap<Session, SessionPast>>);

/// The turns of one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SessionPast {
    /// The last prompt and its reply; empty where prompts are messages.
    pub(super) ids: Vec<u32>,
    /// Tokens that the engine read, turn by turn.
    pub(super) read: Vec<usize>,
}

/// What a prompt should find in the engine's cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedReuse {
    /// Tokens, in whole blocks.
    tokens: usize,
    block: usize,
    /// The prompt begins with all that the engine holds.
    extends: bool,
    /// The session was asked before.
    goes_on: bool,
    by_messages: bool,
    /// Tokens read by the end of each earlier turn.
    read: Vec<usize>,
}

/// The result.
pub(super) struct ReuseOutcome {
    pub(super) prompt_tokens: usize,
    pub(super) cached: Option<usize>,
    pub(super) reply_tokens: usize,
    pub(super) token_ms: f64,
    pub(super) ttft_ms: f64,
    pub(super) total_ms: f64,
}

impl HeldSessions {
    /// What is known of a session, or of the one that it begins with.
    pub(super) fn past(&self, session: &Session, parent: Option<&Session>) -> Option<SessionPast> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(session).or_else(|| held.get(parent?)).cloned()
    }

    /// A turn has ended.
    pub(super) fn keep(&self, session: Session, past: SessionPast) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(session, past);
    }

    pub(super) fn forget(&self, session: &Session) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }
}

impl ExpectedReuse {
    /// What `prompt` (ids; empty: messages) should find, after `past`.
    pub(super) fn new(past: Option<&SessionPast>, prompt: &[u32], block: usize) -> Self {
        let Some(past) = past else {
            let (by_messages, read) = (prompt.is_empty(), Vec::new());
            return Self { tokens: 0, block, extends: true, goes_on: false, by_messages, read };
        };
        let common = common_prefix(&past.ids, prompt);
        let read = past.read.last().copied().unwrap_or(0);
        // Of a prompt one token at least is computed, for what it gives.
        let reusable =
            if past.ids.is_empty() { read } else { read.min(common).min(prompt.len().saturating_sub(1)) };
        let tokens = reusable / block * block;
        let (by_messages, read) = (prompt.is_empty(), past.read.clone());
        Self { tokens, block, extends: common == past.ids.len(), goes_on: true, by_messages, read }
    }

    /// The turn's account; `None`: the engine does not report what it reused.
    pub(super) fn account(&self, outcome: &ReuseOutcome) -> Option<Usage> {
        let cached = outcome.cached?.min(outcome.prompt_tokens);
        let missing = self.tokens.saturating_sub(cached);
        let kind = match (self.goes_on, self.extends, cached) {
            (true, true, _) => MatchKind::Extend,
            (true, false, _) => MatchKind::Diverge,
            (false, _, 0) => MatchKind::Cold,
            (false, _, _) => MatchKind::Prefix,
        };
        Some(Usage {
            kind,
            source: if cached > 0 { CacheSource::Memory } else { CacheSource::None },
            reused: cached,
            prefilled: outcome.prompt_tokens - cached - missing.min(outcome.prompt_tokens - cached),
            recomputed: missing.min(outcome.prompt_tokens - cached),
            generated: outcome.reply_tokens,
            ttft_ms: outcome.ttft_ms,
            total_ms: outcome.total_ms,
            saved_ms: cached as f64 * outcome.token_ms,
            reason: self.cause(cached),
            ..Usage::default()
        })
    }

    /// Why less was reused than the engine has read.
    fn cause(&self, cached: usize) -> Option<String> {
        if !self.extends {
            return Some("the prompt does not begin with what was read before".to_string());
        }
        let missing = self.tokens.saturating_sub(cached);
        if missing == 0 {
            return None;
        }
        // Rounding by blocks may differ by one.
        let near = |read: &usize| cached.abs_diff(*read) <= self.block;
        let earlier = self.read.split_last().and_then(|(_, earlier)| earlier.iter().rposition(near));
        let why = match earlier {
            _ if self.by_messages && missing <= RESPELLED => {
                "the end of the last reply was tokenized differently than it was generated".to_string()
            }
            Some(turn) if cached > 0 => format!(
                "the worker that answered had read only up to this agent's turn {}: requests go to several \
                 workers",
                turn + 1
            ),
            _ if cached == 0 => {
                "nothing was cached: it was evicted (the engine's cache is too small for all agents), the \
                 engine was restarted, or another worker answered"
                    .to_string()
            }
            _ => "the rest was evicted: the engine's cache is too small for all agents".to_string(),
        };
        Some(format!("{cached} of {} tokens were reused; {why}", self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(prompt_tokens: usize, cached: usize) -> ReuseOutcome {
        let (token_ms, ttft_ms, total_ms) = (2.0, 1.0, 1.0);
        ReuseOutcome { prompt_tokens, cached: Some(cached), reply_tokens: 3, token_ms, ttft_ms, total_ms }
    }

    fn past(read: &[usize]) -> SessionPast {
        SessionPast { ids: (0..=*read.last().unwrap() as u32).collect(), read: read.to_vec() }
    }

    #[test]
    fn what_is_reused_as_predicted_has_no_cause() {
        let prompt: Vec<u32> = (0..150).collect();
        let expected = ExpectedReuse::new(Some(&past(&[40, 100])), &prompt, 1);
        let usage = expected.account(&outcome(150, 100)).unwrap();
        assert_eq!((usage.reused, usage.prefilled, usage.recomputed, usage.reason), (100, 50, 0, None));
        assert_eq!((usage.kind, usage.saved_ms), (MatchKind::Extend, 200.0));
        let expected = ExpectedReuse::new(Some(&past(&[40, 100])), &prompt, 16);
        assert_eq!(expected.account(&outcome(150, 96)).unwrap().reason, None, "whole blocks");
        let first = ExpectedReuse::new(None, &prompt, 1);
        assert_eq!(first.account(&outcome(150, 0)).unwrap().kind, MatchKind::Cold);
        assert_eq!(first.account(&outcome(150, 20)).unwrap().kind, MatchKind::Prefix);
        assert!(first.account(&ReuseOutcome { cached: None, ..outcome(150, 0) }).is_none());
    }

    #[test]
    fn a_shortfall_names_its_likely_cause() {
        let prompt: Vec<u32> = (0..150).collect();
        let expected = ExpectedReuse::new(Some(&past(&[40, 100])), &prompt, 1);
        for (cached, cause) in [
            (0, "nothing was cached"),
            (40, "only up to this agent's turn 1"),
            (41, "several workers"),
            (70, "the rest was evicted"),
        ] {
            let usage = expected.account(&outcome(150, cached)).unwrap();
            let reason = usage.reason.unwrap();
            assert!(reason.contains(cause) && reason.contains(&format!("{cached} of 100")), "{reason}");
            assert_eq!((usage.reused, usage.recomputed, usage.prefilled), (cached, 100 - cached, 50));
        }
        let other: Vec<u32> = (0..50).chain(90..200).collect();
        let expected = ExpectedReuse::new(Some(&past(&[40, 100])), &other, 1);
        let usage = expected.account(&outcome(160, 50)).unwrap();
        assert_eq!((usage.kind, usage.reused), (MatchKind::Diverge, 50));
        assert!(usage.reason.unwrap().contains("does not begin with"));
    }

    #[test]
    fn messages_are_counted_by_the_engine_alone() {
        let expected = ExpectedReuse::new(Some(&SessionPast { ids: Vec::new(), read: vec![90] }), &[], 1);
        assert_eq!(expected.account(&outcome(120, 90)).unwrap().reason, None);
        assert!(
            expected.account(&outcome(120, 88)).unwrap().reason.unwrap().contains("tokenized differently")
        );
        assert!(expected.account(&outcome(120, 0)).unwrap().reason.unwrap().contains("0 of 90"));
    }
}
