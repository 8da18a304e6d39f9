//! The KV cache as data, wherever its bytes are.
//!
//! Blocks of 256 tokens are sealed (quantized, immutable, shared by equal content); the newest tokens are f16
//! rows. [`layout`] has shapes and formats, [`format`] the meaning of the bytes (`greenroom_kernels::quant`
//! that of codes), [`table`] the blocks of a sequence.

pub(crate) mod format;
pub(crate) mod layout;
pub(crate) mod table;
