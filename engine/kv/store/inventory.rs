//! What a cache folder holds: listing, removing, verifying. For `greenroom cache`.

use super::manifest::{self, Manifest};
use super::{STORE_VERSION, block_path, io_error, open_lock, part_folder, session_id, tail};
use crate::kv::layout::Part;
use crate::{Error, Result, SessionKey};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

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
    /// Bytes of its blocks and tail.
    pub bytes: u64,
    /// Bytes of them that other sessions use too.
    pub shared_bytes: u64,
    /// Seconds since the epoch of its last save.
    pub saved_at: u64,
}

/// What `verify` found wrong, a line each, and how many files it read.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Files read.
    pub files: usize,
    /// Damaged or missing things, in words.
    pub problems: Vec<String>,
}

/// All sessions of a folder; manifests that can't be read are left out ([`verify`] names them).
///
/// # Errors
/// The folder can't be read.
pub fn list(dir: &Path) -> Result<Vec<Entry>> {
    let root = root(dir);
    let manifests: Vec<Manifest> = manifests(&root)?.into_iter().filter_map(|(_, m)| m.ok()).collect();
    let mut owners: HashMap<&str, usize> = HashMap::new();
    for manifest in &manifests {
        for block in manifest.blocks.iter().collect::<HashSet<_>>() {
            *owners.entry(block).or_default() += 1;
        }
    }
    let part_size = |hex: &str, part| fs::metadata(block_path(&root, part, hex)).map_or(0, |m| m.len());
    let size = |hex: &str| Part::ALL.into_iter().map(|part| part_size(hex, part)).sum::<u64>();
    let entry = |m: &Manifest| {
        let tail_bytes = m.tail.as_ref().and_then(|t| tail::size(&root, t).ok()).unwrap_or(0);
        let shared = m.blocks.iter().filter(|b| owners[b.as_str()] > 1);
        Entry {
            id: session_id(&m.session()),
            session: m.session(),
            model: m.identity.model_name.clone(),
            format: m.identity.layout.split(',').next().unwrap_or_default().to_owned(),
            tokens: m.n_tokens,
            bytes: m.blocks.iter().map(|b| size(b)).sum::<u64>() + tail_bytes,
            shared_bytes: shared.map(|b| size(b)).sum(),
            saved_at: m.saved_at,
        }
    };
    let mut entries: Vec<Entry> = manifests.iter().map(entry).collect();
    entries.sort_by(|a, b| (&a.session.run, &a.session.agent).cmp(&(&b.session.run, &b.session.agent)));
    Ok(entries)
}

/// Removes the sessions that `select` picks, then every block and tail that no manifest names any more; once none is left,
/// also what older versions of the store, which can't be read any more, left behind.
/// Returns the number of sessions and the bytes freed.
///
/// # Errors
/// Another process uses the folder, or a file can't be removed.
pub fn remove(dir: &Path, select: &dyn Fn(&Entry) -> bool) -> Result<(usize, u64)> {
    let root = root(dir);
    if !root.is_dir() {
        return Ok((0, 0));
    }
    let lock = open_lock(&root)?;
    lock.try_lock().map_err(|_| {
        Error::store(format!(
            "the cache folder {} is in use by a running greenroom; try again when it ended",
            dir.display()
        ))
    })?;
    let mut freed = 0;
    let chosen: Vec<Entry> = list(dir)?.into_iter().filter(|e| select(e)).collect();
    for entry in &chosen {
        freed += unlink(&root.join("manifests").join(format!("{}.json", entry.id)))?;
    }
    let left: Vec<Manifest> = manifests(&root)?.into_iter().filter_map(|(_, m)| m.ok()).collect();
    let blocks: HashSet<&str> = left.iter().flat_map(|m| m.blocks.iter().map(String::as_str)).collect();
    let tails: HashSet<&str> = left.iter().filter_map(|m| Some(m.tail.as_ref()?.file.as_str())).collect();
    for path in block_files(&root)? {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !blocks.contains(stem.as_str()) {
            freed += unlink(&path)?;
        }
    }
    for path in files(&root.join("tails"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !tails.contains(name.as_str()) {
            freed += unlink(&path)?;
        }
    }
    for path in files(&root.join("damaged"))? {
        freed += unlink(&path)?;
    }
    if left.is_empty() {
        for version in 1..STORE_VERSION {
            let old = dir.join(format!("v{version}"));
            freed += files(&old)?.iter().map(|path| fs::metadata(path).map_or(0, |m| m.len())).sum::<u64>();
            match fs::remove_dir_all(&old) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &old, e));
                }
                _ => {}
            }
        }
    }
    Ok((chosen.len(), freed))
}

/// Reads every file and checks every checksum; changes nothing.
///
/// # Errors
/// The folder can't be read.
pub fn verify(dir: &Path) -> Result<Verdict> {
    let root = root(dir);
    let mut verdict = Verdict::default();
    for path in block_files(&root)? {
        verdict.files += 1;
        if let Err(reason) = read(&path).and_then(|bytes| super::block::verify(&bytes, &path)) {
            verdict.problems.push(format!("{}: {reason}", super::short(&path)));
        }
    }
    for (path, manifest) in manifests(&root)? {
        verdict.files += 1;
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(reason) => {
                verdict.problems.push(format!("{}: {reason}", super::short(&path)));
                continue;
            }
        };
        let owner = format!("agent `{}` of run {}", manifest.agent, manifest.run);
        // Where all layers have a window there is one part, as where none has.
        let windows = manifest.identity.layout.split(',').filter(|layer| layer.contains('~')).count();
        let mixed = (1..manifest.identity.layout.split(',').count()).contains(&windows);
        let parts: &[Part] = if mixed { &Part::ALL } else { &[Part::Lasting] };
        for hex in &manifest.blocks {
            if parts.iter().any(|part| !block_path(&root, *part, hex).is_file()) {
                verdict.problems.push(format!("block {hex} of {owner} is missing"));
            }
        }
        if let Some(tail) = &manifest.tail {
            verdict.files += 1;
            let checked = read(&root.join("tails").join(&tail.file)).and_then(|b| tail::verify(&b, tail));
            if let Err(reason) = checked {
                verdict.problems.push(format!("the tail of {owner}: {reason}"));
            }
        }
    }
    Ok(verdict)
}

fn root(dir: &Path) -> PathBuf {
    dir.join(format!("v{STORE_VERSION}"))
}

/// Files of all parts of blocks.
fn block_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for part in Part::ALL {
        all.extend(files(&root.join(part_folder(part)))?);
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| e.to_string())
}

fn unlink(path: &Path) -> Result<u64> {
    let bytes = fs::metadata(path).map_or(0, |m| m.len());
    fs::remove_file(path).map_err(|e| io_error("remove", path, e))?;
    Ok(bytes)
}

/// Manifests with their paths; those that can't be read come with the reason.
fn manifests(root: &Path) -> Result<Vec<(PathBuf, Result<Manifest, String>)>> {
    let read_one = |path: PathBuf| {
        let manifest = read(&path).and_then(|bytes| manifest::decode(&bytes));
        (path, manifest)
    };
    Ok(files(&root.join("manifests"))?.into_iter().map(read_one).collect())
}

/// All files below a folder (none if it does not exist), in order.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io_error("read", dir, e)),
    };
    let mut out = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| io_error("read", dir, e))?.path();
        if path.is_dir() {
            out.extend(files(&path)?);
        } else {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}
