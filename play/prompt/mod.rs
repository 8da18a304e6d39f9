//! From events to prompts: what each agent remembers (`memories`), who sees what and as whom (`perspective`),
//! which turns take place (`conditions`), and how what happened between two replies folds into one message
//! (`delta`).

mod added;
mod calls;
mod conditions;
mod delta;
mod directions;
mod edits;
mod epochs;
mod memories;
mod notes;
mod perspective;
mod pieces;
mod present;
mod recalled;
mod rehearsed;
mod routes;
mod settled;
mod spoken;
mod state;
mod stops;
mod strategies;

pub use calls::MadeCall;
pub use delta::{Conversation, Exchange, conversation};
pub use directions::{Direction, Directions};
pub use edits::Edits;
pub use memories::{Asked, HeardReply, Memories, OpenOptions, PromptError, SampledReply};
pub use notes::Evaluated;
pub use pieces::Piece;
pub use recalled::{KnownPast, Recollections};
pub use routes::{Candidate, Routing, by_score};
pub use spoken::{spoken, spoken_so_far};
pub use stops::{Cut, StopStrings};
