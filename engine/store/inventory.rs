//! Listing and showing of a cache folder, for `greenroom cache`. Removing is in [`super::sweep`] and
//! [`super::bound`], checking in [`super::verify`].

use super::cipher::{CacheKey, Cipher};
use super::contents::{Contents, SizedFile};
use super::disk::Disk;
use super::log::Broken;
use super::manifest::{self, Manifest};
use super::medium::{Lease, Logs};
use super::numerics::Numerics;
use super::objects::ObjectsAddress;
use super::pack;
use super::{Failure, STORE_VERSION, StoreLocation, files, short};
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::kv::table::BlockKey;
use crate::text::prefix::SegmentKind;
use crate::{Error, ErrorKind, Result, SessionKey};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of memories, or a place for them in an object store, opened for maintenance. With a key, the
/// memories that are encrypted with it.
///
/// # Examples
/// ```
/// # use greenroom_engine::{cache::Folder, *};
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let dir = tempfile::tempdir().unwrap();
/// # let config = EngineConfig::new(ModelSource::Bundled("tiny", model)).cache_dir(dir.path());
/// # let engine = Engine::open(config)?;
/// # engine.agent("demo", "ada").max_tokens(8).extend("Rolf: Who are you?")?.blocking_finish()?;
/// # drop(engine);
/// let folder = Folder::new(dir.path(), None);
/// for stored in folder.list()? {
///     println!("{} of {}: {} tokens", stored.session.agent, stored.session.run, stored.tokens);
/// }
/// assert_eq!(folder.verify()?.problems.len(), 0);
/// folder.shrink(0)?; // removes everything
/// assert_eq!(folder.list()?.len(), 0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Folder {
    pub(super) place: StoreLocation,
    pub(super) medium: Arc<dyn Logs>,
    pub(super) cipher: Cipher,
}

/// One stored session.
#[derive(Clone, Debug)]
pub struct StoredSession {
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
    pub(super) share: f64,
    /// Bytes of rows that only serve to go back.
    pub(crate) rows_to_go_back: u64,
}

/// All that is stored of one session, as text.
#[derive(Clone, Debug)]
pub struct Details {
    /// The entry in [`Folder::list`].
    pub entry: StoredSession,
    /// blake3 of the model file.
    pub model_identity: String,
    /// The devices that computed it, and the constants that its keys are coded by.
    pub numerics: String,
    /// Its tenant, if it has one.
    pub tenant: String,
    /// Sealed blocks of 256 tokens: address, owners.
    pub blocks: Vec<(String, usize)>,
    /// States of recurrent layers; 0: the model has none.
    pub n_states: usize,
    /// Tokens of its tail.
    pub tail_tokens: usize,
    /// Segments that it has read and said, in order: `template`, `message`, `reply` or `raw`, number of
    /// tokens, text.
    pub segments: Vec<(&'static str, usize, String)>,
}

/// Sessions with their manifests.
type Sessions = Vec<(String, Manifest)>;

/// The sessions of a folder, and what else takes room there.
pub(super) struct Inventory {
    pub(super) entries: Vec<StoredSession>,
    /// Bytes of blocks and rows that no manifest names: of active turns, or left by a process that ended.
    pub(super) unnamed: u64,
    /// Number of folders, manifests and packs that can't be read.
    pub(super) unread: usize,
}

impl Folder {
    /// The folder at `dir`; with a key, the part of it that is encrypted with that key.
    pub fn new(dir: &Path, key: Option<&CacheKey>) -> Self {
        let place = StoreLocation::new(dir.to_owned(), key.cloned(), None);
        let medium = Arc::new(Disk::at(&place.root()));
        Self::on(place, medium)
    }

    /// The memories in an object store that are encrypted with a key; `front` is the folder of copies of
    /// them.
    ///
    /// # Errors
    /// It can't be reached, or is being cleaned.
    pub fn in_objects(address: &ObjectsAddress, front: &Path, key: Option<&CacheKey>) -> Result<Self> {
        let place = StoreLocation::new(front.to_owned(), key.cloned(), Some(address.clone()));
        let medium = place.open()?;
        Ok(Self::on(place, medium))
    }

    pub(super) fn on(place: StoreLocation, medium: Arc<dyn Logs>) -> Self {
        let cipher = Cipher::new(place.key.as_ref());
        Self { place, medium, cipher }
    }

    /// All sessions; manifests that can't be read are left out ([`Folder::verify`] names them).
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn list(&self) -> Result<Vec<StoredSession>> {
        let mut entries = self.entries().entries;
        entries.sort_by(|a, b| (&a.session.run, &a.session.agent).cmp(&(&b.session.run, &b.session.agent)));
        Ok(entries)
    }

    /// All sessions whose manifests can be read, in no order.
    pub(super) fn entries(&self) -> Inventory {
        let (manifests, census) = self.sessions();
        let entries = manifests.iter().map(|(id, m)| self.entry(id, m, &census)).collect();
        Inventory { entries, unnamed: census.unnamed, unread: census.unread }
    }

    fn entry(&self, id: &str, m: &Manifest, census: &Census) -> StoredSession {
        let (size, owners) = (|hash: &BlockHash| census.size(*hash), &census.owners);
        let own = census.own.get(id).copied().unwrap_or(0);
        let hashes = m.hashes();
        let shared = hashes.iter().filter(|hash| owners[*hash] > 1);
        let shares = hashes.iter().map(|hash| size(hash) as f64 / owners[hash] as f64);
        StoredSession {
            id: id.to_owned(),
            session: m.session(),
            model: m.owner.identity.model_name.clone(),
            format: m.owner.identity.layout.split(',').next().unwrap_or_default().to_owned(),
            tokens: m.n_tokens(),
            turns: m.worth.turns,
            bytes: hashes.iter().map(size).sum::<u64>() + own,
            shared_bytes: shared.map(size).sum(),
            seconds: m.n_tokens() as f64 * census.token_ms(&m.owner.identity.model) / 1e3,
            saved_at: m.worth.saved_at,
            share: shares.sum::<f64>() + own as f64,
            rows_to_go_back: census.rows_to_go_back.get(id).copied().unwrap_or(0),
        }
    }

    /// All about the session whose id begins with `id`, if there is just one.
    ///
    /// # Errors
    /// The folder can't be read, or there is none or more than one.
    pub fn show(&self, id: &str) -> Result<Details> {
        let (manifests, census) = self.sessions();
        let found: Vec<_> = manifests.iter().filter(|(other, _)| other.starts_with(id)).collect();
        let [(id, m)] = found[..] else {
            let n = found.len();
            return Err(Error::store(format!(
                "{n} memories have an id that begins with `{id}`; see `cache ls`"
            )));
        };
        let word = |kind| match kind {
            SegmentKind::Template => "template",
            SegmentKind::Message => "message",
            SegmentKind::Reply => "reply",
            SegmentKind::Raw => "raw",
        };
        Ok(Details {
            entry: self.entry(id, m, &census),
            model_identity: m.owner.identity.model.clone(),
            numerics: m.owner.identity.numerics.clone(),
            tenant: m.owner.identity.salt.clone(),
            blocks: m.blocks.iter().map(|hash| (hash.hex(), census.owners[hash])).collect(),
            n_states: m.states.len(),
            tail_tokens: m.tail.as_ref().map_or(0, |tail| tail.rows),
            segments: m.segments.iter().map(|s| (word(s.kind), s.ids.len(), s.text.to_string())).collect(),
        })
    }

    /// Bytes of all files of the folder, whatever they belong to; in an object store, of this key.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn bytes(&self) -> Result<u64> {
        if self.place.objects.is_some() {
            return Ok(self.medium.list("")?.iter().map(|(_, bytes)| bytes).sum());
        }
        files::bytes_below(&files::resolved(&self.place.dir))
    }

    /// Number of folders whose memories are encrypted with other keys (or not at all, if this one has a key).
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn other_keys(&self) -> Result<usize> {
        Ok(self.others()?.iter().filter(|(_, version)| *version == STORE_VERSION).count())
    }

    /// Folders of other versions and keys, with their versions. Those in an object store are left to the
    /// holders of their keys.
    ///
    /// # Errors
    /// The folder can't be read.
    pub(super) fn others(&self) -> Result<Vec<(PathBuf, u32)>> {
        if self.place.objects.is_some() {
            return Ok(Vec::new());
        }
        let version = |entry: &files::DirEntry| {
            let name = entry.name.to_str()?.strip_prefix('v')?;
            entry.is_folder().then(|| name.split('-').next()?.parse().ok())?
        };
        let entries = files::entries(&files::resolved(&self.place.dir))?.into_iter();
        let own = self.place.root_name();
        let others = entries.filter(|entry| entry.name != *own);
        Ok(others
            .filter_map(|entry| Some((version(&entry)?, entry.path)))
            .map(|(v, path)| (path, v))
            .collect())
    }

    /// Takes the folder for this process alone.
    pub(super) fn lock(&self) -> Result<Lease> {
        self.medium.alone()?.ok_or_else(|| self.in_use())
    }

    pub(super) fn in_use(&self) -> Error {
        let reason = format!("{} is in use by a running greenroom; try again when it has ended", self.place);
        Error::new(ErrorKind::InUse, reason)
    }

    /// A manifest, and why it is not the latest state.
    pub(super) fn read_manifest(&self, id: &str, name: &str) -> Result<(Manifest, Option<Broken>), Failure> {
        let bytes = self.medium.open(name)?.whole(manifest::MAX_MANIFEST_BYTES)?;
        let (manifest, _, broken) = manifest::decode(&bytes, id, &self.cipher)?;
        Ok((manifest, broken))
    }

    /// Numerics of a model's memories, those that were saved last first.
    pub(crate) fn numerics_of(&self, model: &str) -> Vec<Numerics> {
        let (mut found, _) = self.manifests();
        found.retain(|(_, manifest)| manifest.owner.identity.model == model);
        found.sort_by_key(|(_, manifest)| Reverse(manifest.worth.saved_at));
        found.iter().map(|(_, manifest)| Numerics::parse(&manifest.owner.identity.numerics)).collect()
    }

    /// The sessions whose manifests can be read, and what they have in common.
    fn sessions(&self) -> (Sessions, Census) {
        let (sessions, mut contents) = self.manifests();
        let sizes = self.sizes(&mut contents);
        let census = Census::new(&sessions, &contents, sizes);
        (sessions, census)
    }

    /// The sessions whose manifests can be read, and everything else there.
    fn manifests(&self) -> (Sessions, Contents) {
        let mut contents = Contents::read(&*self.medium);
        contents.unread.iter().for_each(|reason| tracing::warn!("{reason}"));
        let mut sessions = Vec::new();
        for (id, SizedFile { name, .. }) in &contents.manifests {
            match self.read_manifest(id, name) {
                Ok((manifest, _)) => sessions.push((id.clone(), manifest)),
                Err(Failure::Missing) => {}
                Err(failure) => {
                    let found = format!("{}: {failure}", short(name));
                    tracing::warn!("{found}");
                    contents.unread.extend(matches!(failure, Failure::Unreadable(_)).then_some(found));
                }
            }
        }
        (sessions, contents)
    }

    /// Bytes of parts of blocks on disk; of twins the one that has its own file counts.
    fn sizes(&self, contents: &mut Contents) -> HashMap<BlockKey, u64> {
        let mut sizes: HashMap<BlockKey, u64> = HashMap::new();
        for SizedFile { name, .. } in &contents.packs {
            match pack::index(&*self.medium, name) {
                Ok(entries) => sizes.extend(entries.into_iter().map(|(key, place)| (key, place.len))),
                Err(Failure::Unreadable(reason)) => {
                    contents.unread.push(format!("{}: {reason}", short(name)));
                }
                Err(Failure::Missing | Failure::Damaged(_)) => {}
            }
        }
        sizes.extend(contents.blocks.iter().map(|(key, file)| (*key, file.bytes)));
        sizes
    }
}

/// Figures over all sessions of a folder.
struct Census {
    sizes: HashMap<BlockKey, u64>,
    /// Number of sessions that name each block.
    owners: HashMap<BlockHash, usize>,
    /// Bytes of each session's manifest and tails.
    own: HashMap<String, u64>,
    /// Bytes of the rows that each session keeps only to go back.
    rows_to_go_back: HashMap<String, u64>,
    /// Milliseconds of a token by model: how many sessions were measured, and their sum. One measure alone is
    /// noisy.
    token_ms: HashMap<String, (f64, f64)>,
    /// Bytes of blocks and rows that no manifest names.
    unnamed: u64,
    /// Number of folders, manifests and packs that can't be read.
    unread: usize,
}

impl Census {
    fn new(manifests: &[(String, Manifest)], contents: &Contents, sizes: HashMap<BlockKey, u64>) -> Self {
        let (mut owners, mut own, mut token_ms) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut rows_to_go_back = HashMap::new();
        let files = contents.manifests.iter().chain(&contents.tails);
        let bytes: HashMap<&str, u64> = files.map(|(name, file)| (&**name, file.bytes)).collect();
        for (id, manifest) in manifests {
            let names = manifest.tails().map(|tail| &*tail.file).chain([&**id]);
            own.insert(id.clone(), names.filter_map(|name| bytes.get(name)).sum());
            let earlier = manifest.earlier.iter().filter_map(|tail| bytes.get(&*tail.file));
            rows_to_go_back.insert(id.clone(), earlier.sum());
            for hash in manifest.hashes() {
                *owners.entry(hash).or_default() += 1;
            }
            let measured: &mut (f64, f64) =
                token_ms.entry(manifest.owner.identity.model.clone()).or_default();
            *measured = (measured.0 + 1.0, measured.1 + manifest.worth.token_ms);
        }
        let named: HashSet<&str> =
            manifests.iter().flat_map(|(_, m)| m.tails().map(|tail| &*tail.file)).collect();
        let rows = contents
            .tails
            .iter()
            .filter(|(name, _)| !named.contains(name.as_str()))
            .map(|(_, file)| file.bytes);
        let blocks = sizes.iter().filter(|(key, _)| !owners.contains_key(&key.0)).map(|(_, bytes)| *bytes);
        let unnamed = rows.chain(blocks).sum();
        Self { sizes, owners, own, rows_to_go_back, token_ms, unnamed, unread: contents.unread.len() }
    }

    /// Bytes of all parts of a block on disk.
    fn size(&self, hash: BlockHash) -> u64 {
        Part::ALL.iter().filter_map(|part| self.sizes.get(&(hash, *part))).sum()
    }

    fn token_ms(&self, model: &str) -> f64 {
        self.token_ms.get(model).map_or(0.0, |(n, sum)| sum / n)
    }
}
