//! Tests of several rooms together, from the inside.

mod accounts;
mod adoption;
mod calls;
mod choices;
mod embedding;
mod endurance;
mod exactness;
mod folders;
#[cfg(feature = "gpu")]
mod gpu;
mod logprobs;
mod oracle;
mod replies;
mod saving;
mod texts;
mod unfinished;
