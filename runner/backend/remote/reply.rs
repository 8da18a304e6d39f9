//! What an engine has said as a reply: checked against its tokenizer, and cut as a reply is cut here.

use super::ask::{Finish, PartialReply, ReplyBounds};
use crate::backend::{Call, Reply, Request, conversation};
use crate::prompt::{Conversation, Cut, StopStrings};
use crate::tools::cut_call;
use anyhow::{bail, ensure};
use greenroom_engine::{PromptEncoder, StopConditions, StopReason, StreamedReply, ThoughtForm, cut_reply};
use serde_json::{Value, json};

/// The cut of a reply by its text, which is not known before it comes.
#[derive(Clone, Copy)]
pub(super) struct Cutting<'a> {
    pub(super) stops: &'a StopStrings,
    pub(super) whole_sentences: bool,
    /// How its reasoning is marked.
    pub(super) thoughts: &'a ThoughtForm,
}

impl Cutting<'_> {
    /// Result of `with` on a whole reply, whose speech begins at an offset.
    fn whole<T>(
        self,
        text: &str,
        said: &PartialReply,
        with: impl FnOnce(usize, StopConditions<'_>) -> T,
    ) -> T {
        let Cut { begin, stop, head } = self.stops.cut(text, self.thoughts);
        let (whole_sentences, is_full) = (self.whole_sentences, said.finish == Some(Finish::Full));
        with(begin, StopConditions { stop: &stop, head: &head, whole_sentences, is_full })
    }

    /// The speech of a reply that streams and begins so, and the offset at which it begins; `None`: it is not
    /// known yet how it is cut.
    pub(super) fn streamed(self, said: &str) -> Option<(usize, StreamedReply)> {
        let Cut { begin, stop, head } = self.stops.cut_so_far(said, self.thoughts)?;
        let whole_sentences = self.whole_sentences;
        Some((
            begin,
            StreamedReply::new(StopConditions { stop: &stop, head: &head, whole_sentences, is_full: false }),
        ))
    }
}

/// A reply by its ids, whose speech begins at an offset of its text, as it would have ended here.
fn cut_ids(
    prompter: &PromptEncoder,
    prompt: &[u32],
    said: &[u32],
    begin: usize,
    ends: StopConditions<'_>,
) -> (Vec<u32>, String, StopReason) {
    let all: Vec<usize> = (0..said.len()).collect();
    let n = all.partition_point(|n| prompter.decode(&said[..*n]).len() < begin);
    let (reasoning, speech) = said.split_at(n);
    let (ids, text, stop) = prompter.cut(&[prompt, reasoning].concat(), speech, ends);
    ([reasoning, &ids].concat(), prompter.decode(reasoning) + &text, stop)
}

/// The reply that ids say.
pub(super) fn by_ids(
    prompter: &PromptEncoder,
    prompt: &[u32],
    said: &PartialReply,
    cutting: Cutting<'_>,
    request: &Request,
) -> anyhow::Result<Reply> {
    ensure!(
        !said.ids.is_empty() || said.text.is_empty(),
        "the engine does not return the token ids of its reply; it may be too old"
    );
    let n_vocab = prompter.model().n_vocab;
    if let Some(id) = said.ids.iter().find(|id| **id as usize >= n_vocab) {
        bail!(
            "the engine's reply has the token id {id}, but the tokenizer's vocabulary has {n_vocab} tokens: \
             it belongs to another model"
        );
    }
    let spelled = prompter.decode(&said.ids);
    // After a character that is not whole each side has its own way.
    let sure = |text: &str| text.split('\u{fffd}').next().unwrap_or_default().trim_start().to_string();
    let (by_ids, by_text) = (sure(&spelled), sure(&said.text));
    ensure!(
        by_ids.starts_with(&by_text) || by_text.starts_with(&by_ids),
        "the token ids of the engine's reply decode to `{spelled}`, but its text is `{}`: the tokenizer \
         belongs to another model",
        said.text
    );
    let (ids, text, stop) =
        cutting.whole(&spelled, said, |begin, ends| cut_ids(prompter, prompt, &said.ids, begin, ends));
    let offered = request.tools.as_deref().filter(|_| request.may_call);
    let tools = offered.and_then(|offer| conversation(Conversation::default(), Some(offer)).tools);
    let speech = cutting.thoughts.parts(&text).speech;
    let called = tools.as_ref().and_then(|tools| {
        let so_far = prompter.calls_so_far(tools, &text[speech.clone()]);
        let call = so_far.first()?;
        let arguments = serde_json::from_str(&call.arguments).ok();
        Some(arguments.map_or_else(cut_call, |arguments| Call { tool: call.tool.to_string(), arguments }))
    });
    // The engine's text has no token that ends a turn.
    let rest = said.text.strip_prefix(&text).map(str::to_string);
    let cut = rest.unwrap_or_else(|| prompter.decode(&said.ids[ids.len()..]));
    Ok(Reply { call: called, speech, ..cut_at(ids, text, stop, &cut) })
}

/// A reply of which something was cut. An incomplete sentence at its limit is not a loss, nor is the token
/// that ends a turn.
fn cut_at(ids: Vec<u32>, text: String, stop: StopReason, cut: &str) -> Reply {
    let cut = if stop == StopReason::StopString { cut.to_string() } else { String::new() };
    Reply { cut, ..Reply::of(ids, text, stop) }
}

/// The reply that a text is.
pub(super) fn by_text(
    said: &PartialReply,
    bounds: &ReplyBounds<'_>,
    cutting: Cutting<'_>,
    may_call: bool,
) -> Reply {
    if let Some((tool, arguments)) = said.call.as_ref().filter(|_| may_call) {
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return Reply {
                call: Some(cut_call()),
                ..Reply::of(Vec::new(), said.text.clone(), StopReason::Length)
            };
        };
        let text = json!({ "tool": tool, "arguments": arguments }).to_string();
        let call = Some(Call { tool: tool.clone(), arguments });
        return Reply { call, ..Reply::of(Vec::new(), text, StopReason::EndOfTurn) };
    }
    if let ReplyBounds::OneOf(_) = bounds {
        // It was requested as JSON: message APIs have no other formats.
        let value: Option<Value> = serde_json::from_str(&said.text).ok();
        let chosen = value.as_ref().and_then(|value| value["choice"].as_str());
        return Reply::of(Vec::new(), chosen.unwrap_or(&said.text).to_string(), StopReason::EndOfTurn);
    }
    let (text, stop) = cutting.whole(&said.text, said, |begin, ends| {
        let (reasoning, speech) = said.text.split_at(begin);
        let (speech, stop) = cut_reply(speech, ends);
        (reasoning.to_string() + &speech, stop)
    });
    let cut = said.text.strip_prefix(&text).unwrap_or_default().to_string();
    cut_at(Vec::new(), text, stop, &cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::says_call;

    fn cutting(stops: &StopStrings, whole_sentences: bool) -> Cutting<'_> {
        static NONE: std::sync::LazyLock<ThoughtForm> = std::sync::LazyLock::new(ThoughtForm::default);
        Cutting { stops, whole_sentences, thoughts: &NONE }
    }

    fn said(text: &str, finish: Finish) -> PartialReply {
        PartialReply { text: text.to_string(), finish: Some(finish), ..PartialReply::default() }
    }

    #[test]
    fn a_form_is_cut_neither_to_sentences_nor_at_a_stop_string() {
        let text = "{\"a\": \"I know. You do";
        let schema = greenroom_engine::Grammar::JsonSchema("{}".into());
        let none = StopStrings::default();
        let form = cutting(&none, false);
        let reply = by_text(&said(text, Finish::Full), &ReplyBounds::Grammar(&schema), form, false);
        assert_eq!((reply.text.as_str(), reply.stop), (text, StopReason::Length));
        let free = cutting(&none, true);
        let reply = by_text(&said("I know. You do", Finish::Full), &ReplyBounds::Free, free, false);
        assert_eq!((reply.text.trim(), reply.stop), ("I know.", StopReason::Sentence));
    }

    #[test]
    fn a_choice_is_taken_out_of_its_json() {
        let none = StopStrings::default();
        let ends = cutting(&none, false);
        let bounds = ReplyBounds::OneOf(vec!["I talk", "I stay silent"]);
        for (text, chosen) in [
            ("{\"choice\": \"I talk\"}", "I talk"),
            ("I stay silent", "I stay silent"),
            ("{\"x\": 1}", "{\"x\": 1}"),
        ] {
            assert_eq!(by_text(&said(text, Finish::Ended), &bounds, ends, false).text, chosen);
        }
    }

    #[test]
    fn a_call_is_what_its_text_says() {
        let none = StopStrings::default();
        let ends = cutting(&none, true);
        let call = Some(("dice".to_string(), "{\"sides\": 6}".to_string()));
        let heard = PartialReply { call: call.clone(), ..said("", Finish::Ended) };
        let reply = by_text(&heard, &ReplyBounds::Free, ends, true);
        let arguments = json!({ "sides": 6 });
        assert_eq!(reply.call, Some(Call { tool: "dice".into(), arguments }));
        assert!(says_call(&reply.text, reply.call.as_ref().unwrap()));
        assert_eq!(by_text(&heard, &ReplyBounds::Free, ends, false).call, None, "where none may be made");
        let cut = PartialReply { call: Some(("dice".into(), "{\"si".into())), ..said("", Finish::Full) };
        assert_eq!(by_text(&cut, &ReplyBounds::Free, ends, true).call, Some(cut_call()));
    }
}
