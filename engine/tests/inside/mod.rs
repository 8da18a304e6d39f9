//! Tests of several rooms together, from the inside.

mod adoption;
mod carry;
mod choices;
mod embedding;
mod endurance;
mod exactness;
mod folders;
#[cfg(feature = "gpu")]
mod gpu;
mod oracle;
mod raw;
mod replies;
mod saving;
mod status;
mod texts;
