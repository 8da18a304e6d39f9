//! Calls in harmony's format (gpt-oss and models after it): messages whose header names a function.
//!
//! A template writes the function before the channel (`<|start|>assistant to=functions.NAME<|channel|>commentary
//! json<|message|>{…}`); models write it after the channel, too (`<|channel|>commentary to=functions.NAME
//! <|constrain|>json<|message|>{…}`), and say what type the message has, or not. All of them begin with a header,
//! so they end a thought.

use super::markup::Markup;
use super::{CallForm, Cue};
use crate::text::thoughts::{CHANNEL, MESSAGE};
use crate::text::tokenizer::{After, Tokenizer};

/// What names a function.
const TO: &str = "to=functions";
/// The channel of calls.
const COMMENTARY: &str = "commentary";
/// What a header may say of a message's type.
const TYPES: [&str; 5] = [" <|constrain|>json", "<|constrain|>json", " <|constrain|> json", " json", ""];

/// The forms that models have besides their template's own one; empty: it is not harmony's.
pub(super) fn forms(own: &CallForm, tokenizer: &Tokenizer) -> Vec<CallForm> {
    let is_harmony = own.head.text == format!(" {TO}.") && own.middle.text.starts_with(CHANNEL);
    if !is_harmony {
        return Vec::new();
    }
    let form = |opening: &str, middle: &str| {
        let typed = |of: &str| format!("{middle}{of}{MESSAGE}");
        let head = Markup::new(".", tokenizer);
        Some(CallForm {
            opening: tokenizer.encode_template(opening, After::Text).ok()?,
            cue: Cue::Name,
            ends_thought: true,
            bare_head: head.clone(),
            head,
            middle: Markup::or(&typed(TYPES[0]), TYPES[1..].iter().map(|of| typed(of)).collect(), tokenizer),
            ..own.clone()
        })
    };
    let after_channel = form(&format!("{CHANNEL}{COMMENTARY} {TO}"), "");
    let before_channel = form(&format!("<|start|>assistant {TO}"), &format!("{CHANNEL}{COMMENTARY}"));
    after_channel.into_iter().chain(before_channel).collect()
}
