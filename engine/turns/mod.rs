//! Active turns, on the engine's thread.
//!
//! [`worker`] takes requests, lets them begin as there is room ([`admission`]), plans passes ([`schedule`])
//! and runs them. A [`turn`] samples ([`sampler`], [`dry`]; under a grammar: [`grammar`]; where it may call
//! tools: [`calling`]), follows a given reply ([`follow`]) or weighs options ([`constraint`]); [`reply`] cuts
//! what it says ([`sentence`]) and [`drafting`] guesses it before it is said, or a [`draft_model`] does;
//! [`reply`] keeps what its tokens' log-probabilities were ([`logprobs`]). At a turn's end a [`digest`] names
//! what was read and said, and the worker has what is left of it saved.

pub(crate) mod admission;
pub(crate) mod calling;
pub(crate) mod canonical;
pub(crate) mod constraint;
pub(crate) mod digest;
pub(crate) mod draft_model;
pub(crate) mod drafting;
mod drawing;
pub(crate) mod dry;
pub(crate) mod follow;
pub(crate) mod grammar;
pub(crate) mod logprobs;
pub(crate) mod reply;
pub(crate) mod sampler;
pub(crate) mod schedule;
pub(crate) mod sentence;
pub(crate) mod turn;
pub(crate) mod worker;
