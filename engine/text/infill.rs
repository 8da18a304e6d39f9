//! The prompt of code around a gap, in the special tokens that models are trained on for it (Bavarian et al. 2022,
//! "Efficient training of language models to fill in the middle"); the order is that of llama.cpp's `/infill`.

use super::tokenizer::{After, Tokenizer};
use crate::Result;

/// How families write what precedes a prefix, a suffix and the middle: Qwen and others, StarCoder, CodeLlama, Codestral's
/// and DeepSeek's.
const MARKS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<PRE>", "<SUF>", "<MID>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];
/// What precedes the name of a repository, and of a file.
const REPOSITORY: [&str; 2] = ["<|repo_name|>", "<|file_sep|>"];

/// Code around a gap.
pub(crate) struct Gap<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) suffix: &'a str,
    /// What the gap begins with.
    pub(crate) begun: &'a str,
    /// Names and texts of other files.
    pub(crate) others: &'a [(&'a str, &'a str)],
}

impl Gap<'_> {
    /// The ids of its prompt; `None`: the vocabulary has no tokens for one.
    ///
    /// # Errors
    /// A text can't be tokenized.
    pub(crate) fn ids(&self, tokenizer: &Tokenizer) -> Result<Option<Vec<u32>>> {
        let special = |text: &str| {
            let ids = tokenizer.encode_template(text, After::Special).ok()?;
            ids.first().copied().filter(|id| ids.len() == 1 && tokenizer.is_special(*id))
        };
        let all = |marks: &[&str]| marks.iter().map(|mark| special(mark)).collect::<Option<Vec<u32>>>();
        let Some(marks) = MARKS.iter().find_map(|marks| all(marks)) else { return Ok(None) };
        let text = |text: &str| tokenizer.encode_message(text, After::Text);
        let mut ids = Vec::new();
        match all(&REPOSITORY).as_deref() {
            Some([repository, file]) if !self.others.is_empty() => {
                ids.push(*repository);
                ids.extend(text("project\n")?);
                for (name, content) in self.others {
                    ids.push(*file);
                    ids.extend(text(&format!("{name}\n{content}"))?);
                }
                ids.push(*file);
                ids.extend(text("file\n")?);
            }
            _ => {
                for (_, content) in self.others {
                    ids.extend(text(&format!("{content}\n\n"))?);
                }
            }
        }
        for (mark, content) in marks.iter().zip([self.prefix, self.suffix, self.begun]) {
            ids.push(*mark);
            ids.extend(text(content)?);
        }
        Ok(Some(tokenizer.begin(&ids)))
    }
}
