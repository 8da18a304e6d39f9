//! Random appends, forks, trims, evictions, reloads, kills and damage, against a plain model in memory.
//!
//! The model of an agent is the list of what it has read and said, and the list that its last commit put on
//! disk. Keys and values are made up from the ids before them, so a block or a row in a wrong place shows.
//! Some thousand steps belong to every test run; a million to
//! `cargo test -p greenroom-engine --lib -- --ignored endurance` (GREENROOM_STEPS and GREENROOM_SEED choose
//! others).

use super::is_deep;
use crate::KvFormat;
use crate::device::Device;
use crate::device::cpu::Cpu;
use crate::fixtures::RandomModel;
use crate::fixtures::pass::write_pass;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::table::BlockHash;
use crate::kv::table::BlockId;
use crate::memory::arena::Arena;
use crate::memory::sequence::Sequence;
use crate::memory::session::{CacheContext, Session};
use crate::memory::{Memory, Recalled};
use crate::model::gguf::Gguf;
use crate::store::in_memory::InMemory;
use crate::store::inventory::Folder;
use crate::store::{Store, StoreLocation};
use crate::text::prefix::{Segment, SegmentKind, compare, flatten};
use crate::{Conversation, MatchKind, ModelSource, Request, Retention, SessionKey};
use greenroom_kernels::Isa;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Width of a head: small, so that a million steps take minutes.
const DIM: usize = 16;

/// Record that the plain model keeps of an agent.
#[derive(Clone, Default)]
struct Known {
    /// Segments in memory, if the engine still has them there.
    now: Vec<Segment>,
    /// Segments on disk.
    committed: Vec<Segment>,
}

/// Place of what is committed.
#[derive(Clone)]
enum Stored {
    Folder(PathBuf),
    Memory(InMemory),
}

struct Trial {
    root: BlockHash,
    device: Arc<dyn Device>,
    context: CacheContext,
    stored: Stored,
    memory: Memory,
    budget: u64,
    agents: HashMap<SessionKey, Known>,
    /// Digests of the parts of each block, computed apart from everything that is tested.
    digests: HashMap<BlockHash, [Option<blake3::Hash>; 2]>,
    random: u64,
    /// True if files are damaged now and then: what is recalled must still be right, but need not be all.
    damage: bool,
    turns: u64,
    tally: HashMap<&'static str, u64>,
}

/// Keys or values of one layer for the token that ends `prefix`: noise by all ids so far.
fn row(prefix: BlockHash, width: usize, layer: usize) -> Vec<f32> {
    let [a, b, c, d, e, f, g, h, ..] = prefix.0;
    let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    (0..width as u64)
        .map(|i| (mix(seed ^ (layer as u64) << 56 ^ i) >> 40) as f32 / (1 << 22) as f32 - 2.0)
        .collect()
}

/// A finalizer of SplitMix64.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Trial {
    fn new(stored: Stored, seed: u64, damage: bool) -> Self {
        let mut layout = KvLayout::uniform(2, 1, DIM, KvFormat::Q4);
        layout.layers[1].window = Some(300);
        let layout = Arc::new(layout);
        let context = CacheContext::of_test(layout);
        let bytes: &'static [u8] = RandomModel::tiny(1).bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        // Its weights are of no account: keys and values are made up.
        let device: Arc<dyn Device> =
            Arc::new(Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device"));
        let memory = Self::memory(&device, &context, &stored, u64::MAX);
        let (agents, digests, tally) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (root, budget) = (context.root_of(""), u64::MAX);
        Self {
            root,
            device,
            context,
            stored,
            memory,
            budget,
            agents,
            digests,
            random: seed,
            damage,
            turns: 0,
            tally,
        }
    }

    fn memory(device: &Arc<dyn Device>, context: &CacheContext, stored: &Stored, budget: u64) -> Memory {
        let store = match stored {
            Stored::Folder(dir) => {
                Store::open(&StoreLocation::new(dir.clone(), None, None)).expect("a store")
            }
            Stored::Memory(memory) => Store::on(Arc::new(memory.clone()), None),
        };
        Memory::new(device, context.clone(), Some(store), budget)
    }

    /// A number below `n` (SplitMix64).
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random) % n
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// One of a few texts, so that agents have common beginnings.
    fn segment(&mut self, kind: SegmentKind) -> Segment {
        let text = self.below(6);
        let n = [1, 40, 90, 150, 256, 300][text as usize];
        let ids = (0..n).map(|i| (text * 1000 + i) as u32).collect();
        Segment { kind, text: format!("text {text}").into(), ids, guessed: false }
    }

    fn key(&mut self) -> SessionKey {
        let (run, agent) = (self.below(2), self.below(5));
        SessionKey::new(format!("run{run}"), format!("../agent {agent}"))
    }

    fn step(&mut self) {
        match self.below(100) {
            0 => self.kill(),
            1 if self.damage => self.damage(),
            2 => {
                let key = self.key();
                self.memory.forget(&key);
                let known = self.agents.entry(key).or_default();
                known.now = known.committed.clone();
                self.count("forgotten");
            }
            3..10 => {
                self.memory.look_ahead(1);
                self.count("looked ahead");
            }
            10..20 => {
                let (key, next_use) = (self.key(), self.turns + self.below(20));
                self.memory.hint_next_use(&key, next_use);
            }
            20..30 => {
                let others = self.below(self.budget.clamp(1, 1 << 20));
                self.memory.enforce_budget(others);
                self.memory.enforce_budget(0);
                self.count("evicted");
            }
            _ => self.turn(),
        }
    }

    /// The process ends without a word; another one begins, with another budget.
    fn kill(&mut self) {
        self.budget = [0, 20_000, 90_000, u64::MAX][self.below(4) as usize];
        // Two stores can't claim one run: the old one is dropped first.
        let none = Stored::Memory(InMemory::default());
        self.memory = Self::memory(&self.device, &self.context, &none, 0);
        if self.below(8) == 0 {
            self.remove();
        }
        self.memory = Self::memory(&self.device, &self.context, &self.stored, self.budget);
        for known in self.agents.values_mut() {
            known.now = known.committed.clone();
        }
        self.count("killed");
    }

    /// While no process has the folder, one agent's memory is removed, with all that nobody needs.
    fn remove(&mut self) {
        let Stored::Folder(dir) = self.stored.clone() else { return };
        let key = self.key();
        Folder::new(&dir, None).remove(&|entry| entry.session == key).expect("a removal");
        self.agents.entry(key).or_default().committed.clear();
        self.count("removed");
    }

    /// A file loses a bit, its end, or itself.
    fn damage(&mut self) {
        let Stored::Folder(dir) = self.stored.clone() else { return };
        let mut files = Vec::new();
        let mut folders = vec![dir];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path if path.extension().is_some() => files.push(path),
                    _ => {}
                }
            }
        }
        files.sort();
        if files.is_empty() {
            return;
        }
        let path = files.swap_remove(self.below(files.len() as u64) as usize);
        // What was listed may have been packed since.
        let Ok(mut bytes) = std::fs::read(&path) else { return };
        let at = self.below(bytes.len().max(1) as u64) as usize;
        match self.below(3) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            _ => bytes.clear(),
        }
        std::fs::write(&path, bytes).expect("a write");
        self.count("damaged");
    }

    fn turn(&mut self) {
        let key = self.key();
        let known = self.agents.get(&key).cloned().unwrap_or_default();
        let mut prompt = known.now.clone();
        let parent =
            (known.now.is_empty() && known.committed.is_empty() && self.below(3) == 0).then(|| self.key());
        if let Some(parent) = parent.as_ref().and_then(|parent| self.agents.get(parent)) {
            prompt = parent.now.clone();
            self.count("forked");
        }
        match self.below(10) {
            0 => prompt.truncate(self.below(prompt.len() as u64 + 1) as usize), // trimmed
            _ if prompt.len() > 9 => prompt.clear(),
            _ => {}
        }
        if self.below(20) > 0 || prompt.is_empty() {
            prompt.push(self.segment(SegmentKind::Message));
        }
        let retention = if key.agent.ends_with('4') { Retention::Ephemeral } else { Retention::Persistent };
        self.turns += 1;
        let next_use = (self.below(4) > 0).then(|| self.turns + 1 + self.random % 12);
        let request = Request {
            parent,
            retention,
            max_tokens: 1,
            next_use,
            cold: self.below(40) == 0,
            ..Request::new(key.clone(), Conversation::default())
        };
        let recalled = self.memory.recall(&request, &prompt).expect("a session");
        self.check(&recalled, &known, &request, &prompt);
        self.play(request, recalled.session, prompt, known);
    }

    /// Checks that what was recalled belongs to the ids, and that it is as much as there should be.
    fn check(&mut self, recalled: &Recalled, known: &Known, request: &Request, prompt: &[Segment]) {
        let (sequence, tokens) = (&recalled.session.sequence, &recalled.session.tokens);
        assert_eq!(tokens[..], flatten(prompt)[..], "the ids are the prompt's");
        assert_eq!(recalled.reused, sequence.len());
        assert!(sequence.missing(sequence.len()).next().is_none(), "something is not in memory");
        self.check_content(&recalled.session);
        let whole =
            compare(&known.now, prompt).n_tokens == flatten(&known.now).len() && !known.now.is_empty();
        // What was never committed may have been let go; what was, is there.
        let asked = whole && known.now.len() < prompt.len() && !request.cold && request.parent.is_none();
        let kept = known.now == known.committed && request.retention == Retention::Persistent;
        if asked && kept && !self.damage {
            let (n, reason) = (flatten(&known.now).len(), &recalled.reason);
            assert_eq!(
                (recalled.kind, recalled.recomputed),
                (MatchKind::Extend, 0),
                "{n} tokens: {reason:?}"
            );
            assert!(recalled.reused >= n, "{} of {n} tokens", recalled.reused);
            self.count("extended in full");
        }
    }

    fn check_content(&mut self, session: &Session) {
        let (sequence, tokens) = (&session.sequence, &session.tokens);
        let hashes = self.root.chain(&tokens[..sequence.len() / BLOCK * BLOCK], &[]);
        assert!(sequence.table().hashes().eq(hashes.iter().copied()), "the blocks are those of the ids");
        for (index, (hash, parts)) in hashes.iter().zip(sequence.table().parts()).enumerate() {
            let expected = self.digests_of(*hash, &tokens[..(index + 1) * BLOCK]);
            for (id, expected) in parts.iter().zip(expected) {
                let found = id.map(|id| digest(&self.memory.arena, id));
                assert!(found.is_none() || found == expected, "block {index} holds another's keys or values");
            }
        }
        if let Some(rows) = sequence.open_rows() {
            let (start, layout) = (sequence.table().len() * BLOCK, self.context.layout.clone());
            let mut fresh = Sequence::new(layout.clone(), self.root);
            let mut arena = Arena::new(&self.device, &layout, u64::MAX);
            self.write(&mut fresh, start..sequence.len(), tokens, &mut arena);
            let n = sequence.len() - start;
            let expected = arena.export_rows(fresh.open_rows().expect("rows"), 0..n).expect("rows");
            assert!(
                self.memory.arena.export_rows(rows, 0..n).expect("rows") == expected,
                "rows of other tokens"
            );
        }
    }

    /// Digests of the block that ends `tokens`, computed from the ids alone.
    fn digests_of(&mut self, hash: BlockHash, tokens: &[u32]) -> [Option<blake3::Hash>; 2] {
        if let Some(known) = self.digests.get(&hash) {
            return *known;
        }
        let layout = self.context.layout.clone();
        let (mut fresh, mut arena) =
            (Sequence::new(layout.clone(), self.root), Arena::new(&self.device, &layout, u64::MAX));
        // A session's first block keeps its first rows exact, so a block has to know its place.
        let chain = self.root.chain(&tokens[..tokens.len() - BLOCK], &[]);
        chain.into_iter().for_each(|before| fresh.push_absent(before));
        self.write(&mut fresh, tokens.len() - BLOCK..tokens.len(), tokens, &mut arena);
        let parts = fresh.table().parts().last().expect("a block");
        let found = parts.map(|id| id.map(|id| digest(&arena, id)));
        self.digests.insert(hash, found);
        found
    }

    /// Computes keys and values of tokens `range`, from the sequence's end on.
    fn write(
        &self,
        sequence: &mut Sequence,
        range: std::ops::Range<usize>,
        tokens: &[u32],
        arena: &mut Arena,
    ) {
        // What a position holds depends on all ids so far: the chain of blocks before, and the open block's
        // own ids.
        let chain = self.root.chain(&tokens[..range.end / BLOCK * BLOCK], &[]);
        let mut prefixes = Vec::new();
        let mut pos = range.start;
        while pos < range.end {
            let block = pos / BLOCK;
            let before = block.checked_sub(1).map_or(self.root, |before| chain[before]);
            let mut hasher = blake3::Hasher::new_keyed(&before.0);
            for id in &tokens[block * BLOCK..pos] {
                hasher.update(&id.to_le_bytes());
            }
            let end = range.end.min((block + 1) * BLOCK);
            for id in &tokens[pos..end] {
                hasher.update(&id.to_le_bytes());
                prefixes.push(BlockHash(*hasher.finalize().as_bytes()));
            }
            pos = end;
        }
        let start = sequence.len();
        let rows = |layer: usize| {
            let all = |side: usize| -> Vec<f32> {
                prefixes.iter().flat_map(|prefix| row(*prefix, DIM, 2 * layer + side)).collect()
            };
            (all(0), all(1))
        };
        // A fresh sequence that starts in the middle knows its own ids alone.
        let known = if start == range.start { tokens } else { &tokens[range.clone()] };
        write_pass(Isa::detect(), sequence, (known, start + range.len()), arena, rows);
    }

    /// Flushes after a pass. Windowed layers that memory let go of can't be written again where the disk lost
    /// them.
    fn flush(&mut self, request: &Request, session: &mut Session) {
        let settled = self.memory.flush_now(request, session);
        assert!(self.damage || settled.is_ok(), "{settled:?}");
    }

    /// Reads the rest of the prompt, says something, and saves it, or not.
    fn play(&mut self, request: Request, mut session: Session, mut prompt: Vec<Segment>, mut known: Known) {
        session.sequence.begin_turn();
        let (key, persistent) = (request.session.clone(), request.retention == Retention::Persistent);
        let cancelled = self.below(12) == 0;
        let before = session.segments.len();
        if !cancelled {
            let reply = self.segment(SegmentKind::Reply);
            session.tokens.extend(reply.ids.iter());
            prompt.push(reply);
        }
        let end = if cancelled {
            session.tokens.len().min(session.sequence.len() + 77)
        } else {
            session.tokens.len()
        };
        while session.sequence.len() < end {
            let start = session.sequence.len();
            let next = (start + 1 + self.below(400) as usize).min(end);
            let tokens = session.tokens.clone();
            let mut arena =
                std::mem::replace(&mut self.memory.arena, Arena::new(&self.device, &self.context.layout, 0));
            self.write(&mut session.sequence, start..next, &tokens, &mut arena);
            self.memory.arena = arena;
            self.flush(&request, &mut session);
        }
        if cancelled {
            known.now = prompt[..before].to_vec();
            let prompt_len = session.tokens.len();
            self.memory.give_back(key.clone(), session, prompt_len, request.next_use);
            self.agents.insert(key, known);
            return self.count("cancelled");
        }
        session.segments = prompt.clone();
        let pending = if persistent {
            match self.memory.save_now(&key, &mut session) {
                Err(_) if self.damage => None, // the turn says that it is not saved
                saved => Some(saved.expect("a save")),
            }
        } else {
            None
        };
        session.sequence.end_turn(&mut self.memory.arena);
        self.flush(&request, &mut session);
        self.memory.take_back(key.clone(), session, request.next_use);
        known.now = prompt;
        if let Some((pending, _)) = pending {
            match self.below(12) {
                0 => {
                    self.memory.abandon(&key, Some(pending));
                    self.count("not committed"); // the manifest stays as it was
                }
                1 => {
                    self.agents.insert(key, known);
                    return self.kill();
                }
                _ => {
                    self.memory.commit_now(pending).expect("a commit");
                    known.committed = known.now.clone();
                }
            }
        }
        self.agents.insert(key, known);
        self.memory.enforce_budget(0);
        let over = self.memory.arena.excess(0);
        assert_eq!(over, 0, "{over} bytes of blocks over the budget");
        self.count("played");
    }
}

fn digest(arena: &Arena, id: BlockId) -> blake3::Hash {
    blake3::hash(arena.export(id).expect("a block").as_bytes())
}

fn endure(steps: u64, seed: u64, stored: Stored, damage: bool) {
    let mut trial = Trial::new(stored, seed, damage);
    for _ in 0..steps {
        trial.step();
    }
    eprintln!("{steps} steps from seed {seed}: {:?}", trial.tally);
    assert!(damage || trial.tally["extended in full"] * 10 > trial.tally["played"], "{:?}", trial.tally);
    for key in trial.agents.keys().cloned().collect::<Vec<_>>() {
        trial.memory.forget(&key);
    }
    assert_eq!(trial.memory.arena.bytes(), 0, "all blocks were given back");
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A folder that is a disk's business as little as possible.
fn in_a_folder(steps: u64, seed: u64, damage: bool) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    endure(steps, seed, Stored::Folder(dir.path().to_owned()), damage);
}

fn in_memory(steps: u64, seed: u64) {
    endure(steps, seed, Stored::Memory(InMemory::default()), false);
}

#[test]
fn endurance() {
    let part = if is_deep() { 1 } else { 4 };
    in_a_folder(2_000 / part, 1, false);
    in_a_folder(1_500 / part, 2, true);
    in_memory(2_000 / part, 4);
}

#[test]
#[ignore = "half an hour: cargo test -p greenroom-engine --lib -- --ignored endurance"]
fn endurance_of_a_million_steps() {
    let (steps, seed) = (from_env("GREENROOM_STEPS", 1_000_000), from_env("GREENROOM_SEED", 3));
    in_a_folder(steps / 2, seed, false);
    in_a_folder(steps / 2, seed + 1, true);
}
