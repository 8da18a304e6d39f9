//! Everything that reads a file from outside, as a function of its bytes: what the fuzz targets call, and a
//! test of the main workspace with the seeds and mutations of them.
//!
//! A reader returns an error for a file that it refuses and must never panic, hang or ask for memory out of
//! proportion.

use greenroom::prompt::{Memories, OpenOptions, SampledReply};
use greenroom::rehearsal::load;
use greenroom::replay::{origin, replay};
use greenroom::scenario::{Loaded, Scenario, migrate, parse_override};
use greenroom::transcript::{Drift, Transcript};
use greenroom_engine::{Conversation, Exchange, KvChoice, KvFormat, ReplyContent, probes};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Reads a file's bytes.
pub type Reader = fn(&[u8]) -> Result<(), String>;

/// All readers, by the names of their targets and folders of seeds.
pub const READERS: [(&str, Reader); 10] = [
    ("block", block),
    ("gguf", gguf),
    ("manifest", manifest),
    ("memory", memory),
    ("pack", pack),
    ("scenario", scenario),
    ("tail", tail),
    ("template", template),
    ("transcript", transcript),
    ("weights", weights),
];

fn words(error: impl Display) -> String {
    error.to_string()
}

/// A sealed block of the cache: with and without its checksum, then attended to.
pub fn block(bytes: &[u8]) -> Result<(), String> {
    probes::read_block(bytes)
}

/// A session's manifest, with the right checksums put in.
pub fn manifest(bytes: &[u8]) -> Result<(), String> {
    probes::read_manifest(bytes)
}

/// A session's exported memory, with the right checksums put in.
pub fn memory(bytes: &[u8]) -> Result<(), String> {
    probes::read_memory(bytes)
}

/// The index of a pack of blocks, after its checksum.
pub fn pack(bytes: &[u8]) -> Result<(), String> {
    probes::read_pack_index(bytes)
}

/// The rows of an open block, with the right checksums put in.
pub fn tail(bytes: &[u8]) -> Result<(), String> {
    probes::read_tail(bytes)
}

/// A model's header, shape, tokenizer and chat template; a conversation is rendered and counted.
pub fn gguf(bytes: &[u8]) -> Result<(), String> {
    let prompter = probes::prompter(bytes).map_err(words)?;
    for kv in [KvChoice::Auto, KvChoice::Uniform(KvFormat::F16), KvChoice::Unrotated(KvFormat::Q8)] {
        let cost = prompter.kv_cost(&kv).map_err(words)?;
        cost.most(cost.longest(1 << 30));
        prompter.kv_name(&kv).map_err(words)?;
    }
    let text = "Ben:  the <|im_end|> – 12345\n\n</s>▁\u{e000}";
    prompter.count(text);
    let replies = [ReplyContent::Ids([0, 1, 2].into()), ReplyContent::Text(text.into())];
    for system in [None, Some(text.to_owned())] {
        let exchange = |reply: &ReplyContent| Exchange::new(text.into(), reply.clone());
        let exchanges = replies.iter().map(exchange).collect();
        let conversation = Conversation { system, exchanges, next: text.into(), ..Conversation::default() };
        // A vocabulary of two tokens has no third one: an error as well as any.
        let _ = prompter.prompt_tokens(&conversation);
    }
    Ok(())
}

/// A chat template, in a model that has nothing else.
pub fn template(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(words)?;
    let mut model = small_model();
    model.push(("tokenizer.chat_template", Meta::Text(text)));
    gguf(&gguf_file(&model))
}

/// A whole model: its weights are loaded, and a few tokens go through it.
pub fn weights(bytes: &[u8]) -> Result<(), String> {
    probes::next_token(bytes).map(drop).map_err(words)
}

/// A scenario's YAML: loaded, reported on, unrolled, and the first prompts of everybody rendered.
pub fn scenario(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(words)?;
    let _ = parse_override(text);
    let loaded = load("scenario.yaml", text, &[]);
    // Rewritten in today's language, it is read as the same.
    if let Ok(Some(migrated)) = migrate("scenario.yaml", text) {
        let again = load("scenario.yaml", &migrated.text, &[]);
        let plan = |loaded: &Loaded| loaded.scenario.as_ref().map(|scenario| scenario.plan().hash());
        assert_eq!(plan(&loaded), plan(&again), "{}", migrated.text);
    }
    loaded.report.render(true);
    let scenario = loaded.scenario.ok_or_else(|| loaded.report.render(false))?;
    scenario.template_hashes();
    let plan = scenario.plan().clone();
    plan.hash();
    plan.dot(&scenario);
    plan.mermaid(&scenario);
    let mut memories = Memories::new(scenario, plan.clone(), BTreeMap::new(), 0);
    for (id, _) in plan.order().take(64) {
        if !memories.takes_place(id).map_err(words)? {
            memories.skip(id);
            continue;
        }
        memories.hear(id).map_err(words)?;
        let asked = memories.ask(id).map_err(words)?;
        let option = |of: &OpenOptions| Some(of.choice.options[*of.open.first()?].text.clone());
        let said =
            asked.choice.as_ref().and_then(option).unwrap_or_else(|| "Yes.\nBen: {{ no }}".to_string());
        memories.say(asked, SampledReply { ids: &[1], raw: &said, speech: &said });
    }
    let _ = greenroom::outcome::footer(&memories);
    Ok(())
}

/// The scenario of the transcripts among the seeds.
pub const SCENARIO: &str = include_str!("seeds/scenario/whole-small.yaml");

static PLAYED: LazyLock<Arc<Scenario>> = LazyLock::new(|| {
    let loaded = load("small.yaml", SCENARIO, &[]);
    loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)))
});

/// A transcript: parsed, replayed, and replayed again as if all its hashes fitted.
pub fn transcript(bytes: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(bytes);
    let mut transcript = Transcript::parse(Path::new("transcript.jsonl"), &text).map_err(words)?;
    let variables = transcript.header.record.variables.iter();
    let overrides: Vec<_> = variables.map(|(name, value)| (name.clone(), value.clone())).collect();
    load("small.yaml", SCENARIO, &overrides).report.render(true);
    let replayed = replay(&PLAYED, &transcript, BTreeMap::new());
    transcript.header.intact = true;
    transcript.turns.iter_mut().for_each(|turn| turn.intact = true);
    transcript.footer.iter_mut().for_each(|footer| footer.intact = true);
    if let Err(error) = replay(&PLAYED, &transcript, BTreeMap::new())
        && let Some(drift) = error.downcast_ref::<Drift>()
    {
        origin(&PLAYED, &transcript.header.record, drift);
    }
    replayed.map(drop).map_err(words)
}

/// A value of a GGUF's metadata.
#[derive(Clone, Debug)]
pub enum Meta<'a> {
    /// A whole number.
    Int(u32),
    /// A float.
    Float(f32),
    /// A text.
    Text(&'a str),
    /// Whole numbers.
    Ints(&'a [i32]),
    /// Floats.
    Floats(&'a [f32]),
    /// Texts.
    Texts(&'a [&'a str]),
}

/// A GGUF file without tensors.
pub fn gguf_file(metadata: &[(&str, Meta<'_>)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn array(out: &mut Vec<u8>, kind: u32, n: usize) {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((n as u64).to_le_bytes());
    }
    let mut out = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut out, key);
        match value {
            Meta::Int(n) => out.extend([4u32.to_le_bytes(), n.to_le_bytes()].concat()),
            Meta::Float(x) => out.extend([6u32.to_le_bytes(), x.to_le_bytes()].concat()),
            Meta::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value);
            }
            Meta::Ints(ints) => {
                array(&mut out, 5, ints.len());
                ints.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
            Meta::Floats(floats) => {
                array(&mut out, 6, floats.len());
                floats.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            Meta::Texts(texts) => {
                array(&mut out, 8, texts.len());
                texts.iter().for_each(|value| text(&mut out, value));
            }
        }
    }
    out
}

/// Metadata of a llama of one layer with a SentencePiece vocabulary of seven tokens.
pub fn small_model() -> Vec<(&'static str, Meta<'static>)> {
    use Meta::{Float, Floats, Int, Ints, Text, Texts};
    vec![
        ("general.architecture", Text("llama")),
        ("llama.context_length", Int(4096)),
        ("llama.embedding_length", Int(32)),
        ("llama.block_count", Int(1)),
        ("llama.feed_forward_length", Int(32)),
        ("llama.attention.head_count", Int(2)),
        ("llama.attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("tokenizer.ggml.model", Text("llama")),
        ("tokenizer.ggml.tokens", Texts(&["<unk>", "<s>", "</s>", "▁", "a", "▁a", "<0x0A>"])),
        ("tokenizer.ggml.scores", Floats(&[0.0, 0.0, 0.0, -2.0, -3.0, -1.0, 0.0])),
        ("tokenizer.ggml.token_type", Ints(&[2, 3, 3, 1, 1, 1, 6])),
    ]
}
