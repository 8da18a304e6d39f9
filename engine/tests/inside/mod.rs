//! Tests of several rooms together, from the inside.

mod choices;
mod endurance;
mod exactness;
mod folders;
mod oracle;
mod replies;
mod saving;
mod texts;
