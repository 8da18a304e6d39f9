//! What happens in a plan, in one place: who is present, what each agent has read and is asked, which turns
//! take place, and what follows from a reply.
//!
//! [`prompt`] holds the memories of all agents and renders their prompts; [`walk`] passes all turns in plan
//! order, answered by a recording or by invention ([`replay`], [`rehearsal`]); [`stage`] plays them live,
//! each as soon as what it depends on is there. A [`backend::Backend`] answers turns, a [`transcript`]
//! records them.
#![forbid(unsafe_code)]

pub mod backend;
mod future;
pub mod lookup;
pub mod outcome;
pub mod prompt;
pub mod rehearsal;
pub mod replay;
pub mod sampling;
pub mod stage;
mod thoughts;
pub mod timeline;
pub mod tools;
pub mod trace;
pub mod transcript;
pub mod walk;
mod words;
