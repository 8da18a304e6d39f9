//! BPE: a text is cut by its family's patterns, each piece is merged by rank. Tokens spell bytes by GPT-2's
//! printable substitutes, or, as Gemma 4's, characters, with `▁` for a space and a token for each byte of
//! others.

use super::spm::SPACE;
use super::vocabulary::{TokenKind, Vocabulary, texts};
use crate::model::gguf::Gguf;
use crate::{Error, ErrorKind, Result};
use ahash::{AHashMap, AHashSet};
use std::fmt::Display;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// Pre-tokenizer of some families: cuts a text before merging.
pub(super) struct PreTokenizer {
    /// Its names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Patterns, one after the other: each cuts the pieces that those before it left.
    splits: &'static [&'static str],
    /// True if a piece that is a token is taken whole, before merging.
    ignores_merges: bool,
    /// True if prompts begin with the begin-of-sequence token where the file does not say.
    pub(super) adds_bos: bool,
}

impl PreTokenizer {
    /// True if what follows a text changes no token of it but in the last pieces, so that each beginning of an encoded
    /// text is encoded so, too. Words that are cut together are not.
    fn keeps_beginnings(&self) -> bool {
        !self.splits.contains(&EXAONE_MOE)
    }
}

/// Gemma 4's: lines are merged whole.
pub(super) const LINES: PreTokenizer =
    PreTokenizer { names: &["gemma4"], splits: &[r"[^\n]+|\n+"], ignores_merges: false, adds_bos: true };

/// How tokens spell texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Bytes, by GPT-2's printable substitutes.
    Bytes,
    /// Characters; a space is `▁`, and what no token spells becomes its bytes' tokens.
    Characters,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
// These two, and Kimi's, as their makers publish them; llama.cpp's own patterns tell upper from lower case in
// ASCII only.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rows of llama.cpp's `src/llama-vocab.cpp` for the families served and those that cut as they do.
const PRE_TOKENIZERS: [PreTokenizer; 20] = [
    PreTokenizer {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "a.x-4.0", "mellum",
        ],
        splits: &[GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        splits: &[r"\p{N}", GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        splits: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
    },
    PreTokenizer { names: &["glm4", "glm5"], splits: &[LLAMA3], ignores_merges: true, adds_bos: false },
    PreTokenizer {
        names: &["smaug-bpe", "dbrx", "chatglm-bpe"],
        splits: &[LLAMA3],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "kormo",
            "grok-2",
        ],
        splits: &[QWEN2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer { names: &["qwen35"], splits: &[QWEN35], ignores_merges: false, adds_bos: false },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-\x{D7FF}]+",
            r"\p{N}+",
        ],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        splits: &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        splits: &[GPT4O],
        ignores_merges: true,
        adds_bos: false,
    },
    PreTokenizer { names: &["tekken"], splits: &[TEKKEN], ignores_merges: true, adds_bos: true },
    PreTokenizer {
        names: &["minicpm5"],
        splits: &[r"\p{N}{1,3}", MINICPM5],
        ignores_merges: true,
        adds_bos: false,
    },
    PreTokenizer { names: &["seed-coder"], splits: &[SEED], ignores_merges: false, adds_bos: false },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        splits: &[BAILING],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["laguna"],
        splits: &[r"[^\n]+|\n+", QWEN2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer { names: &["exaone-moe"], splits: &[EXAONE_MOE], ignores_merges: false, adds_bos: false },
    PreTokenizer {
        names: &["falcon"],
        splits: &[
            r"[\p{P}\$\+<=>\^~\|`]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"[0-9][0-9][0-9]",
        ],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer { names: &["kimi-k2"], splits: &[KIMI], ignores_merges: false, adds_bos: false },
];

impl PreTokenizer {
    /// The one with a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        PRE_TOKENIZERS.iter().find(|it| it.names.contains(&name))
    }

    /// The one that a file names.
    ///
    /// # Errors
    /// None of this name is served.
    pub(super) fn of(gguf: &Gguf) -> Result<&'static Self> {
        let name = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
        Self::named(name).ok_or_else(|| {
            let known: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|p| p.names.iter().copied()).collect();
            gguf.error(format!("its pre-tokenizer is `{name}`; expected one of {}", known.join(", ")))
        })
    }
}

/// An encoder of text without any special token: the vocabulary that it merges in holds none.
pub(super) struct Bpe {
    tokenizer: tokenizers::Tokenizer,
    /// True if each beginning of an encoded text is encoded as it was in it.
    pub(super) keeps_beginnings: bool,
    pub(super) alphabet: Alphabet,
}

impl Bpe {
    /// An encoder for a vocabulary.
    ///
    /// # Errors
    /// Merges are missing, or are not two tokens that make a third.
    pub(super) fn new(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        pre: &PreTokenizer,
        alphabet: Alphabet,
    ) -> Result<Self> {
        let unusable = |e: &dyn Display| gguf.error(format!("its tokenizer can't be used: {e}"));
        let falls_back = alphabet == Alphabet::Characters;
        let normal = |kind| kind == TokenKind::Normal || falls_back && matches!(kind, TokenKind::Byte(_));
        let special: AHashSet<&str> = vocabulary.of(|kind| !normal(kind)).map(|(text, _)| text).collect();
        let vocab: AHashMap<_, _> = vocabulary.of(normal).map(|(text, id)| (text.to_owned(), id)).collect();
        let mut merges = Vec::new();
        for merge in texts(gguf, "tokenizer.ggml.merges")?.iter() {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(unusable(&format!("the merge {merge:?} is not two words")));
            };
            let made = format!("{left}{right}");
            // What makes a special token, or is made of one, never happens.
            if [left, right, &made].iter().any(|text| special.contains(text)) {
                continue;
            }
            if !vocab.contains_key(&made) {
                return Err(unusable(&format!("the merge {merge:?} makes {made:?}, which is not a token")));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        let model = BPE::builder().vocab_and_merges(vocab, merges);
        let model = model
            .ignore_merges(pre.ignores_merges)
            .byte_fallback(falls_back)
            .build()
            .map_err(|e| unusable(&e))?;
        let mut steps = Vec::new();
        for pattern in pre.splits {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(PreTokenizerWrapper::Split(split.map_err(|e| unusable(&e))?));
        }
        if alphabet == Alphabet::Bytes {
            steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        }
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        Ok(Self { tokenizer, keeps_beginnings: pre.keeps_beginnings(), alphabet })
    }

    /// What a token writes for a space.
    pub(super) fn space(&self) -> &'static str {
        match self.alphabet {
            Alphabet::Bytes => "Ġ",
            Alphabet::Characters => SPACE,
        }
    }

    /// A token as the vocabulary writes it.
    pub(super) fn text(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The token that the vocabulary writes so.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// Adds the ids of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding =
            encoding.map_err(|e| Error::new(ErrorKind::Request, format!("can't tokenize a text: {e}")))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// The bytes that a token's text spells: GPT-2's printable substitutes reversed.
pub(super) fn bytes_of(text: &str) -> Box<[u8]> {
    let bytes: Option<Vec<u8>> = text.chars().map(stand_in_to_byte).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec()).into()
}

/// GPT-2's byte table reversed: printable Latin-1 characters are themselves, the other 68 bytes are U+0100
/// and up.
fn stand_in_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(code) {
        Ok(byte) => printable(&byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|b| !printable(b)).nth(code.checked_sub(256)? as usize),
    }
}
