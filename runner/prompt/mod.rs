//! From events to prompts: who sees what and as whom (`perspective`), and how what happened between two
//! replies folds into one message (`delta`).

mod delta;
mod perspective;
mod spoken;

pub use delta::{Conversation, Exchange, conversation};
pub use perspective::{Memories, Prompt, PromptError};
pub use spoken::{spoken, spoken_so_far};
