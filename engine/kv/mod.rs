//! The KV cache as data, whoever holds its bytes.
//!
//! Blocks of 256 tokens are sealed (quantized, immutable, shared by equal content); the newest tokens stand
//! in f16 rows. [`layout`] has shapes and formats, [`format`] says what the bytes mean (and
//! `greenroom_kernels::quant` what codes mean), [`table`] which blocks a sequence is made of.

pub(crate) mod format;
pub(crate) mod layout;
pub(crate) mod table;
