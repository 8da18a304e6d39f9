//! The KV cache: what an agent has read, as keys and values, in memory and on disk.
//!
//! Blocks of 256 tokens are sealed (quantized, immutable, shared by equal content); the newest tokens stand in f16
//! rows. Lowest first: [`layout`] (shapes and formats), [`pool`] (ids, references, budget), [`table`] (a sequence's
//! blocks), [`blocks`] (the bytes), [`sequence`] (one agent's cache), [`store`] (the disk).

pub(crate) mod blocks;
pub(crate) mod layout;
pub(crate) mod pool;
pub(crate) mod sequence;
pub(crate) mod store;
pub(crate) mod table;
