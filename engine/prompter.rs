//! Tokens and bytes of a model, counted by its shape, tokenizer and chat template, without the weights.

use crate::device::DEFAULT_NUMERICS;
use crate::kv::table::BlockHash;
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::model::suggested::suggested;
use crate::store::{Found, Store};
use crate::text::chat::{Chat, Templates, reply_ids};
use crate::text::infill::Gap;
use crate::text::prefix::{flatten, n_tokens};
use crate::text::raw::segments;
use crate::text::thoughts::ThoughtForm;
use crate::text::tokenizer::{After, Tokenizer};
use crate::turns::reply::{cut, cut_text};
use crate::{
    CallSoFar, Conversation, KvChoice, KvCost, ModelInfo, ModelSource, Prompt, Reasoning, Result, StopReason,
    Tools,
};
use std::sync::Arc;
use std::time::SystemTime;

/// A model's hash: the one that a folder knows for files with the same stamp, else that of their bytes, which the
/// folder then keeps.
fn identity(gguf: &Gguf, store: Option<&Store>) -> String {
    match gguf.stamp(SystemTime::now()).zip(store) {
        Some((stamp, store)) => known_hash(store, &stamp, || gguf.hash()),
        None => gguf.hash(),
    }
}

fn known_hash(store: &Store, stamp: &str, hash: impl FnOnce() -> String) -> String {
    let root = BlockHash::root(&format!("file\n{stamp}"));
    if let Found::Whole(known) = store.read_check(root) {
        return known;
    }
    let hash = hash();
    if let Err(e) = store.write_check(root, &hash) {
        tracing::debug!("the hash of the model file is not kept: {e}");
    }
    hash
}

/// How a reply that another engine sampled ends.
#[derive(Clone, Copy, Debug)]
pub struct StopConditions<'a> {
    /// The reply ends before the first token that overlaps one of these, as by
    /// [`Request::stop`](crate::Request::stop). Since no token of it can be drawn again, a string that would
    /// leave nothing of the reply is passed over.
    pub stop: &'a [String],
    /// Text after the reasoning to ignore, e.g. the speaker's name: where nothing but this would be left, a
    /// string is passed over, too.
    pub head: &'a str,
    /// As [`Request::whole_sentences`](crate::Request::whole_sentences).
    pub whole_sentences: bool,
    /// True if it reached its limit.
    pub is_full: bool,
}

/// Shape, tokenizer and chat template of a model without its weights.
///
/// # Examples
/// ```
/// use greenroom_engine::*;
///
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// let encoder = PromptEncoder::open(&ModelSource::Bundled("tiny", model))?;
/// let conversation = Conversation { next: "Rolf: Who are you?".into(), ..Conversation::default() };
/// let ids = encoder.prompt_ids(&conversation.clone().into())?;
/// assert_eq!(ids.len(), encoder.prompt_tokens(&conversation)?);
/// assert_eq!(encoder.decode(&ids), encoder.render(&conversation)?);
/// # Ok::<(), Error>(())
/// ```
pub struct PromptEncoder {
    pub(crate) info: ModelInfo,
    pub(crate) spec: DecoderSpec,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat: Arc<Chat>,
}

impl PromptEncoder {
    /// Reads a model's metadata and tokenizer.
    ///
    /// # Errors
    /// The model can't be served.
    pub fn open(model: &ModelSource) -> Result<Self> {
        Self::read(&Arc::new(Gguf::open(model)?))
    }

    /// Reads the metadata and tokenizer of an opened file.
    ///
    /// # Errors
    /// The model can't be served.
    pub(crate) fn read(gguf: &Arc<Gguf>) -> Result<Self> {
        Self::read_beside(gguf, None, |_| Ok(())).map(|(encoder, ())| encoder)
    }

    /// The same on a thread of its own, while this one does something else with the model of this identity. A file
    /// whose hash a folder of memories knows is not hashed.
    ///
    /// # Errors
    /// The model can't be served; those of what is done beside.
    pub(crate) fn read_beside<T>(
        gguf: &Arc<Gguf>,
        store: Option<&Store>,
        beside: impl FnOnce(&str) -> Result<T>,
    ) -> Result<(Self, T)> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        gguf.knows_types()?;
        Tokenizer::check_kind(gguf)?;
        let (text, identity, other) = std::thread::scope(|scope| {
            let text = scope.spawn(|| {
                let tokenizer = Arc::new(Tokenizer::from_gguf(gguf)?);
                let chat = Arc::new(Chat::new(Templates::of(gguf), &tokenizer)?);
                Ok((tokenizer, chat))
            });
            let identity = identity(gguf, store);
            let other = beside(&identity);
            (text.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), identity, other)
        });
        let ((tokenizer, chat), other) = (text?, other?);
        let first = spec.layers.iter().find_map(|layer| layer.attention);
        let first = first.ok_or_else(|| gguf.error("none of its layers has attention"))?;
        let info = ModelInfo {
            name: gguf.text("general.name").unwrap_or(&gguf.name).to_owned(),
            family: spec.family.name.to_owned(),
            identity,
            numerics: DEFAULT_NUMERICS.to_owned(),
            n_layers: spec.layers.len(),
            d_model: spec.d_model,
            n_heads: first.n_heads,
            n_kv_heads: first.n_kv_heads,
            head_dim: first.k_dim,
            n_vocab: tokenizer.n_vocab(),
            context_length: spec.context_length,
            n_params: gguf.tensors().fold(0, |n: u64, (_, t)| n.saturating_add(t.n_elements())),
            file_bytes: gguf.n_bytes(),
            template_audit: chat.audit().to_vec(),
            sampling: suggested(gguf),
        };
        Ok((Self { info, spec, tokenizer, chat }, other))
    }

    /// The model's name, shape and identity.
    pub fn model(&self) -> &ModelInfo {
        &self.info
    }

    /// Computes the memory that one agent's cache takes.
    ///
    /// # Errors
    /// The formats are for another model.
    pub fn kv_cost(&self, kv: &KvChoice) -> Result<KvCost> {
        Ok(self.spec.kv_layout(kv)?.cost())
    }

    /// The formats by their name in transcripts, as [`Engine::kv`](crate::Engine::kv).
    ///
    /// # Errors
    /// The formats are for another model.
    pub fn kv_name(&self, kv: &KvChoice) -> Result<String> {
        Ok(self.spec.kv_name(&self.spec.kv_layout(kv)?))
    }

    /// Tokens of a text as message text.
    pub fn count(&self, text: &str) -> usize {
        self.tokenizer.encode_message(text, After::Special).map_or(0, |ids| ids.len())
    }

    /// The whole rendered prompt of a conversation as text, special tokens spelled out.
    ///
    /// # Errors
    /// A text can't be tokenized.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let segments = self.chat.prompt(conversation, &self.tokenizer)?;
        Ok(segments.iter().map(|segment| &*segment.text).collect())
    }

    /// Reads the calls of a partial reply ([`Event::Call`](crate::Event::Call)): those whose tool is named.
    /// All but the last are complete.
    pub fn calls_so_far<'a>(&self, tools: &'a Tools, text: &str) -> Vec<CallSoFar<'a>> {
        self.chat.calls().so_far(tools, text, &self.tokenizer)
    }

    /// The ids of a prompt as an engine reads them, templates included: how many there are is what it counts
    /// as its prompt's tokens.
    ///
    /// # Errors
    /// It is empty, a text can't be tokenized, or an id is not in the vocabulary.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        Ok(flatten(&segments(prompt, &[], &self.chat, &self.tokenizer)?))
    }

    /// The ids of a text as the reply to a prompt.
    ///
    /// # Errors
    /// As [`PromptEncoder::prompt_ids`].
    pub fn reply_ids(&self, prompt: &Prompt, text: &str) -> Result<Vec<u32>> {
        let read = segments(prompt, &[], &self.chat, &self.tokenizer)?;
        reply_ids(&read, &self.chat.replies_to(prompt).lead, text, &self.tokenizer)
    }

    /// Ids of the prompt of code around a gap, which the reply fills: what is before it and after it, what it begins
    /// with, and the names and texts of other files. `None`: the vocabulary has no tokens for that.
    ///
    /// # Errors
    /// The tokenizer can't encode a text.
    pub fn infill(
        &self,
        (prefix, suffix): (&str, &str),
        begun: &str,
        others: &[(&str, &str)],
    ) -> Result<Option<Vec<u32>>> {
        Gap { prefix, suffix, begun, others }.ids(&self.tokenizer)
    }

    /// True if the model's template has marks for thoughts.
    pub fn thinks(&self) -> bool {
        self.chat.replies(Reasoning::None).thoughts.thinks()
    }

    /// How thoughts are marked in the replies to a prompt of these ids.
    pub fn thoughts(&self, prompt: &[u32]) -> ThoughtForm {
        let end = self.decode(&prompt[prompt.len().saturating_sub(16)..]);
        self.chat.replies(Reasoning::None).thoughts.clone().after_prompt(&end)
    }

    /// A reply to a prompt, sampled by another engine with this model's vocabulary, as it would have ended
    /// here; without the token that ends a turn. Gives its ids, its text and why it ends.
    pub fn cut(
        &self,
        prompt: &[u32],
        ids: &[u32],
        ends: StopConditions<'_>,
    ) -> (Vec<u32>, String, StopReason) {
        let n = ids.iter().position(|id| self.tokenizer.eog().contains(id));
        let said = ids[..n.unwrap_or(ids.len())].iter().map(|id| (*id, self.tokenizer.piece(*id)));
        cut(said, self.thoughts(prompt), StopConditions { is_full: ends.is_full && n.is_none(), ..ends })
    }

    /// Text of ids, special tokens included; bytes that are not UTF-8 become U+FFFD, an unknown id nothing.
    /// Of [`PromptEncoder::prompt_ids`] it is the rendered prompt.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }

    /// Tokens of the whole rendered prompt of a conversation, templates included.
    ///
    /// # Errors
    /// A text can't be tokenized.
    pub fn prompt_tokens(&self, conversation: &Conversation) -> Result<usize> {
        Ok(n_tokens(&self.chat.prompt(conversation, &self.tokenizer)?))
    }
}

/// A reply that is known as text alone, cut as [`PromptEncoder::cut`] cuts ids.
pub fn cut_reply(text: &str, ends: StopConditions<'_>) -> (String, StopReason) {
    cut_text(text, ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::RandomModel;
    use crate::store::StoreLocation;
    use std::time::Duration;

    /// A file is hashed once, as long as nobody writes to it: also if size and time of modification stay.
    #[test]
    #[cfg(unix)]
    fn a_file_that_is_as_it_was_is_not_hashed_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.gguf");
        let open = || Gguf::open(&ModelSource::Path(path.clone())).expect("a model");
        let write = |seed| std::fs::write(&path, RandomModel::tiny(seed).bytes()).expect("a file");
        write(1);
        let now = SystemTime::now();
        let later = now + Duration::from_secs(10);
        assert_eq!(open().stamp(now), None, "a file that was written just now may be written again");
        let (first, times) = (open(), std::fs::metadata(&path).expect("a file").modified().expect("a time"));
        let place = StoreLocation::new(folder.path().join("cache"), None, None);
        let store = Store::open(&place).expect("a store");
        let stamp = first.stamp(later).expect("a stamp");
        let hash = first.hash();
        assert_eq!(known_hash(&store, &stamp, || first.hash()), hash);
        assert_eq!(known_hash(&store, &stamp, || panic!("it is known")), hash);
        std::thread::sleep(Duration::from_millis(20)); // a tick of the file system's clock
        write(2);
        std::fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|f| f.set_modified(times))
            .expect("a time");
        let second = open();
        assert_ne!(second.stamp(later), Some(stamp));
        assert_ne!(known_hash(&store, &second.stamp(later).expect("a stamp"), || second.hash()), hash);
    }
}
