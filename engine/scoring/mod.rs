//! Scoring of given tokens, with temporary caches ([`scratch`]): a [`job`] at a time, a text with several
//! formats ([`compare`]), texts as vectors ([`embedding`]), distributions of logits ([`distribution`]); and of a
//! model that is opened for the first time the [`self_check`], and the device that is the [`fastest`].

pub(crate) mod compare;
pub(crate) mod distribution;
pub(crate) mod embedding;
pub(crate) mod fastest;
pub(crate) mod job;
pub(crate) mod scratch;
pub(crate) mod self_check;
