//! Explains cache misses: recent answers' prompts, kept for a while to compare later ones with.

use super::answer::CompletedReply;
use super::dialogue::{Dialogue, Digest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Maximum number of answers that are remembered.
const MAX_PROMPTS: usize = 20_000;

/// Prompts of recent answers, by tenant and the answer's id.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<RecentInner>);

#[derive(Debug, Default)]
struct RecentInner {
    prompts: BTreeMap<(String, String), PromptParts>,
    order: VecDeque<(String, String)>,
}

/// The parts of a prompt.
#[derive(Clone, Debug)]
struct PromptParts {
    model: String,
    system: Digest,
    tools: Digest,
    /// Digests of everything read and said, including the reply.
    chain: Vec<Digest>,
    /// Tokens of the prompt and the reply.
    tokens: usize,
}

/// How a prompt matched the memory, compared with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Diagnosis {
    /// Everything that could be reused was.
    Hit,
    /// Tokens in the earlier answer's memory were recomputed.
    Miss {
        reason: Reason,
        /// Maximum number of their common tokens that were recomputed.
        missed: usize,
        /// Tokens that the earlier prompt and its reply had.
        reusable: usize,
    },
    /// The earlier answer is unknown, or no longer known.
    NotFound,
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Model,
    System,
    Tools,
    Messages,
    /// Nothing: the memory was not there.
    Unavailable,
}

impl Recent {
    /// Remembers what an answer was given to.
    pub(super) fn keep(
        &self,
        tenant: &str,
        id: &str,
        model: &str,
        dialogue: &Dialogue,
        answer: &CompletedReply,
    ) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chain = dialogue.chain.clone();
        chain.push(dialogue.with_reply(answer));
        let prompt = PromptParts {
            model: model.to_string(),
            system: dialogue.system,
            tools: dialogue.tools,
            chain,
            tokens: answer.prompt_tokens() + answer.completion.ids.len(),
        };
        let key = (tenant.to_string(), id.to_string());
        inner.prompts.insert(key.clone(), prompt);
        inner.order.push_back(key);
        if inner.order.len() > MAX_PROMPTS
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.prompts.remove(&oldest);
        }
    }

    /// Compares an answer's prompt with an earlier one's.
    pub(super) fn diagnose(
        &self,
        tenant: &str,
        earlier: &str,
        model: &str,
        dialogue: &Dialogue,
        answer: &CompletedReply,
    ) -> Diagnosis {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(earlier) = inner.prompts.get(&(tenant.to_string(), earlier.to_string())) else {
            return Diagnosis::NotFound;
        };
        let reused = answer.completion.usage.reused;
        let extends = dialogue.chain.starts_with(&earlier.chain);
        let reason = if earlier.model != model {
            Reason::Model
        } else if earlier.system != dialogue.system {
            Reason::System
        } else if earlier.tools != dialogue.tools {
            Reason::Tools
        } else if !extends {
            Reason::Messages
        } else {
            Reason::Unavailable
        };
        // What a changed prompt has in common with others need not be what it has in common with the earlier
        // one.
        let missed = match reason {
            Reason::Unavailable => earlier.tokens.min(answer.prompt_tokens()).saturating_sub(reused),
            _ => answer.prompt_tokens().saturating_sub(reused).min(earlier.tokens),
        };
        // A prompt that is cached except for its last token is a hit: that token's logits choose the reply.
        if missed <= 1 {
            Diagnosis::Hit
        } else {
            Diagnosis::Miss { reason, missed, reusable: earlier.tokens }
        }
    }
}
