//! Answers of text completions, whole or piece by piece.

use super::super::answer::CompletedReply;
use super::super::ask::ReplyPiece;
use super::super::error::Refusal;
use super::super::stream::{EventEncoder, Frame};
use super::words::{explained, finish_reason};
use greenroom_engine::TokenLogprob;
use serde_json::{Map, Value, json};

/// The replies to all prompts, in order: each prompt has `n` of them.
pub(super) struct TextCompletion {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) n: usize,
    /// The text of each prompt, if its replies begin with it; otherwise none.
    pub(super) echoed: Vec<String>,
    /// Number of alternatives returned with each token.
    pub(super) logprobs: Option<usize>,
    pub(super) explains: bool,
    pub(super) tells_ids: bool,
    pub(super) include_usage: bool,
    pub(super) answers: Vec<CompletedReply>,
    /// Characters of the current reply whose tokens were returned.
    pub(super) offset: usize,
}

impl TextCompletion {
    /// The answer as a whole.
    pub(super) fn whole(&self) -> Value {
        let choices = self.answers.iter().enumerate().map(|(index, answer)| {
            let completion = &answer.completion;
            let mut choice = self.choice(index, &format!("{}{}", self.echo(index), completion.text));
            self.conclude(&mut choice, answer);
            choice["logprobs"] = self.logprobs(&completion.logprobs, &mut 0);
            choice
        });
        let mut whole = self.part(choices.collect());
        self.account(&mut whole);
        whole["usage"] = self.usage();
        whole
    }

    /// The text that the reply of a number begins with.
    fn echo(&self, index: usize) -> &str {
        self.echoed.get(index / self.n).map_or("", String::as_str)
    }

    fn part(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, text: &str) -> Value {
        json!({ "index": index, "text": text, "logprobs": null, "finish_reason": null })
    }

    /// Extra fields of a choice's last part.
    fn conclude(&self, choice: &mut Value, answer: &CompletedReply) {
        choice["finish_reason"] = json!(finish_reason(&answer.completion));
        if self.tells_ids {
            choice["token_ids"] = json!(answer.completion.ids);
        }
        if self.explains {
            choice["greenroom"] = explained(answer);
        }
    }

    /// Extra fields of the last part: how the first prompt matched the memory.
    fn account(&self, part: &mut Value) {
        if let Some(answer) = self.answers.first().filter(|_| self.explains) {
            part["greenroom"] = explained(answer);
        }
    }

    fn logprobs(&self, tokens: &[TokenLogprob], offset: &mut usize) -> Value {
        self.logprobs.map_or(Value::Null, |n| logprobs(tokens, n, offset))
    }

    /// The sum over all prompts.
    fn usage(&self) -> Value {
        let first = || self.answers.iter().step_by(self.n);
        let prompt: usize = first().map(CompletedReply::prompt_tokens).sum();
        let cached: usize = first().map(|answer| answer.completion.usage.reused).sum();
        let said: usize = self.answers.iter().map(CompletedReply::n_tokens).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": said,
            "total_tokens": prompt + said,
            "prompt_tokens_details": { "cached_tokens": cached, "audio_tokens": 0 },
        })
    }
}

/// Tokens with their log-probabilities, in the form of text completions. The first token begins at the
/// character `offset`, which is then where the next one begins.
fn logprobs(tokens: &[TokenLogprob], n: usize, offset: &mut usize) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let offset_of = |token: &TokenLogprob| {
        let at = *offset;
        // A character counts where its first byte is.
        *offset += token.bytes.iter().filter(|byte| (**byte & 0xC0) != 0x80).count();
        at
    };
    let offsets: Vec<usize> = tokens.iter().map(offset_of).collect();
    let top = tokens.iter().map(|token| {
        let top = token.top.iter().map(|top| (&top.bytes, top.logprob));
        let mut all = Map::new();
        for (bytes, logprob) in top.chain([(&token.bytes, token.logprob)]) {
            // Pieces of characters may have the same text: the most likely comes first.
            all.entry(text(bytes)).or_insert_with(|| json!(logprob));
        }
        Value::Object(all)
    });
    json!({
        "tokens": tokens.iter().map(|token| text(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": if n == 0 { Value::Null } else { top.collect() },
        "text_offset": offsets,
    })
}

impl EventEncoder for TextCompletion {
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        // Replies come one after another, whatever prompt they belong to.
        let index = self.answers.len();
        let choice = match piece {
            ReplyPiece::Begun => {
                self.offset = 0;
                if self.echoed.is_empty() {
                    return Vec::new();
                }
                self.choice(index, self.echo(index))
            }
            ReplyPiece::Thought(text) | ReplyPiece::Text(text) => self.choice(index, &text),
            ReplyPiece::Logprobs(tokens) => {
                let mut offset = self.offset;
                let mut choice = self.choice(index, "");
                choice["logprobs"] = self.logprobs(&tokens, &mut offset);
                self.offset = offset;
                choice
            }
            // The prompt contains no tools.
            ReplyPiece::Called(_) | ReplyPiece::Arguments(_) => return Vec::new(),
            ReplyPiece::Ended(answer) => {
                let mut choice = self.choice(index, "");
                self.conclude(&mut choice, &answer);
                self.answers.push(*answer);
                choice
            }
        };
        vec![Frame::data(&self.part(vec![choice]))]
    }

    fn end(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut chunk = self.part(Vec::new());
        self.account(&mut chunk);
        if self.include_usage {
            chunk["usage"] = self.usage();
        }
        if self.include_usage || self.explains {
            frames.push(Frame::data(&chunk));
        }
        frames.push(Frame::done());
        frames
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![Frame::data(&refusal.openai()), Frame::done()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_engine::TopLogprob;

    #[test]
    fn offsets_count_characters_and_the_token_itself_is_among_the_likely_ones() {
        let token = |text: &[u8], logprob: f32, top: &[(&[u8], f32)]| {
            let top = top.iter().map(|(bytes, logprob)| TopLogprob {
                id: 0,
                bytes: bytes.to_vec(),
                logprob: *logprob,
            });
            TokenLogprob { id: 0, bytes: text.to_vec(), logprob, top: top.collect() }
        };
        let (first, second) = "é".as_bytes().split_at(1);
        let tokens =
            [token(b"ab", -1.0, &[(&b"c"[..], -0.5)]), token(first, -2.0, &[]), token(second, -0.25, &[])];
        let mut offset = 3;
        let chunk = logprobs(&tokens, 1, &mut offset);
        assert_eq!(chunk["text_offset"], json!([3, 5, 6]));
        assert_eq!(offset, 6);
        assert_eq!(chunk["tokens"][0], "ab");
        assert_eq!(chunk["token_logprobs"], json!([-1.0, -2.0, -0.25]));
        assert_eq!(chunk["top_logprobs"][0], json!({ "c": -0.5, "ab": -1.0 }));
        assert_eq!(logprobs(&tokens, 0, &mut offset)["top_logprobs"], Value::Null);
    }
}
