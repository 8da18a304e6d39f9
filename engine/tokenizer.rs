//! Text to ids and back, from a GGUF's own metadata. Byte-level BPE.
//!
//! There are two encoders. Template text may hold special tokens; message text is encoded without any added
//! token, so that a message which says `<|im_end|>` is seven ordinary characters and more, never an end of turn.

use crate::gguf::{Gguf, Value};
use crate::{Error, ErrorKind, Result};
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// A model's vocabulary with its two encoders and its decoder.
pub(crate) struct Tokenizer {
    template: tokenizers::Tokenizer,
    message: tokenizers::Tokenizer,
    /// The bytes of each token; a special token's are its own text.
    pieces: Vec<Box<[u8]>>,
    /// Control tokens (`<|im_end|>`) by text.
    control: HashMap<String, u32>,
    bos: Option<u32>,
    adds_bos: bool,
    eog: Vec<u32>,
}

/// Pre-tokenizers by their names in `tokenizer.ggml.pre`: pattern, and whether a word that is a token is taken
/// whole, before merging.
const PRE_TOKENIZERS: [(&[&str], &str, bool); 3] = [
    (
        &["gpt-2", "default"],
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        false,
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "smaug-bpe"],
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        true,
    ),
    (
        &["qwen2", "deepseek-r1-qwen"],
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
    ),
];

/// Texts that end a turn in one family or another; llama.cpp keeps the same list.
const EOG_TEXTS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|return|>",
    "<|eom_id|>",
    "<｜end▁of▁sentence｜>",
];

impl Tokenizer {
    /// Reads the tokenizer of a model file.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not served.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        match gguf.text("tokenizer.ggml.model") {
            Some("gpt2") => {}
            Some(other) => {
                let found =
                    format!("its tokenizer is of the kind `{other}`; byte-level BPE (`gpt2`) is served");
                return Err(gguf.error(found));
            }
            None => return Err(gguf.error("it holds no tokenizer (`tokenizer.ggml.model` is missing)")),
        }
        let tokens = strings(gguf, "tokenizer.ggml.tokens")?;
        let merges = strings(gguf, "tokenizer.ggml.merges")?;
        let types: Vec<u32> = match gguf.array("tokenizer.ggml.token_type") {
            None => vec![1; tokens.len()],
            Some(types) => types.iter().map(|t| if let Value::Int(n) = t { *n as u32 } else { 1 }).collect(),
        };
        if types.len() != tokens.len() {
            return Err(gguf.error(format!("{} tokens but {} token types", tokens.len(), types.len())));
        }
        let message = bpe(gguf, &tokens, &merges)?;
        let mut template = message.clone();
        // Types 3 and 4 of ggml: control tokens, and user-defined ones (`<think>`).
        let added = tokens.iter().zip(&types).filter(|(_, t)| matches!(t, 3 | 4));
        let (control, defined): (Vec<_>, Vec<_>) = added.partition(|(_, t)| **t == 3);
        let token =
            |(text, kind): (&String, &u32)| AddedToken::from(text.clone(), *kind == 3).normalized(false);
        template.add_special_tokens(control.iter().copied().map(token)).map_err(|e| unusable(gguf, e))?;
        template.add_tokens(defined.into_iter().map(token)).map_err(|e| unusable(gguf, e))?;
        let id = |text: &str| tokens.iter().position(|t| t == text).map(|id| id as u32);
        let control: HashMap<_, _> =
            control.into_iter().filter_map(|(text, _)| Some((text.clone(), id(text)?))).collect();
        let mut eog: Vec<u32> = EOG_TEXTS.iter().filter_map(|text| control.get(*text).copied()).collect();
        for key in ["eos", "eot"] {
            eog.extend(gguf.int::<u32>(&format!("tokenizer.ggml.{key}_token_id"))?);
        }
        let bos = gguf.int::<u32>("tokenizer.ggml.bos_token_id")?.filter(|id| (*id as usize) < tokens.len());
        let adds_bos = gguf.get("tokenizer.ggml.add_bos_token") == Some(&Value::Bool(true));
        let pieces = tokens.iter().zip(&types).map(|(text, kind)| bytes_of(text, *kind)).collect();
        Ok(Self { template, message, pieces, control, bos, adds_bos, eog })
    }

    /// Size of the vocabulary.
    pub(crate) fn n_vocab(&self) -> usize {
        self.pieces.len()
    }

    /// Ids of text that a template printed: special tokens are recognised.
    pub(crate) fn encode_template(&self, text: &str) -> Result<Vec<u32>> {
        encode(&self.template, text)
    }

    /// Ids of a message's text: nothing in it is special.
    pub(crate) fn encode_message(&self, text: &str) -> Result<Vec<u32>> {
        encode(&self.message, text)
    }

    /// The bytes that an id stands for (none for an id outside the vocabulary).
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).map_or(&[], |p| p)
    }

    /// Text of ids, special tokens included; bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.piece(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Text of the begin-of-sequence token, and whether prompts begin with it even if the template does not say so.
    pub(crate) fn bos(&self) -> (Option<String>, bool) {
        (self.bos.map(|id| self.decode(&[id])), self.adds_bos)
    }

    /// Text of the end-of-sequence token, for templates that print it.
    pub(crate) fn eos(&self) -> Option<String> {
        self.eog.last().map(|id| self.decode(&[*id]))
    }

    /// Tokens that end a turn, whatever the template.
    pub(crate) fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// The id of a control token, if the vocabulary has it.
    pub(crate) fn control(&self, text: &str) -> Option<u32> {
        self.control.get(text).copied()
    }

    /// Whether an id is a control token.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.control.values().any(|c| *c == id)
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode_fast(text, false);
    encoding
        .map(|e| e.get_ids().to_vec())
        .map_err(|e| Error::new(ErrorKind::Request, format!("a text can't be tokenized: {e}")))
}

fn bpe(gguf: &Gguf, tokens: &[String], merges: &[String]) -> Result<tokenizers::Tokenizer> {
    let pre = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
    let Some((_, pattern, ignore_merges)) = PRE_TOKENIZERS.iter().find(|(names, ..)| names.contains(&pre))
    else {
        let known: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|(names, ..)| names.iter().copied()).collect();
        let found = format!("its pre-tokenizer is `{pre}`; those served are {}", known.join(", "));
        return Err(gguf.error(found));
    };
    let split_merge = |merge: &String| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    let merges: Option<Vec<_>> = merges.iter().map(split_merge).collect();
    let merges = merges.ok_or_else(|| gguf.error("a merge of its tokenizer is not two words"))?;
    let vocab = tokens.iter().enumerate().map(|(id, text)| (text.clone(), id as u32));
    let vocab: ahash::AHashMap<String, u32> = vocab.collect();
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(*ignore_merges).build();
    let mut tokenizer = tokenizers::Tokenizer::new(model.map_err(|e| unusable(gguf, e))?);
    let pattern = SplitPattern::Regex((*pattern).to_owned());
    let split =
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|e| unusable(gguf, e))?;
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)),
    ])));
    Ok(tokenizer)
}

fn unusable(gguf: &Gguf, e: impl std::fmt::Display) -> Error {
    gguf.error(format!("its tokenizer can't be used: {e}"))
}

fn strings(gguf: &Gguf, key: &str) -> Result<Vec<String>> {
    let values = gguf.array(key).ok_or_else(|| gguf.error(format!("`{key}` is missing")))?;
    let text = |v: &Value| match v {
        Value::Str(text) => Ok(text.clone()),
        other => Err(gguf.error(format!("`{key}` holds {other:?}, a text was expected"))),
    };
    values.iter().map(text).collect()
}

/// The bytes of a token: GPT-2's printable stand-ins turned back, control and user-defined tokens as they are.
fn bytes_of(text: &str, kind: u32) -> Box<[u8]> {
    if matches!(kind, 3 | 4) {
        return text.as_bytes().into();
    }
    let bytes: Option<Vec<u8>> = text.chars().map(stand_in_to_byte).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec()).into()
}

/// GPT-2's byte table backwards: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on.
fn stand_in_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(code) {
        Ok(byte) => printable(&byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|b| !printable(b)).nth(code.checked_sub(256)? as usize),
    }
}
