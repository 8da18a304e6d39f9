//! The ids of a reply are those of its text: tests on real vocabularies, without a model.

use super::Numbers;
use crate::tests::texts::vocabulary;
use crate::text::tokenizer::{After, Tokenizer};
use crate::turns::canonical::CanonicalText;
use crate::turns::reply::ReplyText;
use crate::{Conversation, Engine, EngineConfig, Event, ModelSource, Request, Sampling, SessionKey};

/// (Not `exaone-moe`: [`Tokenizer::is_canonical_by_beginnings`].)
const VOCABULARIES: [&str; 19] = [
    "bailingmoe2",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "default",
    "falcon",
    "gemma",
    "gemma4",
    "gpt-2",
    "gpt-4o",
    "kimi-k2",
    "laguna",
    "llama-bpe",
    "llama-spm",
    "minicpm5",
    "qwen2",
    "qwen35",
    "seed-coder",
    "smollm",
];

/// A reply whose tokens are drawn by chance, but for those that would break it; and how many of those there were.
/// The tokens are `common` ones more often than any.
fn reply(tokenizer: &Tokenizer, common: &[u32], after: After, numbers: &mut Numbers) -> (Vec<u32>, usize) {
    let (text, length) = (CanonicalText { begin: 0, after }, 1 + numbers.below(80));
    let (mut ids, mut n_broken) = (Vec::new(), 0);
    let mut tries = 0;
    while ids.len() < length && tries < 20_000 {
        tries += 1;
        let id = match numbers.below(3) {
            0 => numbers.below(tokenizer.n_vocab()) as u32,
            _ => common[numbers.below(common.len())],
        };
        if tokenizer.is_special(id) || tokenizer.piece(id).is_empty() {
            continue;
        }
        if text.is_broken_by(id, &ids, tokenizer) {
            n_broken += 1;
        } else {
            ids.push(id);
        }
    }
    // A character that is not complete is cut.
    let is_whole = |ids: &[u32]| {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.piece(*id)).copied().collect();
        str::from_utf8(&bytes).is_ok()
    };
    while !is_whole(&ids) {
        ids.pop();
    }
    (ids, n_broken)
}

#[test]
fn a_replys_ids_are_those_of_its_text() {
    let text = std::fs::read_to_string(super::texts::fixture("pride-and-prejudice.txt")).expect("a text");
    let others = "  \n\n  \n1234567890 3,000.50\t\t\tfn main() {\n    let x = 7;\n\n}\n日本語のテキスト。Ünïcödé 😀😀 it's don't ";
    for name in VOCABULARIES {
        let tokenizer = vocabulary(name);
        let common = [&text[..], others, others]
            .map(|text| tokenizer.encode_message(text, After::Text).expect("ids"))
            .concat();
        let mut numbers = Numbers(7);
        let (mut n_ids, mut n_broken) = (0, 0);
        let replies = std::env::var("GREENROOM_REPLIES").map_or(300, |n| n.parse().expect("a number"));
        for n in 0..replies {
            let after = if n % 2 == 0 { After::Special } else { After::Text };
            let (ids, broken) = reply(&tokenizer, &common, after, &mut numbers);
            let text = tokenizer.decode(&ids);
            let after = if text.starts_with(' ') { After::Text } else { after };
            let encoded = tokenizer.encode_message(&text, after).expect("ids");
            assert_eq!(encoded, ids, "{name}, reply {n}: {text:?}");
            (n_ids, n_broken) = (n_ids + ids.len(), n_broken + broken);
        }
        assert!(n_ids > 300 * 20 && n_broken > n_ids / 10, "{name}: {n_ids} ids, {n_broken} refused");
    }
}

/// Words are cut together there: what follows a word decides how it is cut.
#[test]
fn a_vocabulary_whose_beginnings_change_is_known() {
    assert!(!vocabulary("exaone-moe").is_canonical_by_beginnings());
    assert!(VOCABULARIES.into_iter().all(|name| vocabulary(name).is_canonical_by_beginnings()));
}

/// A text as it is encoded is never refused, from its first token to its last.
#[test]
fn encoded_text_is_not_refused() {
    let text = std::fs::read_to_string(super::texts::fixture("pride-and-prejudice.txt")).expect("a text");
    for name in VOCABULARIES {
        let tokenizer = vocabulary(name);
        for line in text.split("\n\n").filter(|line| !line.trim().is_empty()) {
            let ids = tokenizer.encode_message(line, After::Text).expect("ids");
            let text = CanonicalText { begin: 0, after: After::Text };
            let refused = (0..ids.len()).filter(|n| text.is_broken_by(ids[*n], &ids[..*n], &tokenizer));
            let refused: Vec<String> =
                refused.map(|n| tokenizer.decode(&ids[n.saturating_sub(3)..=n])).collect();
            assert!(refused.is_empty(), "{name}: {refused:?} in {line:?}");
        }
    }
}

/// Where a grammar leaves no other token, a reply's ids are not those of its text. What follows is drawn as freely as
/// ever.
#[test]
fn what_follows_a_break_is_not_refused() {
    let mut n_tried = 0;
    for name in VOCABULARIES {
        let tokenizer = vocabulary(name);
        let encode = |text: &str| tokenizer.encode_message(text, After::Text).expect("ids");
        let [begin, first, second, whole, rest] =
            ["Into", " t", "he", " the", " cold sea, and nobody swims.\n\nIt is late."].map(encode);
        let ([first], [second], [_]) = (&first[..], &second[..], &whole[..]) else { continue };
        n_tried += 1;
        let mut reply = ReplyText::default().canonical(Some(After::Text));
        for id in begin.into_iter().chain([*first]) {
            assert!(!reply.refuses(id, &tokenizer), "{name}");
            reply.follow(id, &tokenizer).expect("no grammar");
        }
        assert!(reply.refuses(*second, &tokenizer), "{name}");
        reply.follow(*second, &tokenizer).expect("no grammar");
        for id in rest {
            assert!(!reply.refuses(id, &tokenizer), "{name}: {:?}", tokenizer.decode(&[id]));
            reply.follow(id, &tokenizer).expect("no grammar");
        }
    }
    assert!(n_tried > 5, "{n_tried}");
}

/// How often replies of a trained model are other ids than their text's, at temperature 1, and what it costs to keep
/// them from it.
#[test]
#[ignore = "a measurement: GREENROOM_MODELS='a.gguf b.gguf' cargo test --release -p greenroom-engine --lib -- --ignored --nocapture how_often_tokens"]
fn how_often_tokens_are_refused() {
    let asked = [
        "Tell me about the market.",
        "Write a function that sorts a list.",
        "Wie geht es dir? Antworte auf Deutsch.",
        "List three prices.",
    ];
    for file in std::env::var("GREENROOM_MODELS").expect("files").split_whitespace() {
        let engine = Engine::open(EngineConfig::new(ModelSource::Path(file.into()))).expect("an engine");
        let tokenizer = &engine.prompter().tokenizer;
        for canonical in [false, true] {
            let (mut n_ids, mut n_others, mut logprobs, mut seconds) = (0, 0, Vec::new(), 0.0);
            for seed in 0..100 {
                let next = asked[seed as usize % asked.len()].to_owned();
                let request = Request {
                    sampling: Sampling { temperature: 1.0, seed, canonical, ..Sampling::default() },
                    max_tokens: 100,
                    logprobs: (seed % 2 == 0).then_some(0),
                    ..Request::new(
                        SessionKey::new("r", format!("{seed}{canonical}")),
                        Conversation { next, ..Conversation::default() },
                    )
                };
                let mut turn = engine.submit(request).expect("a turn");
                let mut done = None;
                while let Some(event) = turn.blocking_next() {
                    if let Event::Done(completion) = event {
                        done = Some(completion);
                    }
                }
                let done = done.expect("a reply");
                n_ids += done.ids.len();
                let text = tokenizer.encode_message(&done.text, After::Text).expect("ids");
                n_others += usize::from(text != done.ids);
                logprobs.extend(done.logprobs.iter().map(|token| f64::from(token.logprob)));
                if seed % 2 == 1 {
                    seconds +=
                        (done.usage.total_ms - done.usage.ttft_ms) / 1e3 / done.ids.len().max(1) as f64;
                }
            }
            let perplexity = (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
            println!(
                "{file}, canonical {canonical}: {n_ids} tokens, {n_others} of 100 replies are other ids than their text's, perplexity of 50 of them {perplexity:.3}, {:.2} ms a token",
                seconds / 50.0 * 1e3
            );
        }
    }
}
