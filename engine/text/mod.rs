//! Text in, ids out: [`tokenizer`], chat templates ([`chat`]), calls of tools in them ([`calls`]), and how much of a prompt was read before ([`prefix`]).

pub(crate) mod calls;
pub(crate) mod chat;
pub(crate) mod prefix;
mod render;
pub(crate) mod tokenizer;
