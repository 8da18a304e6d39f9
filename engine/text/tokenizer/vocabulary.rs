//! Tokens of a GGUF, checked: texts, kinds, and the ids with special roles.

use crate::Result;
use crate::model::gguf::{Gguf, Texts, Value};

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A piece of text, found by merging.
    Normal,
    /// Used for what no other token spells.
    Unknown,
    /// Structure (`<|im_end|>`): only template text can name it.
    Control,
    /// User-defined and structure by its looks (`<think>`): only template text can name it.
    Markup,
    /// User-defined and plain text (a run of newlines): taken whole wherever it occurs.
    Plain,
    /// A byte of a character that no token spells.
    Byte(u8),
}

/// Texts that end a turn in one family or another; llama.cpp keeps the same list. They are control tokens,
/// whatever type the file gives them. `</s>` is not here: it is struck-through text in gemma, and elsewhere
/// the file names it.
const EOG_TEXTS: [&str; 18] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|EOT|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// `<|end|>` ends a message but no turn where the vocabulary has one of these pairs (gpt-oss, solar).
const MESSAGE_END: &str = "<|end|>";
const TURN_ENDS: [[&str; 2]; 2] = [["<|return|>", "<|call|>"], ["<|calls|>", "<|flush|>"]];

/// Elements of HTML that are tokens in gemma. `s` is not here: `<s>` and `</s>` begin and end a text
/// elsewhere.
const HTML: [&str; 24] = [
    "table",
    "caption",
    "thead",
    "tbody",
    "tfoot",
    "tr",
    "th",
    "td",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "blockquote",
    "strong",
    "em",
    "b",
    "i",
    "u",
    "sub",
    "sup",
    "code",
    "pre",
];

/// A vocabulary, checked.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// Tokens that end a turn.
    pub(super) eog: Vec<u32>,
    /// A token that ends a message, but not the turn.
    pub(super) goes_on: Option<u32>,
}

impl Vocabulary {
    /// Reads a vocabulary; `defaults` are the ids of unknown, bos and eos where the file names none.
    ///
    /// # Errors
    /// No tokens, a number of types other than that of tokens, a type or an id that is not possible.
    pub(super) fn read(gguf: &Gguf, defaults: [Option<u32>; 3]) -> Result<Self> {
        let tokens: Vec<String> = texts(gguf, "tokenizer.ggml.tokens")?.iter().map(str::to_owned).collect();
        if tokens.is_empty() {
            return Err(gguf.error("`tokenizer.ggml.tokens` is empty; expected a vocabulary"));
        }
        let mut kinds = kinds(gguf, &tokens)?;
        let declared = |key: &str| -> Result<Option<u32>> {
            let key = format!("tokenizer.ggml.{key}_token_id");
            let id = gguf.int::<u32>(&key)?;
            match id.filter(|id| *id as usize >= tokens.len()) {
                Some(id) => {
                    Err(gguf.error(format!("`{key}` is {id}, but there are {} tokens", tokens.len())))
                }
                None => Ok(id),
            }
        };
        let [unknown, bos, eos] = defaults.map(|id| {
            let special = |id: &u32| {
                matches!(
                    kinds.get(*id as usize),
                    Some(TokenKind::Unknown | TokenKind::Control | TokenKind::Markup)
                )
            };
            id.filter(special)
        });
        let (bos, eos) = (declared("bos")?.or(bos), declared("eos")?.or(eos));
        let mut eog: Vec<u32> = eos.into_iter().chain(declared("eot")?).chain(declared("eom")?).collect();
        for id in eog.iter().chain(&bos) {
            let kind = &mut kinds[*id as usize];
            if *kind != TokenKind::Normal || is_markup(&tokens[*id as usize]) {
                *kind = TokenKind::Control;
            }
        }
        let find = |text: &str| tokens.iter().position(|t| t == text).map(|id| id as u32);
        eog.extend(EOG_TEXTS.iter().filter_map(|text| find(text)));
        let turns_end = TURN_ENDS.iter().any(|pair| pair.iter().all(|text| find(text).is_some()));
        let goes_on = find(MESSAGE_END).filter(|_| turns_end);
        eog.retain(|id| Some(*id) != goes_on);
        let unknown = declared("unknown")?.or(unknown);
        Ok(Self { tokens, kinds, bos, eos, unknown, eog, goes_on })
    }

    /// Tokens of a kind with their ids; those without text, which nothing can spell, are left out.
    pub(super) fn of(&self, wanted: impl Fn(TokenKind) -> bool) -> impl Iterator<Item = (&str, u32)> {
        let all = self.tokens.iter().zip(&self.kinds).zip(0u32..);
        all.filter(move |((text, kind), _)| wanted(**kind) && !text.is_empty())
            .map(|((text, _), id)| (text.as_str(), id))
    }
}

/// The texts of an array.
pub(super) fn texts<'a>(gguf: &'a Gguf, key: &str) -> Result<&'a Texts> {
    gguf.texts(key).ok_or_else(|| match gguf.get(key) {
        None => gguf.error(format!("`{key}` is missing")),
        Some(Value::Array(values)) if !values.is_empty() => {
            gguf.error(format!("`{key}` contains {:?}; expected a string", values[0]))
        }
        Some(other) => gguf.error(format!("`{key}` is {other:?}; expected an array of strings")),
    })
}

fn kinds(gguf: &Gguf, tokens: &[String]) -> Result<Vec<TokenKind>> {
    let key = "tokenizer.ggml.token_type";
    let normal = vec![Value::Int(1); tokens.len()];
    let types = gguf.array(key).unwrap_or(&normal);
    if types.len() != tokens.len() {
        return Err(gguf.error(format!("`{key}` has {} types for {} tokens", types.len(), tokens.len())));
    }
    let kind = |(text, kind): (&String, &Value)| match kind {
        _ if EOG_TEXTS.contains(&text.as_str()) => Ok(TokenKind::Control),
        Value::Int(0 | 1 | 5) => Ok(TokenKind::Normal),
        Value::Int(2) => Ok(TokenKind::Unknown),
        Value::Int(3) => Ok(TokenKind::Control),
        Value::Int(4) => Ok(if is_markup(text) { TokenKind::Markup } else { TokenKind::Plain }),
        Value::Int(6) => byte(text).map(TokenKind::Byte).ok_or_else(|| {
            gguf.error(format!("`{key}` marks {text:?} as a byte; expected a string such as <0x0A>"))
        }),
        other => Err(gguf.error(format!("`{key}` contains {other:?}; expected a type from 0 to 6"))),
    };
    tokens.iter().zip(types).map(kind).collect()
}

/// `<0x0A>` to 10.
fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

/// Tells whether a user-defined token could be structure: it holds ASCII punctuation, as all delimiters do,
/// and is not an element of HTML. What is left is plain text: runs of spaces and newlines (gemma), single
/// letters (deepseek).
fn is_markup(text: &str) -> bool {
    let tag = text.strip_prefix('<').and_then(|t| t.strip_suffix('>'));
    let html = tag.is_some_and(|tag| HTML.contains(&tag.strip_prefix('/').unwrap_or(tag)));
    !html && text.len() > 1 && text.contains(|c: char| c.is_ascii_punctuation())
}
