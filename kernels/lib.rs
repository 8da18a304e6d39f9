//! The kernels' contract: what every instruction set computes, to the bit.
//!
//! Every kernel is written once, over a vector of **16 lanes** (`Lanes` of f32, `Words` of 32-bit
//! integers), and instantiated for each instruction set. A lane is an output (of a matrix product), a token
//! (of scores) or a column (of a context row), so a sum never crosses lanes and its order is written in the
//! kernel, not in the width of a register:
//!
//! - products of codes are exact integers; floats are combined in one fixed order by fused multiply-adds;
//! - the few sums over lanes use one tree, `exp` is one polynomial;
//! - a row's arithmetic never depends on which rows stand beside it, on chunking, or on the number of
//!   threads: work is split over outputs, heads and rows only, never inside a sum.
//!
//! So the scalar twin gives the same bits as AVX2, AVX-512 VNNI and NEON, and the [`NUMERICS`] id names the
//! contract, not the machine. A change to the order of any operation must change the id: caches computed
//! before are then missed, never mixed.
//!
//! Nothing here knows models, blocks or sequences; inputs are slices, and tiles of the KV cache come through
//! [`attention::Tiles`]. A device back end implements the same operations: [`linear`], [`attention`],
//! [`pointwise`].
//!
//! No kernel hands a closure with vectors in it to the standard library (`array::map`,
//! `Option::get_or_insert_with`): it is compiled without the kernel's instruction set, and each of its
//! instructions becomes a call.
//!
//! Beside the kernels stand what they share: the pool of [`threads`], vectors of [`floats`] that a pass reuses,
//! and what codes of cached keys and values mean ([`quant`]).
#![deny(unsafe_op_in_unsafe_fn)]

pub mod activations;
mod amx;
pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod divergence;
pub mod floats;
pub mod ggml;
pub mod halves;
mod isa;
mod lanes;
pub mod linear;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod panel;
pub mod peak;
pub mod pointwise;
pub mod quant;
pub mod recurrence;
mod scalar;
mod schemes;
pub mod seal;
pub mod shaping;
pub mod slab;
pub mod threads;
mod tiles;
pub mod vocabulary;

pub use isa::Isa;
use lanes::{Kernel, Lanes, Words, lanes, lanes_mut, padded, vector};
pub use lanes::{LANES, STEP};

/// Name and version of the kernels' contract: part of every cache's identity and of every transcript.
pub const NUMERICS: &str = "lanes16/5";
