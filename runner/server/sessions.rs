//! Which memory a conversation goes on with.
//!
//! Conversations that begin with the same system text and first message are siblings. One goes on with the sibling's memory that holds
//! just what it has read and said so far; where there is none, it begins one of its own with the memory of the sibling that it has most
//! in common with. So two clients never take each other's memory back, whatever they have in common is read once, and a client
//! needs no name for it. A scope (a key or header that clients send) keeps conversations apart that begin alike.
//!
//! What each memory holds is written down, a line a reply, and read again when the server starts. With it stand the ids that were
//! sampled: clients send replies back as text, and a text has more than one way to be cut into tokens. So a conversation is read as it
//! was said, whether or not its keys and values are still there.

use super::conversation::{Digest, Told};
use greenroom_engine::{Completion, Conversation, ReplyContent, SessionKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Memories that are known at once, at most; the one that was used longest ago is forgotten first.
const MOST: usize = 10_000;
/// Bytes of the file, at most, when it is read.
const MAX_FILE: u64 = 256 << 20;

/// The memories of all conversations.
#[derive(Default)]
pub struct Sessions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    slots: BTreeMap<String, Slot>,
    file: Option<File>,
    time: u64,
}

#[derive(Default)]
struct Slot {
    /// What it has read and said, reply by reply.
    chain: Vec<Said>,
    is_busy: bool,
    used: u64,
}

/// A reply.
#[derive(Clone)]
struct Said {
    /// Digest of all that stands before its end.
    digest: Digest,
    /// The sampled ids; `None`: it was said elsewhere, and is read as its text.
    ids: Option<Arc<[u32]>>,
}

/// A line of the file: the reply of that number in a memory.
#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    reply: usize,
    digest: String,
    ids: Option<Arc<[u32]>>,
}

/// A memory that is at work for one request.
pub(super) struct Claim<'a> {
    sessions: &'a Sessions,
    pub(super) name: String,
    /// The memory to begin with, if that is a new one.
    pub(super) parent: Option<String>,
    /// The replies of the conversation whose ids are known, from the first on.
    said: Vec<Said>,
}

impl Sessions {
    /// With what is written down in a folder; `None`: nothing is.
    ///
    /// # Errors
    /// The file can't be read or written.
    pub fn open(folder: Option<&Path>) -> std::io::Result<Self> {
        let Some(file) = folder.map(|folder| folder.join("sessions.jsonl")) else {
            return Ok(Self::default());
        };
        let mut inner = Inner::default();
        inner.read(&file)?;
        inner.rewrite(&file)?;
        Ok(Self(Mutex::new(inner)))
    }

    /// The memory for a conversation.
    pub(super) fn claim(&self, scope: &str, told: &Told) -> Claim<'_> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let root = blake3::Hash::from(told.root);
        let scope = blake3::hash(scope.as_bytes());
        let prefix = format!("{}-{}", &scope.to_hex()[..16], &root.to_hex()[..32]);
        let siblings = || inner.slots.range(format!("{prefix}.")..format!("{prefix}/"));
        let common = |slot: &Slot| slot.common(&told.chain);
        let nearest = siblings().max_by_key(|(_, slot)| common(slot));
        let said = nearest.map_or(Vec::new(), |(_, slot)| slot.chain[..common(slot)].to_vec());
        let nearest = nearest.map(|(name, _)| name.clone());
        let goes_on = siblings().filter(|(_, slot)| !slot.is_busy && common(slot) == slot.chain.len());
        let goes_on = goes_on.max_by_key(|(_, slot)| slot.chain.len()).map(|(name, _)| name.clone());
        let (name, parent) = match goes_on {
            Some(name) => (name, None),
            None => {
                let free =
                    (0..).map(|n| format!("{prefix}.{n}")).find(|name| !inner.slots.contains_key(name));
                (free.unwrap_or_default(), nearest)
            }
        };
        inner.time += 1;
        let time = inner.time;
        let slot = inner.slots.entry(name.clone()).or_default();
        (slot.is_busy, slot.used) = (true, time);
        inner.forget_one();
        Claim { sessions: self, name, parent, said }
    }
}

impl Inner {
    fn read(&mut self, file: &PathBuf) -> std::io::Result<()> {
        let opened = match File::open(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        for line in BufReader::new(std::io::Read::take(opened, MAX_FILE)).lines() {
            // The last line of a server that was killed may be half a line.
            let Ok(Line { name, reply, digest, ids }) = serde_json::from_str(&line?) else { continue };
            let Ok(digest) = blake3::Hash::from_hex(&digest) else { continue };
            self.time += 1;
            let slot = self.slots.entry(name).or_default();
            if reply == 0 || slot.chain.len() < reply - 1 {
                continue; // a line before it is lost
            }
            slot.chain.truncate(reply - 1);
            slot.chain.push(Said { digest: digest.into(), ids });
            slot.used = self.time;
            self.forget_one();
        }
        Ok(())
    }

    /// Writes a line for each memory, and keeps the file open for more.
    fn rewrite(&mut self, path: &Path) -> std::io::Result<()> {
        let mut slots: Vec<_> = self.slots.iter().collect();
        slots.sort_by_key(|(_, slot)| slot.used);
        let mut text = String::new();
        for (name, slot) in slots {
            for (at, said) in slot.chain.iter().enumerate() {
                text += &line(name, at, said)?;
            }
        }
        crate::files::write(path, text).map_err(std::io::Error::other)?;
        self.file = Some(File::options().append(true).open(path)?);
        Ok(())
    }

    fn forget_one(&mut self) {
        let idle = self.slots.iter().filter(|(_, slot)| !slot.is_busy);
        let oldest = idle.min_by_key(|(_, slot)| slot.used).map(|(name, _)| name.clone());
        if let Some(name) = oldest.filter(|_| self.slots.len() > MOST) {
            self.slots.remove(&name);
        }
    }
}

impl Slot {
    /// Replies that it has in common with a conversation, from the first on.
    fn common(&self, chain: &[Digest]) -> usize {
        self.chain.iter().zip(chain).take_while(|(said, digest)| said.digest == **digest).count()
    }
}

/// The line of the reply at an index.
fn line(name: &str, at: usize, said: &Said) -> serde_json::Result<String> {
    let digest = blake3::Hash::from(said.digest).to_hex().to_string();
    let line = Line { name: name.to_string(), reply: at + 1, digest, ids: said.ids.clone() };
    Ok(serde_json::to_string(&line)? + "\n")
}

impl Claim<'_> {
    /// The key of a memory of this request's.
    pub(super) fn key(name: &str) -> SessionKey {
        SessionKey::new("serve", name)
    }

    /// Lets a conversation hold the replies as they were said.
    pub(super) fn recall(&self, conversation: &mut Conversation) {
        for (past, said) in conversation.exchanges.iter_mut().zip(&self.said) {
            if let Some(ids) = &said.ids {
                past.reply = ReplyContent::Ids(ids.clone());
            }
        }
    }

    /// The conversation was answered by these ids; `told` is the conversation.
    pub(super) fn said(self, told: &Told, completion: &Completion) {
        let mut inner = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { slots, file, .. } = &mut *inner;
        let Some(slot) = slots.get_mut(&self.name) else { return };
        let n = slot.common(&told.chain);
        slot.chain.truncate(n);
        slot.chain.extend(self.said.iter().skip(n).cloned());
        let elsewhere = told.chain.iter().skip(slot.chain.len());
        let elsewhere: Vec<Said> = elsewhere.map(|digest| Said { digest: *digest, ids: None }).collect();
        slot.chain.extend(elsewhere);
        let ids = Some(completion.ids.as_slice().into());
        slot.chain.push(Said { digest: told.with_reply(&completion.text), ids });
        let new = slot.chain.iter().enumerate().skip(n);
        let lines: serde_json::Result<String> = new.map(|(at, said)| line(&self.name, at, said)).collect();
        let written = lines.map_err(std::io::Error::other);
        let written =
            written.and_then(|lines| file.as_mut().map_or(Ok(()), |file| file.write_all(lines.as_bytes())));
        if let Err(error) = written {
            tracing::warn!("what `{}` holds can't be written down: {error}", self.name);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut inner = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = inner.slots.get_mut(&self.name) {
            slot.is_busy = false;
        }
    }
}
