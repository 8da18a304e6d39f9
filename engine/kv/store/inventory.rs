//! What a cache folder holds: listing, showing, removing, bounding, verifying. For `greenroom cache`.
//!
//! What removes takes the folder for itself: no other process may use it meanwhile.

use super::cipher::{CacheKey, Cipher};
use super::log::Broken;
use super::manifest::{self, Manifest};
use super::pack::{self, Builder, Key};
use super::{Place, STORE_VERSION, block, block_path, block_place, files, loose_blocks, tail};
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::prefix::SegmentKind;
use crate::{Error, Result, SessionKey};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A folder of memories, opened to look after it. With a key, the memories that are encrypted with it.
pub struct Folder {
    dir: PathBuf,
    root: PathBuf,
    cipher: Cipher,
}

/// One stored session.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Hash that names its manifest.
    pub id: String,
    /// The run and agent, as given by their owner.
    pub session: SessionKey,
    /// Name of the model.
    pub model: String,
    /// KV layout of its first layer (heads × width : format).
    pub format: String,
    /// Tokens held.
    pub tokens: usize,
    /// Turns saved.
    pub turns: u64,
    /// Bytes of its manifest, blocks and tail.
    pub bytes: u64,
    /// Bytes of them that other sessions use too.
    pub shared_bytes: u64,
    /// Seconds that its tokens would take to compute again.
    pub seconds: f64,
    /// Seconds since the epoch of its last save.
    pub saved_at: u64,
    /// Bytes of it, shared ones in equal parts.
    share: f64,
}

/// All that is stored of one session, in words.
#[derive(Clone, Debug)]
pub struct Details {
    /// As [`Folder::list`] has it.
    pub entry: Entry,
    /// blake3 of the model file.
    pub model_identity: String,
    /// The kernels' contract.
    pub numerics: String,
    /// Its tenant, if it has one.
    pub tenant: String,
    /// Sealed blocks of 256 tokens: address, owners.
    pub blocks: Vec<(String, usize)>,
    /// Tokens of its tail.
    pub tail_tokens: usize,
    /// What it has read and said, in order: `template`, `message` or `reply`, number of tokens, text.
    pub segments: Vec<(&'static str, usize, String)>,
}

/// What `verify` found wrong, a line each, and how many files it read.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Files read.
    pub files: usize,
    /// Damaged or missing things, in words.
    pub problems: Vec<String>,
}

/// What a removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Sessions removed.
    pub sessions: usize,
    /// Bytes freed.
    pub bytes: u64,
}

/// Where images of blocks lie, with their bytes on disk: loose files before packs.
type Images = HashMap<Key, (Image, u64)>;

/// A manifest, and why it is not the latest state; or why it can't be read.
type Decoded = Result<(Manifest, Option<Broken>), String>;

enum Image {
    Loose(PathBuf),
    Packed(pack::Place),
}

impl Folder {
    /// The folder at `dir`; with a key, the part of it that is encrypted with that key.
    pub fn new(dir: &Path, key: Option<&CacheKey>) -> Self {
        let place = Place { dir: dir.to_owned(), key: key.cloned() };
        Self { dir: dir.to_owned(), root: place.root(), cipher: Cipher::new(key) }
    }

    /// All sessions; manifests that can't be read are left out ([`Folder::verify`] names them).
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let manifests = self.readable()?;
        let census = Census::new(&manifests, self.images()?);
        let mut entries: Vec<Entry> = manifests.iter().map(|(id, m)| self.entry(id, m, &census)).collect();
        entries.sort_by(|a, b| (&a.session.run, &a.session.agent).cmp(&(&b.session.run, &b.session.agent)));
        Ok(entries)
    }

    fn entry(&self, id: &str, m: &Manifest, census: &Census) -> Entry {
        let (size, owners) = (|hash: &BlockHash| census.size(*hash), &census.owners);
        let own = files::size(&super::manifest_path(&self.root, id))
            + m.tail.as_ref().map_or(0, |t| files::size(&self.root.join("tails").join(&t.file)));
        let shared = m.blocks.iter().filter(|hash| owners[*hash] > 1);
        let shares = m.blocks.iter().map(|hash| size(hash) as f64 / owners[hash] as f64);
        Entry {
            id: id.to_owned(),
            session: m.session(),
            model: m.owner.identity.model_name.clone(),
            format: m.owner.identity.layout.split(',').next().unwrap_or_default().to_owned(),
            tokens: m.n_tokens(),
            turns: m.worth.turns,
            bytes: m.blocks.iter().map(size).sum::<u64>() + own,
            shared_bytes: shared.map(size).sum(),
            seconds: m.n_tokens() as f64 * census.token_ms(&m.owner.identity.model) / 1e3,
            saved_at: m.worth.saved_at,
            share: shares.sum::<f64>() + own as f64,
        }
    }

    /// All about the session whose id begins with `id`, if there is just one.
    ///
    /// # Errors
    /// The folder can't be read, or there is none or more than one.
    pub fn show(&self, id: &str) -> Result<Details> {
        let manifests = self.readable()?;
        let found: Vec<_> = manifests.iter().filter(|(other, _)| other.starts_with(id)).collect();
        let [(id, m)] = found[..] else {
            let n = found.len();
            return Err(Error::store(format!(
                "{n} memories have an id that begins with `{id}`: see `cache ls`"
            )));
        };
        let census = Census::new(&manifests, self.images()?);
        let word = |kind| match kind {
            SegmentKind::Template => "template",
            SegmentKind::Message => "message",
            SegmentKind::Reply => "reply",
        };
        Ok(Details {
            entry: self.entry(id, m, &census),
            model_identity: m.owner.identity.model.clone(),
            numerics: m.owner.identity.numerics.clone(),
            tenant: m.owner.identity.salt.clone(),
            blocks: m.blocks.iter().map(|hash| (hash.hex(), census.owners[hash])).collect(),
            tail_tokens: m.tail.as_ref().map_or(0, |tail| tail.rows),
            segments: m.segments.iter().map(|s| (word(s.kind), s.ids.len(), s.text.clone())).collect(),
        })
    }

    /// Bytes of all files of the folder, whoever they belong to.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn bytes(&self) -> Result<u64> {
        Ok(files::list(&self.dir)?.iter().map(|path| files::size(path)).sum())
    }

    /// Removes the sessions that `select` picks, then all that no session needs: blocks without an owner, what a crash left
    /// behind, damaged files, and what older versions of the store, which can't be read any more, left.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn remove(&self, select: &dyn Fn(&Entry) -> bool) -> Result<Removed> {
        let _lock = self.lock()?;
        self.remove_locked(select)
    }

    /// Removes all memories, those of other keys too.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn clear(&self) -> Result<Removed> {
        let removed = self.remove(&|_| true)?;
        let mut bytes = removed.bytes;
        for other in self.others()? {
            let lock = files::open_lock(&other.join("lock"))?;
            self.own(&lock)?;
            bytes += remove_folder(&other)?;
        }
        Ok(Removed { bytes, ..removed })
    }

    /// Removes what no session needs, then sessions until the folder takes at most `limit` bytes: those first for which
    /// (seconds to compute again × expected use ÷ bytes) is least. A session is expected to be used the more, the more turns it
    /// has had, and the less, the longer ago the last one was (hyperbolically, in hours).
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn shrink(&self, limit: u64) -> Result<Removed> {
        let _lock = self.lock()?;
        let mut removed = self.remove_locked(&|_| false)?;
        let bytes = self.bytes()?;
        if bytes <= limit {
            return Ok(removed);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let worth = |e: &Entry| {
            let hours = now.saturating_sub(e.saved_at) as f64 / 3600.0;
            let use_ = e.turns as f64 / (1.0 + hours);
            (e.seconds * use_ + f64::MIN_POSITIVE) / e.share.max(1.0)
        };
        let mut entries = self.list()?;
        entries.sort_by(|a, b| worth(a).total_cmp(&worth(b)).then_with(|| a.saved_at.cmp(&b.saved_at)));
        // A shared block goes with its last owner, so removing what seems enough may not be.
        let mut left = entries.into_iter();
        while self.bytes()? > limit {
            let excess = (self.bytes()? - limit) as f64;
            let mut chosen = HashSet::new();
            let mut sum = 0.0;
            while let Some(entry) = (sum < excess).then(|| left.next()).flatten() {
                sum += entry.share;
                chosen.insert(entry.id);
            }
            if chosen.is_empty() {
                break; // what is left belongs to other keys
            }
            let more = self.remove_locked(&|entry| chosen.contains(&entry.id))?;
            removed =
                Removed { sessions: removed.sessions + more.sessions, bytes: removed.bytes + more.bytes };
        }
        Ok(removed)
    }

    /// Takes the folder for this process alone.
    fn lock(&self) -> Result<Option<File>> {
        if !self.root.is_dir() {
            return Ok(None);
        }
        let lock = files::open_lock(&self.root.join("lock"))?;
        self.own(&lock)?;
        Ok(Some(lock))
    }

    fn own(&self, lock: &File) -> Result<()> {
        lock.try_lock().map_err(|_| {
            Error::store(format!(
                "the cache folder {} is in use by a running greenroom; try again when it ended",
                self.dir.display()
            ))
        })
    }

    fn remove_locked(&self, select: &dyn Fn(&Entry) -> bool) -> Result<Removed> {
        let mut removed = Removed::default();
        for entry in self.list()?.iter().filter(|entry| select(entry)) {
            removed.bytes += files::remove(&super::manifest_path(&self.root, &entry.id))?;
            removed.sessions += 1;
        }
        removed.bytes += self.sweep()?;
        for old in self.others()?.iter().filter(|path| version(path).is_some_and(|v| v < STORE_VERSION)) {
            removed.bytes += remove_folder(old)?;
        }
        Ok(removed)
    }

    /// Removes what no manifest names; returns the bytes freed.
    fn sweep(&self) -> Result<u64> {
        let left = self.readable()?;
        let blocks: HashSet<BlockHash> = left.iter().flat_map(|(_, m)| m.blocks.iter().copied()).collect();
        let tails: HashSet<&str> =
            left.iter().filter_map(|(_, m)| Some(m.tail.as_ref()?.file.as_str())).collect();
        let manifests: HashSet<PathBuf> =
            left.iter().map(|(id, _)| super::manifest_path(&self.root, id)).collect();
        let mut freed = 0;
        let loose: HashMap<PathBuf, Key> =
            loose_blocks(&self.root)?.into_iter().map(|(key, path)| (path, key)).collect();
        for part in Part::ALL {
            for path in files::list(&self.root.join(super::part_folder(part)))? {
                if loose.get(&path).is_none_or(|(hash, _)| !blocks.contains(hash)) {
                    freed += files::remove(&path)?;
                }
            }
        }
        let named = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for path in files::list(&self.root.join("tails"))? {
            if !tails.contains(named(&path).as_str()) {
                freed += files::remove(&path)?;
            }
        }
        for path in files::list(&self.root.join("manifests"))? {
            if !manifests.contains(&path) {
                freed += files::remove(&path)?;
            }
        }
        for folder in ["damaged", "runs"] {
            for path in files::list(&self.root.join(folder))? {
                freed += files::remove(&path)?;
            }
        }
        let loose: HashSet<Key> = loose.into_values().filter(|(hash, _)| blocks.contains(hash)).collect();
        freed += self.sweep_packs(&|key| blocks.contains(&key.0) && !loose.contains(key))?;
        Ok(freed)
    }

    /// Writes packs that hold something dead anew, without it; returns the bytes freed.
    fn sweep_packs(&self, live: &dyn Fn(&Key) -> bool) -> Result<u64> {
        let dir = self.root.join("packs");
        let (mut before, mut builder, mut gone) = (0, Builder::default(), Vec::new());
        for path in files::list(&dir)?.into_iter() {
            let entries = pack::index(&path).unwrap_or_default();
            if !entries.is_empty() && entries.iter().all(|(key, _)| live(key)) {
                continue;
            }
            before += files::size(&path);
            for (key, place) in entries.iter().filter(|(key, _)| live(key)) {
                let image = place.read().map_err(|e| files::io_error("read", &path, e))?;
                builder.push(*key, &image);
            }
            gone.push(path);
        }
        let kept = builder.len() as u64;
        builder.write(&dir)?;
        gone.iter().try_for_each(|path| files::remove(path).map(drop))?;
        Ok(before.saturating_sub(kept))
    }

    /// Reads every file and checks every checksum; changes nothing.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn verify(&self) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let images = self.images()?;
        let mut seen = HashSet::new();
        for (key, (image, _)) in &images {
            let (bytes, name) = match image {
                Image::Loose(path) => {
                    verdict.files += 1;
                    (fs::read(path), files::short(path))
                }
                Image::Packed(place) => {
                    verdict.files += usize::from(seen.insert(place.pack.clone()));
                    (place.read(), format!("block {} in {}", key.0.hex(), files::short(&place.pack)))
                }
            };
            let checked = bytes
                .map_err(|e| e.to_string())
                .and_then(|bytes| block::verify(&self.cipher.open(&block_place(*key), bytes)?, key.0));
            if let Err(reason) = checked {
                verdict.problems.push(format!("{name}: {reason}"));
            }
        }
        for path in &pack::list(&self.root.join("packs"))? {
            if let Err(reason) = pack::index(path) {
                verdict.problems.push(format!("{}: {reason}", files::short(path)));
            }
        }
        for (path, manifest) in self.manifests()? {
            verdict.files += 1;
            match manifest {
                Ok((manifest, broken)) => {
                    // A torn record is what a crash leaves: the turn before stands.
                    let damaged = broken.filter(|broken| !broken.torn);
                    let told = damaged.map(|broken| format!("{}: {}", files::short(&path), broken.reason));
                    verdict.problems.extend(told);
                    self.verify_parts(&manifest, &images, &mut verdict);
                }
                Err(reason) => verdict.problems.push(format!("{}: {reason}", files::short(&path))),
            }
        }
        verdict.problems.sort();
        Ok(verdict)
    }

    /// Checks that what a manifest names is there.
    fn verify_parts(&self, manifest: &Manifest, images: &Images, verdict: &mut Verdict) {
        let owner = format!("agent `{}` of run {}", manifest.owner.agent, manifest.owner.run);
        let layout = &manifest.owner.identity.layout;
        // Where all layers have a window there is one part, as where none has.
        let windows = layout.split(',').filter(|layer| layer.contains('~')).count();
        let mixed = (1..layout.split(',').count()).contains(&windows);
        let parts: &[Part] = if mixed { &Part::ALL } else { &[Part::Lasting] };
        for hash in &manifest.blocks {
            if parts.iter().any(|part| !images.contains_key(&(*hash, *part))) {
                verdict.problems.push(format!("block {} of {owner} is missing", hash.hex()));
            }
        }
        if let Some(tail) = &manifest.tail {
            verdict.files += 1;
            let bytes = fs::read(self.root.join("tails").join(&tail.file)).map_err(|e| e.to_string());
            let checked = bytes.and_then(|b| tail::check(&b, tail, &self.cipher, &mut |_| Ok(())));
            if let Err(reason) = checked {
                verdict.problems.push(format!("the tail of {owner}: {reason}"));
            }
        }
    }

    /// Folders of other versions and keys.
    ///
    /// # Errors
    /// The folder can't be read.
    fn others(&self) -> Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(files::io_error("read", &self.dir, e)),
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.filter(|path| version(path).is_some() && *path != self.root).collect())
    }

    /// Number of folders whose memories are encrypted with other keys (or not at all, if this one has a key).
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn other_keys(&self) -> Result<usize> {
        Ok(self.others()?.iter().filter(|path| version(path) == Some(STORE_VERSION)).count())
    }

    /// Manifests that can be read, with their ids.
    fn readable(&self) -> Result<Vec<(String, Manifest)>> {
        let id = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let all = self.manifests()?.into_iter();
        Ok(all.filter_map(|(path, manifest)| Some((id(&path), manifest.ok()?.0))).collect())
    }

    /// Manifests with their paths.
    fn manifests(&self) -> Result<Vec<(PathBuf, Decoded)>> {
        let read_one = |path: PathBuf| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let manifest = fs::read(&path)
                .map_err(|e| e.to_string())
                .and_then(|bytes| manifest::decode(&bytes, &name, &self.cipher))
                .map(|(manifest, _, broken)| (manifest, broken));
            (path, manifest)
        };
        // A temporary file that a crash left is no manifest.
        let logs = files::list(&self.root.join("manifests"))?.into_iter();
        Ok(logs.filter(|path| path.extension().is_some_and(|e| e == "log")).map(read_one).collect())
    }

    fn images(&self) -> Result<Images> {
        let mut images = Images::new();
        for path in pack::list(&self.root.join("packs"))? {
            for (key, place) in pack::index(&path).unwrap_or_default() {
                let len = place.len;
                images.insert(key, (Image::Packed(place), len));
            }
        }
        for (key, path) in loose_blocks(&self.root)? {
            let len = files::size(&path);
            debug_assert_eq!(path, block_path(&self.root, key));
            images.insert(key, (Image::Loose(path), len));
        }
        Ok(images)
    }
}

/// What the sessions of a folder have in common.
struct Census {
    images: Images,
    /// How many sessions name each block.
    owners: HashMap<BlockHash, usize>,
    /// Milliseconds of a token by model: how many sessions were measured, and their sum. One measure alone is noisy.
    token_ms: HashMap<String, (f64, f64)>,
}

impl Census {
    fn new(manifests: &[(String, Manifest)], images: Images) -> Self {
        let (mut owners, mut token_ms) = (HashMap::new(), HashMap::new());
        for (_, manifest) in manifests {
            for hash in manifest.blocks.iter().collect::<HashSet<_>>() {
                *owners.entry(*hash).or_default() += 1;
            }
            let measured: &mut (f64, f64) =
                token_ms.entry(manifest.owner.identity.model.clone()).or_default();
            *measured = (measured.0 + 1.0, measured.1 + manifest.worth.token_ms);
        }
        Self { images, owners, token_ms }
    }

    /// Bytes of all parts of a block on disk.
    fn size(&self, hash: BlockHash) -> u64 {
        Part::ALL.iter().filter_map(|part| self.images.get(&(hash, *part))).map(|(_, len)| len).sum()
    }

    fn token_ms(&self, model: &str) -> f64 {
        self.token_ms.get(model).map_or(0.0, |(n, sum)| sum / n)
    }
}

/// Store version of a folder in a cache folder; `None`: it is not one of ours.
fn version(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix('v')?;
    path.is_dir().then(|| name.split('-').next()?.parse().ok())?
}

fn remove_folder(path: &Path) -> Result<u64> {
    let bytes = files::list(path)?.iter().map(|path| files::size(path)).sum();
    fs::remove_dir_all(path).map_err(|e| files::io_error("remove", path, e))?;
    Ok(bytes)
}
