//! Decides which memory a conversation continues.
//!
//! Conversations that begin with the same system text and first message are siblings. A conversation
//! continues a sibling's memory that contains exactly what it has read and said so far. If there is none, it
//! begins a new memory from the sibling with which it has most in common. So two clients never rewind each
//! other's memory, their common beginning is read once, and a client needs no session name. A scope (a key or
//! header that clients send) separates conversations with the same beginning.
//!
//! What each memory holds is written down, a line a reply, and read again when the server starts, with the
//! ids that were sampled: clients send replies back as text, and a text can be tokenized in more than one
//! way. So a conversation is read as it was said, whether or not its keys and values are still there.

use super::answer::CompletedReply;
use super::dialogue::{Dialogue, Digest, digest};
use super::journal::Journal;
use greenroom_engine::{Conversation, Date, Reasoning, ReplyContent, SessionKey, common_prefix, forkable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of known memories; the least recently used is removed first.
const MAX_MEMORIES: usize = 10_000;
/// Maximum number of memories of prompts without a chat template in one scope, unless more are active at
/// once.
const MAX_RAW: usize = 64;
/// Minimum number of common tokens, beyond what can be reused without it, for which a memory is read.
const MIN_STEM: usize = 16;

/// The memories of all conversations.
#[derive(Default)]
pub struct Sessions(Mutex<SessionsInner>);

#[derive(Default)]
struct SessionsInner {
    slots: BTreeMap<String, MemorySlot>,
    /// Memories of prompts without a chat template. They are not recorded: what they have in common is found
    /// by content.
    raw: BTreeMap<String, RawSlot>,
    journal: Journal,
    time: u64,
}

/// A memory.
#[derive(Default)]
struct MemorySlot {
    /// What it has read and said, reply by reply.
    chain: Vec<StoredReply>,
    /// Its first words, since the server started.
    title: String,
    is_busy: bool,
    /// True if it was used since the server started; it is then probably in RAM.
    is_warm: bool,
    used: u64,
}

/// A reply.
#[derive(Clone)]
struct StoredReply {
    /// Digest of everything before its end.
    digest: Digest,
    /// The sampled ids; `None`: the reply was generated elsewhere, and is read as text.
    ids: Option<Arc<[u32]>>,
    /// How much it was to be thought about, which its prompt says.
    reasoning: Reasoning,
    /// The day on which its conversation began.
    date: Option<Date>,
}

/// A line of the journal: the reply of that number in a memory.
#[derive(Serialize, Deserialize)]
struct SessionLine {
    name: String,
    reply: usize,
    digest: String,
    ids: Option<Arc<[u32]>>,
    #[serde(default)]
    reasoning: Reasoning,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date: Option<Date>,
}

/// What separates conversations with the same beginning.
#[derive(Clone, Debug)]
pub(super) struct SessionScope<'a> {
    pub(super) tenant: &'a str,
    /// Identity of the model.
    pub(super) model: &'a str,
    /// A name that the client gave; may be empty.
    pub(super) name: &'a str,
}

/// A memory in use by one request.
pub(super) struct Claim<'a> {
    sessions: &'a Sessions,
    pub(super) name: String,
    /// The memory to begin with, if this one is new.
    pub(super) parent: Option<String>,
    /// The replies of the conversation whose ids are known, from the first on.
    said: Vec<StoredReply>,
    /// The day on which the conversation began.
    date: Option<Date>,
}

/// An active memory for a prompt without a chat template.
pub(super) struct RawClaim<'a> {
    sessions: &'a Sessions,
    pub(super) own: RawPlace,
    /// The memory that is read first, and the number of its tokens: it is `own`'s parent.
    pub(super) stem: Option<(RawPlace, usize)>,
}

/// The place of such a memory.
pub(super) struct RawPlace {
    pub(super) name: String,
    /// The memory that a new one begins with; its beginning matches the prompt's.
    pub(super) parent: Option<String>,
    /// True if a memory of this name is to be forgotten before.
    pub(super) replaces: bool,
}

/// What is known about a memory of such prompts.
#[derive(Default)]
struct RawSlot {
    /// What it has read and said.
    ids: Vec<u32>,
    is_busy: bool,
    /// True if it is what several prompts begin with: it is forked, never continued.
    is_stem: bool,
    used: u64,
}

/// A slot's part in a claim.
struct FoundSlot {
    /// The free memory that contains exactly what the conversation has read and said so far.
    goes_on: Option<String>,
    /// The one with most in common with it, and the number of common replies.
    nearest: Option<(String, usize)>,
}

impl Sessions {
    /// With the journal in a folder; `None`: without a journal.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub fn open(folder: Option<&Path>) -> anyhow::Result<Self> {
        let inner = Mutex::new(SessionsInner::default());
        let lock = || inner.lock().unwrap_or_else(PoisonError::into_inner);
        let journal = Journal::open(folder, "sessions.jsonl", |line| lock().absorb(line), || lock().lines())?;
        lock().journal = journal;
        Ok(Self(inner))
    }

    /// True if the memory that a conversation continues is probably in RAM.
    pub(super) fn is_warm(&self, scope: &SessionScope<'_>, dialogue: &Dialogue) -> bool {
        let inner = self.lock();
        let FoundSlot { goes_on, nearest } = inner.find(&prefix(scope, dialogue), dialogue);
        let name = goes_on.or(nearest.map(|(name, _)| name));
        name.is_some_and(|name| inner.slots[&name].is_warm)
    }

    /// The memory for a conversation.
    pub(super) fn claim(&self, scope: &SessionScope<'_>, dialogue: &Dialogue) -> Claim<'_> {
        let mut inner = self.lock();
        let prefix = prefix(scope, dialogue);
        let FoundSlot { goes_on, nearest } = inner.find(&prefix, dialogue);
        let said = nearest.as_ref().map_or(Vec::new(), |(name, n)| inner.slots[name].chain[..*n].to_vec());
        let (name, parent) = match goes_on {
            Some(name) => (name, None),
            None => {
                let mut names = (0_usize..).map(|n| format!("{prefix}.{n}"));
                let free = names.find(|name| !inner.slots.contains_key(name));
                (free.unwrap_or_default(), nearest.map(|(name, _)| name))
            }
        };
        inner.time += 1;
        let time = inner.time;
        let slot = inner.slots.entry(name.clone()).or_default();
        (slot.is_busy, slot.used) = (true, time);
        slot.title = dialogue.title();
        inner.forget_one();
        let date = said.first().map_or(dialogue.conversation.date, |first| first.date);
        Claim { sessions: self, name, parent, said, date }
    }

    /// The memory for ids: a free one that they continue, else a new one.
    ///
    /// Only what follows a memory's last sealed block can be cut anywhere. So where prompts begin alike and
    /// then differ within a block, what they have in common gets a memory of its own, of which theirs are
    /// forks.
    pub(super) fn claim_raw(&self, scope: &SessionScope<'_>, ids: &[u32]) -> RawClaim<'_> {
        let mut inner = self.lock();
        inner.time += 1;
        let prefix = format!("raw-{}", &scope.hash()[..32]);
        let siblings = inner.raw.range(format!("{prefix}.")..format!("{prefix}/"));
        // Each with how much the prompt has in common with it, and how much of that can be taken over.
        let siblings = siblings.map(|(name, slot)| {
            let common = common_prefix(&slot.ids, ids);
            (name, slot, common, forkable(common, slot.ids.len()))
        });
        let siblings: Vec<_> = siblings.collect();
        let parent = siblings.iter().max_by_key(|(.., reused)| *reused).filter(|(.., reused)| *reused > 0);
        let most = parent.map_or(0, |(.., reused)| *reused);
        let goes_on = siblings.iter().find(|(_, slot, common, _)| {
            !slot.is_busy && !slot.is_stem && slot.ids.len() == most && *common == most && most > 0
        });
        let longest = siblings.iter().map(|(_, _, common, _)| *common).max().unwrap_or_default();
        let mut parent = parent.map(|(name, ..)| (*name).clone());
        if let Some(name) = goes_on.map(|(name, ..)| (*name).clone()) {
            inner.occupy(&name, false);
            let own = RawPlace { name, parent: None, replaces: false };
            return RawClaim { sessions: self, own, stem: None };
        }
        let has_stem = longest >= most + MIN_STEM && longest < ids.len();
        let stem = has_stem.then(|| {
            let place = inner.place(&prefix, parent.take(), true);
            parent = Some(place.name.clone());
            (place, longest)
        });
        let own = inner.place(&prefix, parent, false);
        RawClaim { sessions: self, own, stem }
    }

    /// The first words of the conversation in a memory, and its number among those that begin alike.
    pub(super) fn title(&self, name: &str) -> Option<String> {
        let inner = self.lock();
        let title = inner.slots.get(name).map(|slot| slot.title.clone()).filter(|title| !title.is_empty())?;
        match name.rsplit_once('.') {
            Some((_, number)) if number != "0" => Some(format!("{title} ({number})")),
            _ => Some(title),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Common prefix of the names of all memories whose conversations have the same beginning.
fn prefix(scope: &SessionScope<'_>, dialogue: &Dialogue) -> String {
    let root = blake3::Hash::from(dialogue.root);
    format!("{}-{}", &scope.hash()[..32], &root.to_hex()[..32])
}

impl SessionScope<'_> {
    fn hash(&self) -> String {
        blake3::Hash::from(digest(&[], &[self.tenant, self.model, self.name])).to_hex().to_string()
    }
}

impl SessionsInner {
    /// A new memory for ids: its name, which was the oldest one's if there is no room for more.
    fn place(&mut self, prefix: &str, parent: Option<String>, is_stem: bool) -> RawPlace {
        let siblings = || self.raw.range(format!("{prefix}.")..format!("{prefix}/"));
        let is_free = |(name, slot): &(&String, &RawSlot)| !slot.is_busy && Some(*name) != parent.as_ref();
        let oldest = siblings().filter(is_free).min_by_key(|(_, slot)| slot.used);
        let oldest = oldest.filter(|_| siblings().count() >= MAX_RAW).map(|(name, _)| name.clone());
        let mut names = (0_usize..).map(|n| format!("{prefix}.{n}"));
        let replaces = oldest.is_some();
        let name = oldest.or_else(|| names.find(|name| !self.raw.contains_key(name))).unwrap_or_default();
        self.raw.remove(&name);
        self.occupy(&name, is_stem);
        if let Some(slot) = parent.as_ref().and_then(|parent| self.raw.get_mut(parent)) {
            slot.used = self.time;
        }
        RawPlace { name, parent, replaces }
    }

    fn occupy(&mut self, name: &str, is_stem: bool) {
        let slot = self.raw.entry(name.to_owned()).or_default();
        (slot.is_busy, slot.is_stem, slot.used) = (true, is_stem, self.time);
    }

    fn find(&self, prefix: &str, dialogue: &Dialogue) -> FoundSlot {
        let siblings = || self.slots.range(format!("{prefix}.")..format!("{prefix}/"));
        let common = |slot: &MemorySlot| slot.common(&dialogue.chain);
        let nearest = siblings().max_by_key(|(_, slot)| common(slot));
        // What two days have in common is not the same prompt.
        let date = |slot: &MemorySlot| slot.chain.first().map(|first| first.date);
        let began = nearest.and_then(|(_, slot)| date(slot));
        let is_of_then = |slot: &MemorySlot| slot.chain.is_empty() || date(slot) == began;
        let goes_on = siblings().filter(|(_, slot)| !slot.is_busy && common(slot) == slot.chain.len());
        let goes_on = goes_on.filter(|(_, slot)| is_of_then(slot)).max_by_key(|(_, slot)| slot.chain.len());
        let goes_on = goes_on.map(|(name, _)| name.clone());
        FoundSlot { goes_on, nearest: nearest.map(|(name, slot)| (name.clone(), common(slot))) }
    }

    fn absorb(&mut self, SessionLine { name, reply, digest, ids, reasoning, date }: SessionLine) {
        let Ok(digest) = blake3::Hash::from_hex(&digest) else { return };
        self.time += 1;
        let slot = self.slots.entry(name).or_default();
        slot.used = self.time;
        if reply == 0 || slot.chain.len() < reply - 1 {
            return; // a line before it is lost
        }
        slot.chain.truncate(reply - 1);
        slot.chain.push(StoredReply { digest: digest.into(), ids, reasoning, date });
        self.forget_one();
    }

    fn lines(&self) -> Vec<SessionLine> {
        let mut slots: Vec<_> = self.slots.iter().collect();
        slots.sort_by_key(|(_, slot)| slot.used);
        let lines = slots
            .into_iter()
            .flat_map(|(name, slot)| slot.chain.iter().enumerate().map(|(at, said)| said.line(name, at)));
        lines.collect()
    }

    fn forget_one(&mut self) {
        if self.slots.len() <= MAX_MEMORIES {
            return;
        }
        let idle = self.slots.iter().filter(|(_, slot)| !slot.is_busy);
        let oldest = idle.min_by_key(|(_, slot)| slot.used).map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            self.slots.remove(&name);
        }
    }
}

impl MemorySlot {
    /// Replies that it has in common with a conversation, from the first on.
    fn common(&self, chain: &[Digest]) -> usize {
        self.chain.iter().zip(chain).take_while(|(said, digest)| said.digest == **digest).count()
    }
}

impl StoredReply {
    /// The line of a memory's reply at an index.
    fn line(&self, name: &str, at: usize) -> SessionLine {
        let digest = blake3::Hash::from(self.digest).to_hex().to_string();
        let Self { ids, reasoning, date, .. } = self.clone();
        SessionLine { name: name.to_string(), reply: at + 1, digest, ids, reasoning, date }
    }
}

/// The engine's key of a memory of that name. The memories of each model are a separate run, because only one
/// engine adds to a run.
pub(super) fn key(tenant: &str, model: &str, name: &str) -> SessionKey {
    SessionKey { tenant: tenant.to_string(), ..SessionKey::new(run_of(model), name) }
}

/// The run that the server's memories of a model belong to.
pub(super) fn run_of(model: &str) -> String {
    format!("serve.{model}")
}

impl Claim<'_> {
    /// Gives a conversation the replies' sampled ids, and the day on which it began.
    pub(super) fn recall(&self, conversation: &mut Conversation) {
        conversation.date = self.date;
        for (past, said) in conversation.exchanges.iter_mut().zip(&self.said) {
            past.reasoning = said.reasoning;
            let Some(ids) = &said.ids else { continue };
            past.reply = match past.reply {
                ReplyContent::CallText(..) | ReplyContent::Call(_) => ReplyContent::Call(ids.clone()),
                _ => ReplyContent::Ids(ids.clone()),
            };
        }
    }

    /// Records the answer to the conversation.
    pub(super) fn record_reply(self, dialogue: &Dialogue, reply: &CompletedReply) {
        let completion = &reply.completion;
        let mut inner = self.sessions.lock();
        let SessionsInner { slots, journal, .. } = &mut *inner;
        let Some(slot) = slots.get_mut(&self.name) else { return };
        let n = slot.common(&dialogue.chain);
        slot.chain.truncate(n);
        slot.chain.extend(self.said.iter().skip(n).cloned());
        let elsewhere = dialogue.chain.iter().zip(&dialogue.conversation.exchanges).skip(slot.chain.len());
        let elsewhere = elsewhere.map(|(digest, past)| StoredReply {
            digest: *digest,
            ids: None,
            reasoning: past.reasoning,
            date: self.date,
        });
        let elsewhere: Vec<StoredReply> = elsewhere.collect();
        slot.chain.extend(elsewhere);
        let n_ids = completion.call_ends.first().copied().unwrap_or(completion.ids.len());
        let ids = completion.ids.get(..n_ids).map(Into::into);
        let (digest, reasoning) = (dialogue.with_reply(reply), dialogue.conversation.reasoning);
        slot.chain.push(StoredReply { digest, ids, reasoning, date: self.date });
        slot.is_warm = true;
        let new = slot.chain.iter().enumerate().skip(n);
        let lines: Vec<SessionLine> = new.map(|(at, said)| said.line(&self.name, at)).collect();
        journal.append(&lines);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.sessions.lock().slots.get_mut(&self.name) {
            slot.is_busy = false;
        }
    }
}

impl RawClaim<'_> {
    /// Records that a memory now contains these ids.
    pub(super) fn push_ids(&self, place: &RawPlace, ids: Vec<u32>) {
        if let Some(slot) = self.sessions.lock().raw.get_mut(&place.name) {
            slot.ids = ids;
        }
    }
}

impl Drop for RawClaim<'_> {
    fn drop(&mut self) {
        let mut inner = self.sessions.lock();
        for place in self.stem.iter().map(|(stem, _)| stem).chain([&self.own]) {
            if let Some(slot) = inner.raw.get_mut(&place.name) {
                slot.is_busy = false;
            }
        }
    }
}
