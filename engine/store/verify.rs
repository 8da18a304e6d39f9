//! Reading every copy of everything in a cache folder, and checking every checksum; changes nothing.

use super::contents::{Contents, SizedFile};
use super::inventory::Folder;
use super::log::Broken;
use super::manifest::Manifest;
use super::source::Input;
use super::tail::{self, TailRef};
use super::{Failure, pack, read_check, secret, short, verify_image};
use crate::Result;
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::kv::table::BlockKey;
use std::collections::{HashMap, HashSet};

/// Findings of `verify`: problems, a line each, and the number of files that were read.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Files read.
    pub files: usize,
    /// Things that are damaged, missing, unreadable or unknown, as text.
    pub problems: Vec<String>,
}

impl Verdict {
    /// Counts a file, and a problem if there is one. (A file that disappeared while the folder was read was
    /// no longer needed.)
    fn file(&mut self, name: &str, checked: Result<(), Failure>) {
        self.files += 1;
        self.part(short(name), checked);
    }

    fn part(&mut self, name: &str, checked: Result<(), Failure>) {
        match checked {
            Ok(()) | Err(Failure::Missing) => {}
            Err(failure) => self.problems.push(format!("{name}: {failure}")),
        }
    }
}

impl Folder {
    /// Reads every file, twins too, and checks every checksum; tells what is missing and what does not belong
    /// here. Changes nothing.
    ///
    /// # Errors
    /// None.
    pub fn verify(&self) -> Result<Verdict> {
        let contents = Contents::read(&*self.medium);
        let mut verdict = Verdict { files: 0, problems: contents.unread.clone() };
        let blocks = self.verify_blocks(&contents, &mut verdict);
        self.verify_sessions(&contents, &blocks, &mut verdict);
        for (root, file) in &contents.checks {
            let read = |input: &mut Input| read_check(input, *root).map(drop);
            verdict.file(&file.name, self.medium.open(&file.name).and_then(|mut input| read(&mut input)));
        }
        for SizedFile { name, bytes } in &contents.locks {
            let empty = if *bytes == 0 {
                Ok(())
            } else {
                Err("a lock file must be empty, but this one is not".into())
            };
            verdict.file(name, empty);
        }
        for SizedFile { name, bytes } in &contents.secrets {
            let found = format!("it has {bytes} bytes; expected {}", secret::LEN);
            verdict.file(name, if *bytes == secret::LEN { Ok(()) } else { Err(found.into()) });
        }
        // Those are empty, or would be among what is foreign; what a crash left is not a problem.
        verdict.files += contents.runs.len() + contents.temporary.len();
        for (name, reason) in &contents.foreign {
            verdict.file(name, Err(reason.as_str().into()));
        }
        let unknown = contents.unknown.iter().map(|name| format!("{name}: not a file of the cache"));
        verdict.problems.extend(unknown);
        verdict.problems.sort();
        Ok(verdict)
    }

    /// Checks all copies of all blocks; returns which there are.
    fn verify_blocks(&self, contents: &Contents, verdict: &mut Verdict) -> HashSet<BlockKey> {
        let mut found = HashSet::new();
        let check = |input: &mut Input, key: BlockKey, span| verify_image(&self.cipher, input, key, span);
        for (key, file) in &contents.blocks {
            found.insert(*key);
            let checked = self.medium.open(&file.name).and_then(|mut input| {
                let len = input.len();
                check(&mut input, *key, (0, len))
            });
            verdict.file(&file.name, checked);
        }
        for SizedFile { name, .. } in &contents.packs {
            let index = pack::verify(&*self.medium, name);
            let entries = index.as_ref().map_or(&[][..], |entries| entries);
            for (key, place) in entries {
                found.insert(*key);
                let opened = place.open(&*self.medium);
                let checked = opened.and_then(|(mut input, span)| check(&mut input, *key, span));
                verdict.part(&format!("block {} in {}", key.0.hex(), short(name)), checked);
            }
            verdict.file(name, index.map(drop));
        }
        found
    }

    /// Checks manifests and tails, and that what they name is there.
    fn verify_sessions(&self, contents: &Contents, blocks: &HashSet<BlockKey>, verdict: &mut Verdict) {
        let mut named: HashMap<String, (TailRef, String)> = HashMap::new();
        for (id, file) in &contents.manifests {
            let read = self.read_manifest(id, &file.name);
            // A torn record is the trace of a crash: the turn before it counts.
            let damaged = |broken: &Broken| (!broken.torn).then(|| broken.reason.as_str().into());
            let checked = match &read {
                Ok((_, broken)) => broken.as_ref().and_then(damaged).map_or(Ok(()), Err),
                Err(failure) => Err(failure.clone()),
            };
            verdict.file(&file.name, checked);
            let Ok((manifest, _)) = read else { continue };
            let owner = owner(&manifest);
            let parts = parts(&manifest);
            let missing = |hash: &&BlockHash| parts.iter().any(|part| !blocks.contains(&(**hash, *part)));
            let missing = manifest.blocks.iter().filter(missing);
            verdict
                .problems
                .extend(missing.map(|hash| format!("block {} of {owner} is missing", hash.hex())));
            let states = manifest.states.iter().filter(|(_, hash)| !blocks.contains(&(*hash, Part::State)));
            verdict
                .problems
                .extend(states.map(|(at, _)| format!("the state after {at} tokens of {owner} is missing")));
            for tail in manifest.tails() {
                if !contents.tails.iter().any(|(name, _)| *name == tail.file) {
                    verdict.problems.push(format!("a tail of {owner} is missing"));
                }
                named.insert(tail.file.clone(), (tail.clone(), owner.clone()));
            }
        }
        for (name, file) in &contents.tails {
            let known = named.get(name);
            let tail = known.map(|(tail, _)| tail);
            let opened = self.medium.open(&file.name);
            let checked = opened.and_then(|mut input| tail::verify(&mut input, name, tail, &self.cipher));
            verdict.files += 1;
            let name = known.map_or(name.clone(), |(_, owner)| format!("a tail of {owner}"));
            verdict.part(&name, checked);
        }
    }
}

fn owner(manifest: &Manifest) -> String {
    format!("agent `{}` of run {}", manifest.owner.agent, manifest.owner.run)
}

/// The parts that a manifest's blocks have. Where all layers have a window there is one part, as where none
/// has.
fn parts(manifest: &Manifest) -> &'static [Part] {
    let layout = &manifest.owner.identity.layout;
    let windows = layout.split(',').filter(|layer| layer.contains('~')).count();
    let mixed = (1..layout.split(',').count()).contains(&windows);
    if mixed { &Part::OF_BLOCKS } else { &[Part::Global] }
}
