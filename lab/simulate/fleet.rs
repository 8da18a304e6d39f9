//! Workers of an engine and their caches: what each has cached, and which of them answers a request.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// The capacity of a worker's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    /// A number of tokens, in blocks that requests share by content; the least recently used are evicted
    /// first, from their ends (vLLM, SGLang).
    Tokens(usize),
    /// A number of sequences, each of which a request with the same beginning can continue (llama.cpp's
    /// slots).
    Sequences(usize),
}

/// Choice of the worker that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Routing {
    /// One after another
    RoundRobin,
    /// The same worker for all turns of an agent
    Session,
    /// The worker that has read most of the prompt, unless it has four requests more than the least busy one
    Prefix,
}

/// A memory of a run; `None`: the part that is the same in all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) script: usize,
    pub(super) run: Option<usize>,
    pub(super) memory: usize,
}

/// A request to a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) prompt: usize,
    /// Tokens of the memory that have been read or said.
    pub(super) known: usize,
    /// Tokens of it that are the same in all runs.
    pub(super) shared: usize,
}

/// An entry of a cache.
#[derive(Clone, Copy, Debug)]
struct CacheEntry {
    /// Tokens, from the beginning of the prompt on.
    tokens: usize,
    /// Tokens before those that the entry itself stores.
    base: usize,
    used: u64,
    pins: usize,
}

/// Length of the common beginning of two memories of a script, in tokens.
pub(super) type Alike<'a> = dyn Fn(Key, Key) -> usize + 'a;

/// A cache.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: Capacity,
    block: usize,
    entries: HashMap<Key, CacheEntry>,
    by_use: BTreeMap<u64, Key>,
    stored: usize,
    clock: u64,
}

/// Share of a prompt that must be in a slot for llama.cpp to choose it by similarity.
const SIMILAR: f64 = 0.1;

impl Cache {
    pub(super) fn new(capacity: Capacity, block: usize) -> Self {
        let (entries, by_use) = (HashMap::new(), BTreeMap::new());
        Self { capacity, block, entries, by_use, stored: 0, clock: 0 }
    }

    /// Number of a prompt's tokens that need not be computed: whole blocks, and never the last token.
    pub(super) fn hit(&self, wanted: &Wanted, alike: &Alike<'_>) -> usize {
        let found = match self.capacity {
            Capacity::Tokens(_) => {
                let of = |key: Key| self.entries.get(&key).map_or(0, |entry| entry.tokens);
                let common = of(Key { run: None, ..wanted.key }).min(wanted.shared);
                if common == wanted.shared { of(wanted.key).min(wanted.known).max(common) } else { common }
            }
            Capacity::Sequences(_) => self.slot(wanted, alike).map_or(0, |(_, common)| common),
        };
        found.min(wanted.prompt.saturating_sub(1)) / self.block * self.block
    }

    /// The sequence that a request continues, and the number of their common tokens.
    fn slot(&self, wanted: &Wanted, alike: &Alike<'_>) -> Option<(Key, usize)> {
        let common = |(key, entry): (&Key, &CacheEntry)| {
            let common = if *key == wanted.key { wanted.known } else { alike(*key, wanted.key) };
            (*key, common.min(entry.tokens))
        };
        let free = self.entries.iter().filter(|(_, entry)| entry.pins == 0).map(common);
        let best = free.max_by_key(|(key, common)| (*common, std::cmp::Reverse(*key)))?;
        (best.1 as f64 > SIMILAR * wanted.prompt as f64).then_some(best)
    }

    /// Begins a request: the entries that it uses stay until it ends. Returns the number of tokens that need
    /// not be computed.
    pub(super) fn begin(&mut self, wanted: &Wanted, alike: &Alike<'_>) -> usize {
        let hit = self.hit(wanted, alike);
        match self.capacity {
            Capacity::Tokens(_) => {
                self.put(wanted.key, hit.max(wanted.shared), wanted.shared);
                let common = Key { run: None, ..wanted.key };
                if wanted.shared > 0 {
                    self.put(common, wanted.shared, 0);
                }
                self.pin(wanted, 1);
            }
            Capacity::Sequences(n) => {
                let taken = self.slot(wanted, alike).map(|(key, _)| key);
                let longest_ago = || self.by_use.values().copied().find(|key| self.entries[key].pins == 0);
                let full = self.entries.len() >= n;
                if let Some(key) = taken.or_else(|| if full { longest_ago() } else { None }) {
                    self.remove(key);
                }
                self.put(wanted.key, hit, 0);
                self.pin(wanted, 1);
            }
        }
        self.shrink();
        hit
    }

    /// Records what a request has read and said so far.
    pub(super) fn grow(&mut self, wanted: &Wanted, tokens: usize) {
        let base = if matches!(self.capacity, Capacity::Tokens(_)) { wanted.shared.min(tokens) } else { 0 };
        self.put(wanted.key, tokens, base);
        self.shrink();
    }

    /// Ends a request.
    pub(super) fn end(&mut self, wanted: &Wanted) {
        self.pin(wanted, -1);
        self.shrink();
    }

    fn pin(&mut self, wanted: &Wanted, by: isize) {
        for key in [wanted.key, Key { run: None, ..wanted.key }] {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.pins = entry.pins.saturating_add_signed(by);
            }
        }
    }

    fn put(&mut self, key: Key, tokens: usize, base: usize) {
        self.clock += 1;
        let entry =
            self.entries.entry(key).or_insert(CacheEntry { tokens: base, base, used: self.clock, pins: 0 });
        self.by_use.remove(&entry.used);
        self.stored = self.stored + tokens.max(base) - base - (entry.tokens - entry.base);
        (entry.tokens, entry.base, entry.used) = (tokens.max(base), base, self.clock);
        self.by_use.insert(self.clock, key);
    }

    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.stored -= entry.tokens - entry.base;
            self.by_use.remove(&entry.used);
        }
    }

    /// Evicts the least recently used entries that are not in use, from the end.
    fn shrink(&mut self) {
        let Capacity::Tokens(most) = self.capacity else { return };
        while self.stored > most {
            let entries = &self.entries;
            let Some(key) = self.by_use.values().copied().find(|key| entries[key].pins == 0) else { return };
            let entry = self.entries[&key];
            let left =
                (entry.tokens - entry.base).saturating_sub(self.stored - most) / self.block * self.block;
            if left == 0 {
                self.remove(key);
                continue;
            }
            let gone = entry.tokens - entry.base - left;
            self.stored -= gone;
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.tokens -= gone;
            }
        }
    }
}

/// A worker.
#[derive(Debug)]
pub(super) struct Worker<T> {
    pub(super) cache: Cache,
    /// Active requests.
    pub(super) busy: usize,
    pub(super) queue: VecDeque<T>,
    /// Time at which it may begin to read the next prompt.
    pub(super) reads_at: f64,
}

impl<T> Worker<T> {
    pub(super) fn new(capacity: Capacity, block: usize) -> Self {
        Self { cache: Cache::new(capacity, block), busy: 0, queue: VecDeque::new(), reads_at: 0.0 }
    }

    fn load(&self) -> usize {
        self.busy + self.queue.len()
    }
}

/// The worker for a request; `n` counts requests.
pub(super) fn route<T>(
    workers: &[Worker<T>],
    routing: Routing,
    n: usize,
    wanted: &Wanted,
    alike: &Alike<'_>,
) -> usize {
    /// Requests that a worker may have more than the least busy one.
    const MAX_EXCESS: usize = 4;
    match routing {
        Routing::RoundRobin => n % workers.len(),
        Routing::Session => {
            let Key { script, run, memory } = wanted.key;
            let bytes: Vec<u8> =
                [script, run.unwrap_or(usize::MAX), memory].iter().flat_map(|n| n.to_le_bytes()).collect();
            let hash = blake3::hash(&bytes);
            let first = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            (first % workers.len() as u64) as usize
        }
        Routing::Prefix => {
            let least = workers.iter().map(Worker::load).min().unwrap_or(0);
            let able = |worker: &Worker<T>| worker.load() <= least + MAX_EXCESS;
            let best =
                workers.iter().enumerate().filter(|(_, worker)| able(worker)).max_by_key(|(i, worker)| {
                    let hit = worker.cache.hit(wanted, alike);
                    (hit, std::cmp::Reverse(worker.load()), std::cmp::Reverse(*i))
                });
            best.map_or(0, |(i, _)| i)
        }
    }
}
