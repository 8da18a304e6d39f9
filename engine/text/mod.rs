//! Text in, ids out: [`tokenizer`], chat templates ([`chat`]), and how much of a prompt was read before ([`prefix`]).

pub(crate) mod chat;
pub(crate) mod prefix;
pub(crate) mod tokenizer;
