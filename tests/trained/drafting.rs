//! The effect of guesses on a trained model: the same replies, in less time where they quote or have a form.

use crate::SMOLLM2;
use greenroom_engine::{
    Completion, Conversation, Engine, EngineConfig, Event, Exchange, Grammar, ModelSource, ReplyContent,
    Request, Sampling, SessionKey,
};
use serde_json::json;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

fn said(engine: &Engine, request: Request) -> Completion {
    let mut turn = engine.submit(request).unwrap();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Failed(error) => panic!("{error}"),
            Event::Done(done) => return *done,
            _ => {}
        }
    }
    panic!("the turn did not end");
}

/// A story that is retold, a form that is filled in, free talk: three turns of an agent each.
fn requests(kind: &str, seed: u64) -> Vec<Request> {
    let story = greenroom_engine::SAMPLE.get(..1500).unwrap_or(greenroom_engine::SAMPLE);
    let (texts, schema): ([String; 3], _) = match kind {
        "quotes" => (
            ["first", "second", "third"]
                .map(|n| format!("{story}\n\nRepeat the {n} three lines word by word.")),
            None,
        ),
        "forms" => {
            let schema = json!({
                "type": "object",
                "properties": {
                    "name of the speaker": { "type": "string", "maxLength": 20 },
                    "what is offered": { "enum": [
                        "three baskets of melons", "a barrel of nails", "nothing at all"
                    ] },
                    "price in silver coins": { "type": "integer", "minimum": 1, "maximum": 99 },
                    "is willing to negotiate": { "type": "boolean" },
                },
                "required": [
                    "name of the speaker", "what is offered", "price in silver coins",
                    "is willing to negotiate"
                ],
                "additionalProperties": false,
            });
            (["Make an offer.", "Make another.", "And a last one."].map(str::to_owned), Some(schema))
        }
        _ => (
            ["Who are you?", "Tell me of a day at the harbour.", "What would you change?"].map(str::to_owned),
            None,
        ),
    };
    let request = |text: String| Request {
        sampling: Sampling { temperature: 0.7, min_p: 0.05, seed, ..Sampling::default() },
        max_tokens: 96,
        grammar: schema.as_ref().map(|schema| Arc::new(Grammar::json_schema(schema))),
        ..Request::new(
            SessionKey::new(kind, seed.to_string()),
            Conversation { next: text, ..Conversation::default() },
        )
    };
    texts.into_iter().map(request).collect()
}

/// Not a test of time: it prints tokens a second with and without guesses, in pairs.
/// `cargo test --release --test trained -- --ignored --nocapture what_guesses_are_worth`
#[test]
#[ignore = "a measurement"]
fn what_guesses_are_worth() {
    let Some(path) = SMOLLM2.path() else { return };
    let open = |drafts| {
        let mut config = EngineConfig::new(ModelSource::Path(path.clone()));
        config.drafts = drafts;
        Engine::open(config).unwrap()
    };
    let engines = [open(false), open(true)];
    for kind in ["quotes", "forms", "talk"] {
        let (mut ratios, mut guessed, mut right, mut n_said) = (Vec::new(), 0, 0, 0);
        for seed in 0..5 {
            let mut speeds = [0.0; 2];
            let mut replies = [Vec::new(), Vec::new()];
            for (n, engine) in engines.iter().enumerate() {
                let mut past: Vec<Exchange> = Vec::new();
                let (mut tokens, mut seconds) = (0, 0.0);
                for mut request in requests(kind, seed) {
                    let conversation = request.prompt.conversation_mut().unwrap();
                    conversation.exchanges.clone_from(&past);
                    let user = conversation.next.clone();
                    let began = Instant::now();
                    let done = said(engine, request);
                    // Time after the first token: guesses change nothing before.
                    seconds += began.elapsed().as_secs_f64() - done.usage.ttft_ms / 1e3;
                    tokens += done.ids.len();
                    guessed += done.usage.guessed;
                    right += done.usage.guessed_right;
                    past.push(Exchange::new(user, ReplyContent::Ids(done.ids.clone().into())));
                    replies[n].push(done.ids);
                }
                speeds[n] = tokens as f64 / seconds;
                n_said += n * tokens;
            }
            assert_eq!(replies[0], replies[1], "{kind}");
            ratios.push(speeds[1] / speeds[0]);
        }
        ratios.sort_by(f64::total_cmp);
        let _ = writeln!(
            std::io::stderr(),
            "{kind}: {:.2} times as many tokens a second (median of {ratios:.2?}); {right} of {guessed} \
             guesses right, {n_said} tokens said",
            ratios[ratios.len() / 2]
        );
    }
}
