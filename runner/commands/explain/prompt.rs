//! The prompt of a turn as a model reads it: rendered by its chat template, tools included.

use crate::backend::{conversation, locate, source};
use crate::commands::casting;
use crate::prompt::Conversation;
use crate::scenario::{EngineAddress, Scenario};
use crate::tools::{ToolOffer, read_call};
use crate::transcript::{Header, TurnRecord};
use anyhow::{Context as _, bail};
use greenroom_engine::{PromptEncoder, ReplyContent};
use std::path::Path;
use std::sync::Arc;

/// The tokenizer and chat template of the model that answered a turn: of the one given, or else of the one
/// that the run's trace names.
///
/// # Errors
/// It can't be found or read, or is a remote engine.
pub(super) fn prompter(
    given: &[casting::ModelArg],
    scenario: &Scenario,
    run: &Path,
    turn: &TurnRecord,
) -> anyhow::Result<PromptEncoder> {
    let models = casting::models(given, scenario, &[run])?;
    let name = turn.hints.model.as_deref().unwrap_or_default();
    let model = models.get(name).or_else(|| models.get("")).context("the run names no model")?;
    if EngineAddress::is_meant(model) {
        bail!(
            "`{model}` is a remote engine, which renders its prompts itself; give --model FILE to see how \
             the chat template of a model file does"
        );
    }
    let file = locate(model)?;
    PromptEncoder::open(&source(&file)).with_context(|| format!("can't read the model {file}"))
}

/// Notes that another model answered than the one whose template is shown, if that is so.
pub(super) fn other_model(prompter: &PromptEncoder, header: &Header, turn: &TurnRecord) -> Option<String> {
    let (shown, recorded) = (prompter.model(), header.model_of(turn));
    (shown.identity != recorded.identity).then(|| {
        format!(
            "the turn was answered by `{}`; this is what the template of `{}` makes of it",
            recorded.name, shown.name
        )
    })
}

/// The whole prompt, special tokens spelled out. The ids of another model's replies mean nothing to this one
/// (`is_other`), so its texts replace them.
pub(super) fn rendered(
    prompter: &PromptEncoder,
    read: Conversation,
    offer: Option<&ToolOffer>,
    is_other: bool,
) -> anyhow::Result<String> {
    let replies: Vec<(Arc<str>, bool)> =
        read.exchanges.iter().map(|past| (past.raw.clone(), past.is_call)).collect();
    let mut read = conversation(read, offer);
    for (past, (raw, is_call)) in read.exchanges.iter_mut().zip(replies).filter(|_| is_other) {
        let call = read_call(raw.trim()).filter(|_| is_call);
        past.reply = match call {
            Some(call) => ReplyContent::CallText(String::new(), call),
            None => ReplyContent::Text(raw.to_string()),
        };
    }
    Ok(prompter.render(&read)?)
}

/// What a model reads of its tools before the first message: what the template adds to the same prompt
/// without tools.
pub(super) fn tools(
    prompter: &PromptEncoder,
    read: &Conversation,
    offer: &ToolOffer,
) -> anyhow::Result<String> {
    // The form of calls may be another without tools; the beginning is the same.
    let opening = Conversation { exchanges: Vec::new(), ..read.clone() };
    let with = rendered(prompter, opening.clone(), Some(offer), false)?;
    let without = rendered(prompter, opening, None, false)?;
    Ok(added(&with, &without).to_string())
}

/// The part of a text that another text lacks, which otherwise has the same beginning and end.
fn added<'a>(with: &'a str, without: &str) -> &'a str {
    let same = |a: &mut dyn Iterator<Item = char>, b: &mut dyn Iterator<Item = char>| {
        a.zip(b).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum::<usize>()
    };
    let begin = same(&mut with.chars(), &mut without.chars());
    let end = same(&mut with[begin..].chars().rev(), &mut without[begin..].chars().rev());
    &with[begin..with.len() - end]
}

/// What is known of the tools where no template is: their names, descriptions and schemas.
pub(super) fn listed(offer: &ToolOffer) -> String {
    let line = |tool: &crate::scenario::ToolSpec| {
        format!("{}: {}\narguments: {}", tool.name, tool.about.trim(), tool.arguments)
    };
    offer.tools.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::added;

    #[test]
    fn what_a_template_adds_is_between_the_same_beginning_and_end() {
        assert_eq!(added("<s>You are Ann.\nTools: a</s>", "<s>You are Ann.</s>"), "\nTools: a");
        assert_eq!(added("aa", "a"), "a");
        assert_eq!(added("same", "same"), "");
    }
}
