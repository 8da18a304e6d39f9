//! Replies that are given from outside: the caller, who plays the agent, provides the text, and the agent
//! remembers having said it.

use super::{OpenOptions, Request};
use anyhow::ensure;
use greenroom_scenario::{Choice, ChoiceMethod, ChoiceOption, Path, Strategy};
use std::sync::Arc;

/// The request whose only answer is this text: a choice with one option, which a model reads and keeps like a
/// reply of its own.
///
/// # Errors
/// The turn is a choice, and the option is taken already or not one of them.
pub fn given(request: Request, text: &str) -> anyhow::Result<Request> {
    if let Some(OpenOptions { choice, open, .. }) =
        request.choice.as_ref().filter(|options| options.choice.method == ChoiceMethod::Decode)
    {
        let texts: Vec<&str> = open.iter().map(|option| choice.options[*option].text.as_str()).collect();
        ensure!(
            texts.contains(&text),
            "{}: `{text}` can no longer be chosen; expected one of {}",
            request.path,
            texts.join(", ")
        );
    }
    let option = ChoiceOption { value: text.into(), text: text.to_string() };
    let (path, options) = (Path::default(), vec![option]);
    let choice = Arc::new(Choice {
        path,
        options,
        method: ChoiceMethod::Decode,
        shuffle: false,
        by_length: false,
        ask: None,
        open: None,
        n_picks: 1,
    });
    let options = OpenOptions { choice, open: vec![0], ranked: Vec::new() };
    let strategy = request.strategy.as_ref().map(|_| Strategy::Always(text.to_string()));
    Ok(Request { choice: Some(options), strategy, ..request })
}
