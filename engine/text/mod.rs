//! Text in, ids out: [`tokenizer`], chat templates ([`chat`]), calls of tools in them ([`calls`]), what replies
//! begin with ([`thoughts`]), segments from outside ([`check`]), prompts of all sorts ([`raw`]), the conversation
//! of a stored memory ([`restore`]), code around a gap ([`infill`]), and how much of a prompt was read before
//! ([`prefix`]).

pub(crate) mod calls;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod infill;
pub(crate) mod prefix;
pub(crate) mod raw;
mod render;
pub(crate) mod restore;
pub(crate) mod thoughts;
pub(crate) mod tokenizer;
