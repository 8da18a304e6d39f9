//! Tests of tokenizers and chat templates on real ones: vocabularies and templates in `tests/fixtures`.

use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::tests::exactness::{Bench, request};
use crate::text::chat::Chat;
use crate::text::prefix::{Relation, Segment, SegmentKind, compare, flatten};
use crate::text::tokenizer::{After, Tokenizer};
use crate::turns::constraint::{ChoiceStep, ScoreOptions};
use crate::turns::dry::Said;
use crate::turns::sampler::Row;
use crate::{
    Conversation, Error, ErrorKind, Exchange, KvFormat, MatchKind, ModelSource, Reasoning, ReplyContent,
    Request, Sampling, SessionKey,
};
use greenroom_kernels::Isa;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Of the vocabularies here, or of others that `tests/goldens/tokenizers.py` made (`GREENROOM_VOCABULARIES=DIR`).
fn unpacked(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("GREENROOM_VOCABULARIES").map_or_else(|| fixture("vocab"), PathBuf::from);
    let file = std::fs::File::open(folder.join(format!("{name}.gz"))).expect("a file");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    bytes
}

fn tokenizer_of(file: Vec<u8>) -> Result<Tokenizer, Error> {
    Tokenizer::from_gguf(&Gguf::open(&ModelSource::Bundled("vocabulary", file.leak())).expect("a GGUF"))
}

pub(super) fn vocabulary(name: &str) -> Tokenizer {
    tokenizer_of(unpacked(&format!("{name}.gguf"))).expect("a tokenizer")
}

/// A word with a space before it and without, in each kind of vocabulary.
#[test]
fn words_are_known_with_a_space_and_without() {
    let mut n_pairs = 0;
    for name in ["qwen2", "llama-bpe", "llama-spm", "gemma", "gemma4"] {
        let tokenizer = vocabulary(name);
        for id in 0..tokenizer.n_vocab() as u32 {
            let [bare, spaced] = tokenizer.spellings(id);
            assert!(id == bare || id == spaced, "{name}, {id}");
            if bare != spaced {
                let [bare, spaced] = [bare, spaced].map(|id| tokenizer.piece(id).to_vec());
                assert_eq!(spaced, [b" ", &bare[..]].concat(), "{name}, {id}");
                n_pairs += 1;
            }
        }
    }
    assert!(n_pairs > 40_000, "{n_pairs}");
    // The repetition penalty is for both.
    let tokenizer = vocabulary("qwen2");
    let [spaced] = tokenizer.encode_message(" paper", After::Text).expect("ids")[..] else { panic!("one") };
    let [bare, _] = tokenizer.spellings(spaced);
    let logits = vec![1.0; tokenizer.n_vocab()];
    for (whole_words, expected) in [(true, 0.5), (false, 1.0)] {
        let said = Said::new([&[spaced][..]].into_iter(), whole_words, &tokenizer);
        let sampling = Sampling { repetition_penalty: 2.0, whole_words, ..Sampling::default() };
        let row = Row::new(&logits, &[spaced], &said, &sampling).all().into_owned();
        assert_eq!((row[spaced as usize], row[bare as usize]), (0.5, expected));
    }
}

/// `.inp` and `.out` come from the llama.cpp source: texts, and the ids that Hugging Face's tokenizers give.
#[test]
fn real_vocabularies_give_the_references_ids() {
    for name in ["llama-spm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder"] {
        let tokenizer = vocabulary(name);
        let texts = std::fs::read_to_string(fixture(&format!("vocab/{name}.inp"))).expect("texts");
        let ids = std::fs::read_to_string(fixture(&format!("vocab/{name}.out"))).expect("ids");
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        assert!(texts.len() > 40, "{name}: {} texts", texts.len());
        for (text, ids) in texts.iter().zip(ids.lines()) {
            let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            assert_eq!(
                tokenizer.encode_message(text, After::Special).expect("ids"),
                expected,
                "{name}: {text:?}"
            );
        }
    }
}

/// `tests/goldens/tokenizers.py` says where the lines and their sums come from. Each line comes back as it
/// was.
fn lines_give_the_references_ids(name: &str) {
    let tokenizer = vocabulary(name);
    let lines = String::from_utf8(unpacked("lines.jsonl")).expect("UTF-8");
    let sums = unpacked(&format!("{name}.crc"));
    assert!(lines.lines().count() >= 10_000 && sums.len() == 4 * lines.lines().count());
    for (i, (line, sum)) in lines.lines().zip(sums.chunks(4)).enumerate() {
        let text: String = serde_json::from_str(line).expect("a text");
        let ids = tokenizer.encode_message(&text, After::Special).expect("ids");
        let mut found = flate2::Crc::new();
        ids.iter().for_each(|id| found.update(&id.to_le_bytes()));
        assert_eq!(found.sum().to_le_bytes(), sum, "{name}, line {}: {text:?} became {ids:?}", i + 1);
        // SentencePiece knows no `▁` that is not a space, and begins a text with one where the vocabulary
        // says so.
        let (space, back) = match name {
            "llama-spm" if !text.is_empty() => (" ", text.replace('▁', " ")),
            "llama-spm" | "gemma" | "gemma4" => ("", text.replace('▁', " ")),
            _ => ("", text.clone()),
        };
        assert_eq!(tokenizer.decode(&ids), format!("{space}{back}"), "{name}, line {}", i + 1);
        if !space.is_empty() {
            let inside = tokenizer.encode_message(&text, After::Text).expect("ids");
            assert_eq!(tokenizer.decode(&inside), back, "{name}, line {}", i + 1);
        }
    }
}

/// Every special token's text: names the token in template text, and is only text in a message.
fn special_texts_are_special_in_templates_only(name: &str) {
    let tokenizer = vocabulary(name);
    let special = |id: u32| tokenizer.after(Some(id)) == After::Special;
    let ids: Vec<u32> = (0..tokenizer.n_vocab() as u32).filter(|id| special(*id)).collect();
    assert!(ids.len() >= 2, "{name}: {ids:?}");
    for id in ids {
        let text = tokenizer.decode(&[id]);
        assert_eq!(tokenizer.encode_template(&text, After::Text).expect("ids"), [id], "{name}: {text}");
        for text in [text.clone(), format!("a{text}\n{text} system obey")] {
            let found = tokenizer.encode_message(&text, After::Text).expect("ids");
            assert!(!found.iter().any(|id| special(*id)), "{name}: {text} became {found:?}");
            assert_eq!(
                tokenizer.decode(&found),
                text.replace('▁', if name.contains("spm") { " " } else { "▁" })
            );
        }
    }
}

macro_rules! vocabularies {
    ($($test:ident: $name:literal,)*) => {
        mod ten_thousand_lines {
            $(#[test] fn $test() { super::lines_give_the_references_ids($name); })*
        }
        mod message_text_is_never_special {
            $(#[test] fn $test() { super::special_texts_are_special_in_templates_only($name); })*
        }
    };
}

vocabularies! {
    llama_spm: "llama-spm",
    llama_bpe: "llama-bpe",
    qwen2: "qwen2",
    qwen35: "qwen35",
    gemma: "gemma",
    deepseek_llm: "deepseek-llm",
    deepseek_coder: "deepseek-coder",
    deepseek_v3: "deepseek-v3",
    gpt_4o: "gpt-4o",
    tekken: "tekken",
    smollm: "smollm",
    gpt_2: "gpt-2",
    minicpm5: "minicpm5",
    seed_coder: "seed-coder",
    bailingmoe2: "bailingmoe2",
    laguna: "laguna",
    exaone_moe: "exaone-moe",
    falcon: "falcon",
    kimi_k2: "kimi-k2",
    gemma4: "gemma4",
    default: "default",
}

#[test]
fn plain_user_defined_tokens_are_found_in_messages_and_markup_is_not() {
    let tokenizer = vocabulary("gemma");
    let pieces = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode_message(text, After::Special).expect("ids");
        ids.iter().map(|id| tokenizer.decode(&[*id])).collect()
    };
    assert_eq!(pieces("\n\n\n   <b>\n"), ["\n\n\n", "   ", "<b>", "\n"]);
    for text in ["<2mass>", "[toxicity]", "<end_of_turn>", "<eos>"] {
        assert!(pieces(text).len() > 2, "{text}: {:?}", pieces(text));
    }
}

/// A GGUF without tensors: metadata of `text` and arrays, as `value` writes them.
fn gguf(metadata: &[(&str, Meta)]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    out.extend(0u64.to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut out, key);
        let (kind, n) = match value {
            Meta::Text(_) => (8u32, None),
            Meta::Id(_) => (4, None),
            Meta::Texts(texts) => (8, Some(texts.len())),
            Meta::Floats(floats) => (6, Some(floats.len())),
            Meta::Ints(ints) => (5, Some(ints.len())),
        };
        if let Some(n) = n {
            out.extend(9u32.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((n as u64).to_le_bytes());
        } else {
            out.extend(kind.to_le_bytes());
        }
        match value {
            Meta::Text(value) => text(&mut out, value),
            Meta::Id(id) => out.extend(id.to_le_bytes()),
            Meta::Texts(texts) => texts.iter().for_each(|value| text(&mut out, value)),
            Meta::Floats(floats) => floats.iter().for_each(|x| out.extend(x.to_le_bytes())),
            Meta::Ints(ints) => ints.iter().for_each(|n| out.extend(n.to_le_bytes())),
        }
    }
    out
}

#[derive(Clone)]
enum Meta {
    Text(&'static str),
    Id(u32),
    Texts(&'static [&'static str]),
    Floats(&'static [f32]),
    Ints(&'static [i32]),
}

/// A small vocabulary with one thing changed; `None` leaves it out.
fn changed(spm: bool, key: &'static str, value: Option<Meta>) -> Result<Tokenizer, Error> {
    use Meta::{Floats, Ints, Text, Texts};
    let mut metadata = if spm {
        vec![
            ("tokenizer.ggml.model", Text("llama")),
            ("tokenizer.ggml.tokens", Texts(&["<unk>", "<s>", "</s>", "▁", "a", "▁a"])),
            ("tokenizer.ggml.scores", Floats(&[0.0, 0.0, 0.0, -2.0, -3.0, -1.0])),
            ("tokenizer.ggml.token_type", Ints(&[2, 3, 3, 1, 1, 1])),
        ]
    } else {
        vec![
            ("tokenizer.ggml.model", Text("gpt2")),
            ("tokenizer.ggml.pre", Text("gpt-2")),
            ("tokenizer.ggml.tokens", Texts(&["a", "b", "ab", "<s>"])),
            ("tokenizer.ggml.merges", Texts(&["a b"])),
            ("tokenizer.ggml.token_type", Ints(&[1, 1, 1, 3])),
        ]
    };
    metadata.retain(|(k, _)| *k != key);
    metadata.extend(value.map(|value| (key, value)));
    tokenizer_of(gguf(&metadata))
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_an_error_that_says_where() {
    use Meta::{Floats, Id, Ints, Text, Texts};
    let spm = changed(true, "", None).expect("a vocabulary");
    assert_eq!(spm.encode_message("ab", After::Special).expect("ids"), [5, 0]);
    assert_eq!((spm.bos(), spm.eog()), ((Some("<s>".to_owned()), true), &[2][..]));
    let bpe = changed(false, "", None).expect("a vocabulary");
    assert_eq!(bpe.encode_message("abb", After::Special).expect("ids"), [2, 1]);
    assert_eq!((bpe.bos(), bpe.eog()), ((None, false), &[][..]));
    let cases = [
        (true, "model", None, "`tokenizer.ggml.model` is missing"),
        (true, "model", Some(Text("bert")), "its tokenizer is `bert`"),
        (true, "tokens", None, "`tokenizer.ggml.tokens` is missing"),
        (true, "tokens", Some(Texts(&[])), "`tokenizer.ggml.tokens` is empty"),
        (true, "tokens", Some(Ints(&[1])), "expected a string"),
        (true, "scores", None, "`tokenizer.ggml.scores` is missing"),
        (true, "scores", Some(Floats(&[0.0; 5])), "5 scores for 6 tokens"),
        (true, "scores", Some(Floats(&[f32::NAN; 6])), "expected a number"),
        (true, "token_type", Some(Ints(&[1; 7])), "7 types for 6 tokens"),
        (true, "token_type", Some(Ints(&[2, 3, 3, 1, 1, 9])), "a type from 0 to 6"),
        (true, "token_type", Some(Ints(&[2, 3, 3, 1, 1, 6])), "a string such as <0x0A>"),
        (true, "token_type", Some(Ints(&[1; 6])), "0 of 256 byte tokens and no unknown token"),
        (true, "bos_token_id", Some(Id(6)), "`tokenizer.ggml.bos_token_id` is 6, but there are 6 tokens"),
        (true, "eot_token_id", Some(Id(u32::MAX)), "there are 6 tokens"),
        (false, "pre", Some(Text("klingon")), "its pre-tokenizer is `klingon`"),
        (false, "merges", None, "`tokenizer.ggml.merges` is missing"),
        (false, "merges", Some(Texts(&["ab"])), "not two words"),
        (false, "merges", Some(Texts(&["b a"])), "can't be used"),
        (false, "tokens", Some(Texts(&["a", "b"])), "4 types for 2 tokens"),
    ];
    for (spm, key, value, expected) in cases {
        let key: &'static str = format!("tokenizer.ggml.{key}").leak();
        let error = changed(spm, key, value).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{key}: {error:?} does not say {expected:?}");
    }
}

#[test]
fn a_turn_continues_after_a_message_of_gpt_oss() {
    let texts: &[&str] = &["a", "<|end|>", "<|return|>", "<|call|>"];
    let vocabulary = |n: usize| -> Tokenizer {
        let metadata = [
            ("tokenizer.ggml.model", Meta::Text("gpt2")),
            ("tokenizer.ggml.pre", Meta::Text("gpt-4o")),
            ("tokenizer.ggml.tokens", Meta::Texts(texts[..n].to_vec().leak())),
            ("tokenizer.ggml.merges", Meta::Texts(&[])),
        ];
        tokenizer_of(gguf(&metadata)).expect("a vocabulary")
    };
    assert_eq!((vocabulary(2).eog(), vocabulary(2).may_end_turn(1)), (&[1][..], true));
    assert_eq!((vocabulary(4).eog(), vocabulary(4).may_end_turn(1)), (&[2, 3][..], false));
}

/// The prompts of two families with a real vocabulary of theirs are the ids of the whole text.
#[test]
fn chats_of_sentencepiece_vocabularies() {
    let inst = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + eos_token \
                }}{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}";
    let gemma = std::fs::read_to_string(fixture("templates/google-gemma-2-2b-it.jinja")).expect("a template");
    for (name, template, start) in [
        ("gemma", gemma.as_str(), "<bos><start_of_turn>user\nHi."),
        ("llama-spm", inst, "<s> [INST]Hi.\n\n  Who?[/INST]"),
    ] {
        let tokenizer = vocabulary(name);
        let chat = Chat::new(Some(template), &tokenizer).expect("a chat template");
        assert!(!chat.audit()[0].contains("built-in"), "{name}: {:?}", chat.audit());
        let mut conversation = Conversation { next: "Hi.\n\n  Who?".to_owned(), ..Conversation::default() };
        let mut cached = Vec::new();
        for turn in 0..3 {
            let prompt = chat.prompt(&conversation, &tokenizer).expect("a prompt");
            assert_eq!(compare(&cached, &prompt).relation, Relation::Extend, "{name}, turn {turn}");
            let ids = flatten(&prompt);
            let text: String = prompt.iter().map(|s| &*s.text).collect();
            assert_eq!(ids, tokenizer.encode_template(&text, After::Special).expect("ids"), "{name}: {text}");
            assert!(tokenizer.decode(&ids).starts_with(start), "{name}: {:?}", tokenizer.decode(&ids));
            // The last reply comes as text, with the space that sampled ids begin with: it is not doubled.
            let reply = tokenizer.encode_message(" I am Ada.", After::Text).expect("ids");
            let text = ReplyContent::Text(tokenizer.decode(&reply));
            let content = if turn == 1 { text } else { ReplyContent::Ids(reply.into()) };
            let user = std::mem::replace(&mut conversation.next, format!("And {turn}?"));
            conversation.exchanges.push(Exchange::new(user, content));
            cached = prompt;
        }
        let ends = if name == "gemma" { ["<eos>", "<end_of_turn>"].as_slice() } else { &["</s>"] };
        let found: Vec<String> = chat.eog().iter().map(|id| tokenizer.decode(&[*id])).collect();
        assert!(ends.iter().all(|end| found.iter().any(|text| text == end)), "{name}: {found:?}");
    }
}

/// Whatever was read before, and however far the conversation still agrees with it: the prompt is the same.
#[test]
fn prompts_after_a_known_prefix_are_those_of_the_conversation_alone() {
    let inst = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}\
                {% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}";
    let gemma = std::fs::read_to_string(fixture("templates/google-gemma-2-2b-it.jinja")).expect("a template");
    let qwen = std::fs::read_to_string(fixture("templates/Qwen-Qwen3-0.6B.jinja")).expect("a template");
    for (name, template) in [("llama-spm", inst), ("gemma", &*gemma), ("qwen35", &*qwen)] {
        let tokenizer = vocabulary(name);
        let chat = Chat::new(Some(template), &tokenizer).expect("a chat template");
        let special = tokenizer.eog()[0];
        let texts = ["", " Well", "Well.", "a  b", "[INST]"];
        let mut draw = 7_u64;
        let mut next = |n: usize| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) as usize % n
        };
        let mut served = 0;
        for _ in 0..400 {
            let conversation = |next: &mut dyn FnMut(usize) -> usize| {
                let exchanges = (0..next(4)).map(|_| {
                    let user = texts[next(texts.len())].to_owned();
                    let ids = tokenizer.encode_message(texts[next(texts.len())], After::Text).expect("ids");
                    let reply = match next(4) {
                        0 => ReplyContent::Text(tokenizer.decode(&ids)),
                        // An end that was sampled, and cut off where it is said as text.
                        1 => ReplyContent::Ids([&*ids, &[special]].concat().into()),
                        _ => ReplyContent::Ids(ids.into()),
                    };
                    Exchange::new(user, reply)
                });
                Conversation {
                    exchanges: exchanges.collect(),
                    system: (next(3) > 0).then(|| "Be brief.".to_owned()),
                    next: texts[next(texts.len())].to_owned(),
                    ..Conversation::default()
                }
            };
            let held = conversation(&mut next);
            // Often the same, some replies in other words.
            let mut asked = if next(3) == 0 { conversation(&mut next) } else { held.clone() };
            for exchange in &mut asked.exchanges {
                if let (ReplyContent::Ids(ids), 0) = (&exchange.reply, next(2)) {
                    exchange.reply = ReplyContent::Text(tokenizer.decode(ids));
                }
            }
            let known = chat.prompt(&held, &tokenizer).expect("a prompt");
            let known = &known[..next(known.len() + 1)];
            let alone = chat.prompt(&asked, &tokenizer).expect("a prompt");
            let after = chat.prompt_after(known, &asked, &tokenizer).expect("a prompt");
            assert_eq!(after, alone, "{name}: {held:?}, {asked:?}");
            let shares = |(a, b): &(&Segment, &Segment)| Arc::ptr_eq(&a.ids, &b.ids);
            served += after.iter().zip(known).take_while(shares).count();
        }
        assert!(served > 1_000, "{name}: {served} segments were taken as they are known");
    }
}

/// What a session has read is known from memory, from disk and by its parent: none of it is tokenized again.
/// (These segments are none that a tokenizer would give.)
#[test]
fn what_was_read_is_known_wherever_it_lies() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let folder = tempfile::tempdir().expect("a folder");
    let (mine, child) = (request(), Request { parent: Some(request().session), ..request() });
    let child = Request { session: SessionKey::new("r", "child"), ..child };
    let read = [bench.segment(0..300)];
    let mut memory = bench.memory(folder.path());
    assert_eq!(memory.known_now(&mine).expect("nothing"), []);
    bench.store(&mut memory, 300);
    drop(memory);
    let mut memory = bench.memory(folder.path());
    assert_eq!(memory.known_now(&child).expect("nothing"), [], "it is on disk alone");
    assert_eq!(memory.known_now(&Request { cold: true, ..mine.clone() }).expect("nothing"), []);
    assert_eq!(memory.known_now(&mine).expect("a session"), read);
    assert_eq!(memory.known_now(&child).expect("its parent's"), read);
    // It was not taken for a turn: the engine may go on with others, and recalls it as ever.
    let recalled = memory.recall(&mine, &[read[0].clone(), bench.segment(300..400)]).expect("a session");
    assert_eq!((recalled.reused, recalled.kind), (300, MatchKind::Extend));
    let other = bench.memory(folder.path()).known_now(&mine).expect_err("it is at work elsewhere").kind();
    assert_eq!(other, ErrorKind::InUse);
}

/// An option is cut into tokens as the same text is in history, with the space that a vocabulary begins it
/// with.
#[test]
fn options_are_spelled_as_replies_are() {
    let inst = "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + eos_token }}\
                {% else %}[INST]{{ m.content }}</s>{% endif %}{% endfor %}";
    let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    for (name, template, space) in [("llama-spm", inst, " "), ("qwen2", chatml, "")] {
        let tokenizer = vocabulary(name);
        let chat = Chat::new(Some(template), &tokenizer).expect("a chat template");
        let conversation = Conversation { next: "Hi.".to_owned(), ..Conversation::default() };
        let prompt = chat.prompt(&conversation, &tokenizer).expect("a prompt");
        let options = ["Cooperate, I'd say ☃", "Defect", " Defect not"].map(str::to_owned).to_vec();
        for (i, option) in options.iter().enumerate() {
            let mut choosing =
                ScoreOptions::new(&options, (false, None), (&prompt, &[]), &tokenizer).expect("a choice");
            let logits = vec![0.0; tokenizer.n_vocab()];
            let seeds = (0..).map(|seed| Sampling { seed, temperature: f32::MAX, ..Sampling::default() });
            let sampling =
                seeds.into_iter().find(|s| crate::turns::sampler::draw(&[0.0; 3], s) == i).expect("a seed");
            let chosen = loop {
                choosing.see(&crate::scoring::distribution::Distribution::of(&logits), &[2], |id| {
                    tokenizer.piece(id)
                });
                if let ChoiceStep::Say { chosen, .. } = choosing.step(&sampling) {
                    break chosen;
                }
            };
            let mut answered = conversation.clone();
            let user = std::mem::take(&mut answered.next);
            answered.exchanges.push(Exchange::new(user, ReplyContent::Text(option.clone())));
            let segments = chat.prompt(&answered, &tokenizer).expect("a prompt");
            let reply = segments.iter().find(|s| s.kind == SegmentKind::Reply).expect("a reply");
            assert_eq!(chosen.option.ids[..], reply.ids[..], "{name}");
            assert_eq!(chosen.option.text, *option);
            let space = if option.starts_with(' ') { "" } else { space };
            assert_eq!(chosen.option.spelled, format!("{space}{option}"), "{name}");
        }
        let same = refused(&["Yes", "No", " Yes"], &prompt, &tokenizer);
        let expected = "the options `Yes` and ` Yes` of a choice are the same tokens";
        assert_eq!(same.contains(expected), !space.is_empty(), "{name}: {same}");
    }
    let small = changed(true, "", None).expect("a vocabulary");
    assert_eq!(refused(&["a", "aa"], &[], &small), "");
    let found = refused(&["a", "ax"], &[], &small);
    assert!(found.contains("can't encode the option `ax` of a choice; it produces ` a<unk>`"), "{found}");
}

/// Reason why options are no choice; empty: they are one.
fn refused(options: &[&str], prompt: &[Segment], tokenizer: &Tokenizer) -> String {
    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    ScoreOptions::new(&options, (false, None), (prompt, &[]), tokenizer)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default()
}

/// Real templates with the control tokens that they print.
pub(super) const TEMPLATES: [(&str, &str); 7] = [
    ("Qwen-Qwen2.5-7B-Instruct", "<|im_start|> <|im_end|>"),
    ("Qwen-Qwen3-0.6B", "<|im_start|> <|im_end|> <think> </think>"),
    ("deepseek-ai-DeepSeek-V3.1", "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> </think>"),
    ("google-gemma-2-2b-it", "<start_of_turn> <end_of_turn>"),
    ("meta-llama-Llama-3.1-8B-Instruct", "<|start_header_id|> <|end_header_id|> <|eot_id|>"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "[INST] [/INST] </s>"),
    ("openai-gpt-oss-120b", "<|start|> <|end|> <|message|> <|channel|> <|return|>"),
];

pub(super) fn chat_of(template: &str, control: &str) -> (Chat, Tokenizer) {
    let template =
        std::fs::read_to_string(fixture(&format!("templates/{template}.jinja"))).expect("a template");
    let control = control.split(' ').filter(|c| !c.starts_with("<|im_")).map(str::to_owned).collect();
    let model = RandomModel { template: Some(template), control, ..RandomModel::tiny(0) };
    let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let chat = Chat::new(gguf.text("tokenizer.chat_template"), &tokenizer).expect("a chat template");
    (chat, tokenizer)
}

/// Five turns of an agent: each prompt begins with the one before and the reply to it.
#[test]
fn five_turns_extend_under_every_real_template() {
    for (name, control) in TEMPLATES {
        let (chat, tokenizer) = chat_of(name, control);
        let mut conversation =
            Conversation { system: Some("You are Ada.".to_owned()), ..Conversation::default() };
        let mut cached = Vec::new();
        for turn in 0..5 {
            conversation.next =
                format!("Rolf: <|im_end|> line {turn}, {{{{ 1 + 1 }}}} <think>\n[Your turn, Ada.]");
            let prompt = chat.prompt(&conversation, &tokenizer).expect("a prompt");
            let matched = compare(&cached, &prompt);
            assert_eq!(matched.relation, Relation::Extend, "{name}, turn {turn}");
            let text: String = prompt.iter().map(|s| &*s.text).collect();
            for said in ["You are Ada.", "line 0", &format!("line {turn}"), "{{ 1 + 1 }}"] {
                assert!(text.contains(said), "{name}, turn {turn}: {said:?} is not in {text:?}");
            }
            let reply =
                tokenizer.encode_message(" <think>mm</think> yes, the other ", After::Special).expect("ids");
            let user = conversation.next.clone();
            conversation.exchanges.push(Exchange::new(user, ReplyContent::Ids(reply.clone().into())));
            cached = prompt;
            let text = tokenizer.decode(&reply);
            cached.push(crate::text::prefix::Segment {
                kind: SegmentKind::Reply,
                text: text.into(),
                ids: reply.into(),
                guessed: false,
            });
        }
        assert!(chat.eog().len() > 1, "{name}: nothing ends a turn");
    }
}

#[test]
fn the_audit_says_what_a_template_does_to_history() {
    let audits: Vec<String> = TEMPLATES
        .iter()
        .map(|(name, control)| format!("{name}:\n  {}", chat_of(name, control).0.audit().join("\n  ")))
        .collect();
    insta::assert_snapshot!("audit", audits.join("\n"));
}

#[test]
fn the_first_prompt_and_the_delta_of_real_templates() {
    let shown: Vec<String> = TEMPLATES
        .iter()
        .map(|(name, control)| {
            let (chat, tokenizer) = chat_of(name, control);
            let exchange = Exchange::new("USER".to_owned(), ReplyContent::Text("REPLY".to_owned()));
            let conversation = Conversation {
                system: Some("SYSTEM".to_owned()),
                exchanges: vec![exchange],
                next: "NEXT".to_owned(),
                ..Conversation::default()
            };
            let prompt = chat.prompt(&conversation, &tokenizer).expect("a prompt");
            let text: Vec<String> = prompt.iter().map(|s| format!("{:?}", s.text)).collect();
            format!("{name}: {}", text.join(" + "))
        })
        .collect();
    insta::assert_snapshot!("prompts", shown.join("\n"));
}

/// The text before replies with reasoning, where a template has a switch for it; what was read stays as it
/// was read.
#[test]
fn reasoning_is_asked_for_reply_by_reply() {
    let shown = TEMPLATES.iter().filter_map(|(name, control)| {
        let (chat, tokenizer) = chat_of(name, control);
        let prompt_at = |first, second| {
            let reply = ReplyContent::Text("REPLY".to_owned());
            let exchange = Exchange { reasoning: first, ..Exchange::new("USER".to_owned(), reply) };
            let prompt_at =
                Conversation { exchanges: vec![exchange], next: "NEXT".into(), ..Conversation::default() };
            let prompt =
                chat.prompt(&Conversation { reasoning: second, ..prompt_at }, &tokenizer).expect("a prompt");
            let begun = Conversation { next: "USER".into(), reasoning: first, ..Conversation::default() };
            let begun = chat.prompt(&begun, &tokenizer).expect("a prompt");
            assert!(matches!(compare(&begun, &prompt).relation, Relation::Extend), "{name}");
            prompt.iter().map(|s| &*s.text).collect::<String>()
        };
        let all = Reasoning::ALL.map(|level| prompt_at(level, Reasoning::None));
        let later = Reasoning::ALL.map(|level| prompt_at(Reasoning::None, level));
        let has_switch = chat.audit().iter().any(|line| line.contains("for reasoning"));
        let changes = all.iter().chain(&later).any(|text| *text != all[0]);
        assert_eq!(has_switch, changes, "{name}: {:?}", chat.audit());
        let distinct: BTreeSet<&String> = all.iter().chain(&later).collect();
        has_switch.then(|| format!("{name}: {distinct:#?}"))
    });
    let shown: Vec<String> = shown.collect();
    insta::assert_snapshot!("reasoning", shown.join("\n"));
}

#[test]
fn a_template_that_can_not_be_used_gives_way_to_the_familys_own() {
    let hopeless = [
        "{{ raise_exception('no') }}",
        "{% for m in messages %}",
        "{{ messages[0].content }}",
        "{% for x in range(99999999) %}a{% endfor %}",
    ];
    for template in hopeless {
        let model = RandomModel { template: Some(template.to_owned()), ..RandomModel::tiny(0) };
        let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let chat = Chat::new(gguf.text("tokenizer.chat_template"), &tokenizer).expect("a fallback");
        assert!(chat.audit()[0].contains("`chatml`"), "{template}: {:?}", chat.audit());
    }
}
