//! Tests of several rooms together, from the inside.

mod accounts;
mod adoption;
mod calls;
mod carry;
mod choices;
mod drafting;
mod embedding;
mod endurance;
mod exactness;
mod folders;
#[cfg(feature = "gpu")]
mod gpu;
mod logprobs;
mod oracle;
mod raw;
mod replies;
mod saving;
mod sharing;
mod status;
mod texts;
mod unfinished;
