//! The KV cache: what an agent has read, as keys and values, in memory and on disk.
//!
//! Blocks of 256 tokens are sealed (quantized, immutable, shared by equal content); the newest tokens stand in f16
//! rows. Lowest first: [`layout`] (shapes and formats), [`format`] (what the bytes mean), [`arena`] (ids, references,
//! budget), [`table`] (a sequence's blocks), [`sequence`] (one agent's cache), [`store`] (the disk). The bytes in memory are a
//! device's.

pub(crate) mod arena;
pub(crate) mod format;
pub(crate) mod layout;
pub(crate) mod sequence;
pub(crate) mod store;
pub(crate) mod table;
