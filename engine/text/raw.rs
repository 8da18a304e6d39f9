//! Prompts of all sorts as segments: rendered ones, and raw ones, which are one segment.

use super::chat::Chat;
use super::prefix::{Segment, raw};
use super::tokenizer::{After, Tokenizer};
use crate::{Error, Prompt, Result};

/// The segments of a prompt; `known`: those of an earlier turn, with whose beginning it may begin
/// ([`Chat::prompt_after`]).
///
/// # Errors
/// It is empty, a text can't be tokenized, or an id is not in the vocabulary.
pub(crate) fn segments(
    prompt: &Prompt,
    known: &[Segment],
    chat: &Chat,
    tokenizer: &Tokenizer,
) -> Result<Vec<Segment>> {
    let segment = |ids: &[u32]| vec![raw(ids, &|ids| tokenizer.decode(ids))];
    match prompt {
        Prompt::Chat(conversation) => chat.prompt_after(known, conversation, tokenizer),
        Prompt::Text(text) if text.is_empty() => Err(Error::request("the prompt is empty")),
        Prompt::Text(text) => {
            let ids = tokenizer.encode_template(text, After::Special)?;
            Ok(segment(&tokenizer.begin(&ids)))
        }
        Prompt::Ids(ids) if ids.is_empty() => Err(Error::request("the prompt is empty")),
        Prompt::Ids(ids) => {
            let n = tokenizer.n_vocab();
            if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= n) {
                return Err(Error::request(format!(
                    "the prompt's token {at} is {id}, but the vocabulary has {n}; expected a smaller id"
                )));
            }
            Ok(segment(ids))
        }
    }
}
