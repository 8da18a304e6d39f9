//! The model: families as data, whatever computes them.
//!
//! [`spec`] reads a family's shape from the file, [`weights`] says which tensors it has, [`tensors`] reads numbers of any type, [`rope`]
//! has the angles of positions. [`calibration`] measures what a model's keys are like.

pub(crate) mod calibration;
pub(crate) mod rope;
pub(crate) mod spec;
pub(crate) mod tensors;
pub(crate) mod weights;
