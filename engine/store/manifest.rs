//! A session's manifest: what it is made of, as a log with a record for each saved turn. A save writes what
//! is new; a record that a crash tore leaves the state before it.

use super::cipher::Cipher;
use super::log::{self, Broken, End};
use super::numerics::Numerics;
use super::tail::TailRef;
use crate::kv::layout::BLOCK;
use crate::kv::table::BlockHash;
use crate::text::prefix::Segment;
use crate::{Error, Result, SessionKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Record of all that is needed to bring a session back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) owner: Owner,
    /// Addresses of the sealed blocks, in order.
    pub(crate) blocks: Vec<BlockHash>,
    /// The rows after them.
    pub(crate) tail: Option<TailRef>,
    /// Rows of blocks that have sealed since, in order.
    pub(crate) earlier: Vec<TailRef>,
    /// States of recurrent layers by position, ascending, with their addresses.
    pub(crate) states: Vec<(usize, BlockHash)>,
    /// Texts and ids of the tokens.
    pub(crate) segments: Vec<Segment>,
    pub(crate) worth: Worth,
}

/// Owner of a memory, and the identity of what computed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    pub(crate) run: String,
    pub(crate) agent: String,
    pub(crate) identity: Identity,
}

/// Figures for the value of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worth {
    /// Seconds since the epoch of the last save.
    pub(crate) saved_at: u64,
    /// Saves so far: turns.
    pub(crate) turns: u64,
    /// Milliseconds that a token of a prompt took to compute, by the engine's latest measure.
    pub(crate) token_ms: f64,
}

/// Identity of a cache, by what computed it and how: any difference is a miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Name of the model, for messages; not compared.
    pub(crate) model_name: String,
    /// blake3 of the model file: weights, tokenizer and chat template.
    pub(crate) model: String,
    /// KV layout and formats.
    pub(crate) layout: String,
    /// [`Numerics`]: what computed it.
    pub(crate) numerics: String,
    /// Version of the store.
    pub(crate) store: u32,
    /// Keeps tenants apart: with another salt nothing is shared.
    pub(crate) salt: String,
}

impl Identity {
    /// All that is compared, in one text.
    pub(crate) fn text(&self) -> String {
        let Self { model, layout, numerics, store, salt, .. } = self;
        format!("{model}\n{layout}\n{numerics}\n{store}\n{salt}")
    }

    /// Reason why a cache of identity `other` can't be used here; `None` if it can.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        let differs = |what: &str, here: &str, there: &str| {
            (here != there).then(|| format!("the cache was computed with {what} {there}, but this is {here}"))
        };
        let model = || {
            format!(
                "the cache was computed by model `{}`, but this is `{}`",
                other.model_name, self.model_name
            )
        };
        (self.model != other.model)
            .then(model)
            .or_else(|| differs("KV layout", &self.layout, &other.layout))
            .or_else(|| differs("numerics", &self.numerics, &other.numerics))
            .or_else(|| differs("store version", &self.store.to_string(), &other.store.to_string()))
            .or_else(|| (self.salt != other.salt).then(|| "the cache belongs to another tenant".to_owned()))
    }

    /// True if a cache of identity `other` could be used here except for the devices that computed it: its
    /// keys are coded by the same constants.
    pub(crate) fn can_adopt(&self, other: &Self) -> bool {
        let keys = |identity: &Self| Numerics::parse(&identity.numerics).keys;
        let alike = Self { numerics: self.numerics.clone(), ..other.clone() };
        self.differs(&alike).is_none() && keys(self) == keys(other)
    }
}

impl Manifest {
    /// The session that it belongs to.
    pub(crate) fn session(&self) -> SessionKey {
        let Owner { run, agent, identity } = &self.owner;
        SessionKey { tenant: identity.salt.clone(), run: run.clone(), agent: agent.clone() }
    }

    /// Tokens held.
    pub(crate) fn n_tokens(&self) -> usize {
        self.blocks.len() * BLOCK + self.tail.as_ref().map_or(0, |tail| tail.rows)
    }

    /// Addresses of all blocks and states that it names.
    pub(crate) fn hashes(&self) -> BTreeSet<BlockHash> {
        self.blocks.iter().chain(self.states.iter().map(|(_, hash)| hash)).copied().collect()
    }

    /// All tails that it names.
    pub(crate) fn tails(&self) -> impl Iterator<Item = &TailRef> {
        self.earlier.iter().chain(&self.tail)
    }
}

/// One record: what of the state before it stays, and what comes after that.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestRecord {
    /// Owner, in the first record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    keep_blocks: usize,
    blocks: Vec<Address>,
    tail: Option<TailRef>,
    /// The earlier tails, if they are not those of the record before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    earlier: Option<Vec<TailRef>>,
    /// The states, if they are not those of the record before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    states: Option<Vec<(usize, Address)>>,
    keep_segments: usize,
    segments: Vec<Segment>,
    worth: Worth,
}

/// A block's address as it is written: hexadecimal.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Address(BlockHash);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(hex: String) -> Result<Self, String> {
        BlockHash::from_hex(&hex).map(Self).ok_or_else(|| format!("`{hex}` is not a block address"))
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0.hex()
    }
}

/// Maximum bytes of a manifest.
pub(super) const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Content of a manifest's log, as far as a writer must know it to add to it.
pub(crate) struct Journal {
    end: End,
    owner: Owner,
    blocks: Vec<BlockHash>,
    earlier: Vec<TailRef>,
    states: Vec<(usize, BlockHash)>,
    /// Digests of the segments.
    segments: Vec<[u8; 32]>,
    turns: u64,
    /// Bytes of a log that says the same in one record, about.
    live: u64,
}

/// Change to a manifest's file.
pub(super) enum Write {
    /// This record follows the ones that are there.
    Append { at: u64, record: Vec<u8> },
    /// The log starts over.
    Replace(Vec<u8>),
}

impl Journal {
    /// The journal of a log that was read.
    fn new(manifest: &Manifest, end: End) -> Self {
        let live = end.bytes;
        Self {
            end,
            owner: manifest.owner.clone(),
            blocks: manifest.blocks.clone(),
            earlier: manifest.earlier.clone(),
            states: manifest.states.clone(),
            segments: manifest.segments.iter().map(digest).collect(),
            turns: manifest.worth.turns,
            live,
        }
    }

    /// Bytes that count.
    pub(super) fn bytes(&self) -> u64 {
        self.end.bytes
    }

    /// The log called `name`, written again as `manifest` has it after a change that is not a turn.
    pub(super) fn rewritten(mut self, manifest: &Manifest, name: &str, cipher: &Cipher) -> Result<Vec<u8>> {
        self.turns = self.turns.saturating_sub(1); // the update counts one
        match Self::update(Some(&self), |_| false, manifest, name, cipher)?.0 {
            Write::Append { record, .. } | Write::Replace(record) => Ok(record),
        }
    }

    /// Returns what to write so that the log called `name` says `manifest`, and the journal after that; a log
    /// of which more than half is out of date, or that does not go on, starts over.
    pub(super) fn update(
        before: Option<&Self>,
        goes_on: impl FnOnce(&Self) -> bool,
        manifest: &Manifest,
        name: &str,
        cipher: &Cipher,
    ) -> Result<(Write, Self)> {
        const SLACK: u64 = 64 << 10;
        let before = before.filter(|b| b.owner == manifest.owner);
        let turns = before.map_or(0, |before| before.turns).saturating_add(1);
        let base = before.filter(|before| before.end.bytes <= 2 * before.live + SLACK && goes_on(before));
        let segments: Vec<[u8; 32]> = manifest.segments.iter().map(digest).collect();
        let common = |same: &mut dyn Iterator<Item = bool>| same.take_while(|same| *same).count();
        let keep_blocks =
            base.map_or(0, |b| common(&mut b.blocks.iter().zip(&manifest.blocks).map(|(a, b)| a == b)));
        let keep_segments =
            base.map_or(0, |b| common(&mut b.segments.iter().zip(&segments).map(|(a, b)| a == b)));
        let step = ManifestRecord {
            owner: base.is_none().then(|| manifest.owner.clone()),
            keep_blocks,
            blocks: manifest.blocks[keep_blocks..].iter().copied().map(Address).collect(),
            tail: manifest.tail.clone(),
            earlier: base
                .map_or(!manifest.earlier.is_empty(), |b| b.earlier != manifest.earlier)
                .then(|| manifest.earlier.clone()),
            states: base
                .map_or(!manifest.states.is_empty(), |b| b.states != manifest.states)
                .then(|| manifest.states.iter().map(|(at, hash)| (*at, Address(*hash))).collect()),
            keep_segments,
            segments: manifest.segments[keep_segments..].to_vec(),
            worth: Worth { turns, ..manifest.worth },
        };
        let payload =
            serde_json::to_vec(&step).map_err(|e| Error::store(format!("can't encode a manifest: {e}")))?;
        let mut end = base.map_or_else(|| End::empty(name), |base| base.end.clone());
        let at = end.bytes;
        let record = log::record(&mut end, payload, cipher)?;
        if end.bytes > MAX_MANIFEST_BYTES {
            let agent = &manifest.owner.agent;
            return Err(Error::store(format!(
                "the manifest of `{agent}` would have more than {MAX_MANIFEST_BYTES} bytes"
            )));
        }
        let dropped = base.is_some_and(|base| keep_segments < base.segments.len());
        let live = match base {
            // What was dropped is out of date, whatever its size: the next check errs on the side of a
            // rewrite.
            Some(base) if dropped => base.live / 2,
            Some(base) => base.live + record.len() as u64,
            None => record.len() as u64,
        };
        let after = Self {
            end,
            owner: manifest.owner.clone(),
            blocks: manifest.blocks.clone(),
            earlier: manifest.earlier.clone(),
            states: manifest.states.clone(),
            segments,
            turns,
            live,
        };
        Ok((if base.is_some() { Write::Append { at, record } } else { Write::Replace(record) }, after))
    }
}

fn digest(segment: &Segment) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[segment.kind as u8, u8::from(segment.guessed)]);
    hasher.update(&(segment.text.len() as u64).to_le_bytes()).update(segment.text.as_bytes());
    for id in segment.ids.iter() {
        hasher.update(&id.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Reads the manifest called `name`: its last whole state. Also returns why reading ended there, if that was
/// before the end of the file; an error is the reason why there is no state at all.
pub(crate) fn decode(
    bytes: &[u8],
    name: &str,
    cipher: &Cipher,
) -> Result<(Manifest, Journal, Option<Broken>), String> {
    let mut state: Option<(Manifest, End)> = None;
    let read = log::read(bytes, name, cipher, &mut |payload, end| {
        let step: ManifestRecord = serde_json::from_slice(payload).map_err(|e| e.to_string())?;
        match &mut state {
            None => state = Some((step.first()?, end.clone())),
            Some((manifest, last)) => {
                step.apply(manifest)?;
                *last = end.clone();
            }
        }
        Ok(())
    });
    match (state, read) {
        (Some((manifest, end)), read) => {
            let journal = Journal::new(&manifest, end);
            Ok((manifest, journal, read.err()))
        }
        (None, Err(broken)) => Err(broken.reason),
        (None, Ok(())) => Err("it is empty".to_owned()),
    }
}

impl ManifestRecord {
    /// The state after the first record.
    fn first(mut self) -> Result<Manifest, String> {
        let owner = self.owner.take().ok_or("its first record has no owner")?;
        let (blocks, segments, worth) = (Vec::new(), Vec::new(), self.worth);
        let (tail, earlier, states) = (None, Vec::new(), Vec::new());
        let mut manifest = Manifest { owner, blocks, tail, earlier, states, segments, worth };
        self.apply(&mut manifest)?;
        Ok(manifest)
    }

    /// Moves the state on; one that can't be is left as it was.
    fn apply(self, state: &mut Manifest) -> Result<(), String> {
        if self.owner.is_some() || self.keep_blocks > state.blocks.len() {
            return Err("a record does not match the one before it".to_owned());
        }
        let kept = state.segments.get(..self.keep_segments).ok_or("a record keeps more than there was")?;
        let n_blocks = self.keep_blocks + self.blocks.len();
        let earlier = self.earlier.as_ref().unwrap_or(&state.earlier);
        for tail in earlier.iter().chain(&self.tail) {
            let ours = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
            if !tail.file.bytes().all(ours) || tail.file.starts_with('.') {
                return Err("its tail has an invalid name".to_owned());
            }
            if tail.rows == 0 || tail.rows >= BLOCK {
                return Err("its tail has no rows, or a whole block of rows".to_owned());
            }
        }
        if self.tail.as_ref().is_some_and(|tail| tail.block != n_blocks) {
            return Err("its tail does not follow its blocks".to_owned());
        }
        if !earlier.is_sorted_by(|a, b| a.block < b.block) || earlier.iter().any(|t| t.block >= n_blocks) {
            return Err("its earlier tails are not those of its blocks".to_owned());
        }
        let n_ids: usize = kept.iter().chain(&self.segments).map(|segment| segment.ids.len()).sum();
        let n_tokens = n_blocks * BLOCK + self.tail.as_ref().map_or(0, |tail| tail.rows);
        let states = self.states.as_ref().map(|all| all.iter().map(|(at, hash)| (*at, hash.0)).collect());
        let states: Vec<(usize, BlockHash)> = states.unwrap_or_else(|| state.states.clone());
        // What follows the last state of a model with recurrent layers is computed again.
        if n_ids < n_tokens || n_ids > n_tokens && states.is_empty() {
            return Err(format!("its counts contradict each other: {n_ids} ids, {n_tokens} tokens"));
        }
        if !states.is_sorted_by(|a, b| a.0 < b.0) || states.iter().any(|(at, _)| *at == 0 || *at > n_ids) {
            return Err("its states are not those of its tokens".to_owned());
        }
        state.blocks.truncate(self.keep_blocks);
        state.blocks.extend(self.blocks.iter().map(|address| address.0));
        state.segments.truncate(self.keep_segments);
        state.segments.extend(self.segments);
        (state.tail, state.worth) = (self.tail, self.worth);
        state.states = states;
        state.earlier = self.earlier.unwrap_or_else(|| std::mem::take(&mut state.earlier));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::prefix::SegmentKind;

    /// A tail for each block but the last.
    fn tails(texts: &[&str]) -> Vec<TailRef> {
        let tail = |block| TailRef { rows: 9, ..TailRef::new(format!("t.{block}.log"), block) };
        (0..texts.len().saturating_sub(1)).map(tail).collect()
    }

    fn manifest(texts: &[&str]) -> Manifest {
        let identity = Identity {
            model_name: String::new(),
            model: String::new(),
            layout: String::new(),
            numerics: String::new(),
            store: 1,
            salt: String::new(),
        };
        let segment = |text: &&str| Segment {
            kind: SegmentKind::Message,
            text: (*text).into(),
            ids: vec![7; 256].into(),
            guessed: false,
        };
        Manifest {
            owner: Owner { run: "r".to_owned(), agent: "a".to_owned(), identity },
            blocks: texts.iter().map(|text| BlockHash::root(text)).collect(),
            tail: None,
            earlier: tails(texts),
            states: Vec::new(),
            segments: texts.iter().map(segment).collect(),
            worth: Worth::default(),
        }
    }

    #[test]
    fn a_log_says_what_was_last_written_and_stays_short() {
        let cipher = Cipher::new(None);
        let (mut file, mut journal) = (Vec::new(), None);
        let long = "x".repeat(9_000);
        let states = [vec!["a"], vec!["a", "b"], vec!["a", "c", &long], vec!["d"], vec!["d", "e"]];
        for round in 0..20 {
            for state in &states {
                let state = manifest(state);
                let (write, after) =
                    Journal::update(journal.as_ref(), |_| true, &state, "n", &cipher).expect("a record");
                let before = file.clone();
                match write {
                    Write::Append { at, record } => {
                        file.truncate(at as usize);
                        file.extend(record);
                    }
                    Write::Replace(bytes) => file = bytes,
                }
                journal = Some(after);
                let (found, again, reason) = decode(&file, "n", &cipher).expect("a manifest");
                let turns = found.worth.turns;
                assert_eq!((Manifest { worth: state.worth, ..found }, reason), (state, None));
                assert_eq!(turns, again.turns);
                // Torn within the record: the state before.
                if file.len() > before.len() && file.starts_with(&before) && !before.is_empty() {
                    let (_, torn, reason) =
                        decode(&file[..file.len() - 1], "n", &cipher).expect("a manifest");
                    assert!(torn.turns == turns - 1 && reason.is_some(), "round {round}");
                }
            }
        }
        assert!(file.len() < 150_000, "{} bytes", file.len());
        assert!(decode(&file, "m", &cipher).is_err(), "in another's place");
    }
}
