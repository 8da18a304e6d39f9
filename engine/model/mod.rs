//! The model: families as data, independent of the device.
//!
//! [`gguf`] opens a file (its [`texts`], its [`hash`]), [`family`] has what is known of families, [`spec`] reads a model's layers from the
//! file ([`metadata`]), [`weights`] says which tensors it has, [`tensors`] reads numbers of any type, [`rope`] has the angles of positions, [`suggested`] how the
//! file wants to be sampled. [`calibration`] measures what a model's keys are like.

pub(crate) mod calibration;
pub(crate) mod family;
pub(crate) mod gguf;
mod hash;
mod metadata;
pub(crate) mod rope;
pub(crate) mod spec;
pub(crate) mod suggested;
pub(crate) mod tensors;
mod texts;
pub(crate) mod weights;
