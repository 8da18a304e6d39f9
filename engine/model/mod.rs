//! The model: families as data, one decoder.
//!
//! [`spec`] reads a family's shape from the file, [`weights`] its tensors; [`ops`], [`attention`] and [`feed_forward`] are the
//! kernels as candle custom ops (they hold weights, pool and block tables), [`decoder`] is the forward pass. [`calibration`] measures what a
//! model's keys are like.

pub(crate) mod attention;
pub(crate) mod calibration;
pub(crate) mod decoder;
pub(crate) mod feed_forward;
pub(crate) mod ops;
pub(crate) mod rope;
pub(crate) mod spec;
pub(crate) mod weights;

pub(crate) use decoder::{Decoder, Span};
