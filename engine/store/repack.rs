//! Rewriting packs without unneeded images.

use super::cipher::Cipher;
use super::medium::Blobs;
use super::pack::{self, Builder, ImageLocation};
use super::{Failure, Store, set_aside, short, whole_image};
use crate::Result;
use crate::kv::table::{BlockHash, BlockKey};

/// Results of rewriting packs.
#[derive(Default)]
pub(super) struct Repacked {
    /// Bytes freed.
    pub(super) freed: u64,
    /// Packs that could not be read, and why: they stay as they are.
    pub(super) unread: Vec<String>,
}

/// Writes those of `packs` (names and bytes) that hold something dead again, without it. What is damaged in
/// them is set aside.
///
/// # Errors
/// A file can't be written or removed.
pub(super) fn repack(
    blobs: &dyn Blobs,
    cipher: &Cipher,
    packs: impl Iterator<Item = (String, u64)>,
    is_dead: &dyn Fn(&BlockHash) -> bool,
) -> Result<Repacked> {
    let (mut repacked, mut kept, mut builder, mut gone) =
        (Repacked::default(), 0, Builder::default(), Vec::new());
    for (name, bytes) in packs {
        let images = pack::index(blobs, &name).and_then(|mut entries| {
            let n = entries.len();
            entries.retain(|(key, _)| !is_dead(&key.0));
            if n > 0 && entries.len() == n {
                return Ok(None);
            }
            images(blobs, cipher, &entries).map(Some)
        });
        let images = match images {
            Ok(None) | Err(Failure::Missing) => continue,
            Ok(Some(images)) => images,
            Err(Failure::Damaged(reason)) => {
                set_aside(blobs, &name, &reason);
                continue;
            }
            Err(Failure::Unreadable(reason)) => {
                repacked.unread.push(format!("{}: {reason}", short(&name)));
                continue;
            }
        };
        for (key, image) in images.whole {
            if builder.len() + image.len() > Store::PACK {
                kept += builder.len() as u64;
                std::mem::take(&mut builder).write(blobs)?;
            }
            builder.push(key, &image);
        }
        repacked.freed += bytes;
        gone.push((name, images.damaged));
    }
    kept += builder.len() as u64;
    // The new ones first: a crash in between leaves blocks twice, never none.
    builder.write(blobs)?;
    for (name, damaged) in gone {
        match damaged {
            Some(reason) => set_aside(blobs, &name, &reason),
            None => drop(blobs.remove(&name)?),
        }
    }
    repacked.freed = repacked.freed.saturating_sub(kept);
    Ok(repacked)
}

/// Images of a pack: the whole ones, and the fault of one that is not.
#[derive(Default)]
struct Images {
    whole: Vec<(BlockKey, Vec<u8>)>,
    damaged: Option<String>,
}

fn images(
    blobs: &dyn Blobs,
    cipher: &Cipher,
    entries: &[(BlockKey, ImageLocation)],
) -> Result<Images, Failure> {
    let mut images = Images::default();
    for (key, place) in entries {
        let (mut input, span) = place.open(blobs)?;
        match whole_image(cipher, &mut input, *key, span) {
            Ok(image) => images.whole.push((*key, image)),
            Err(Failure::Damaged(reason)) => images.damaged = Some(reason),
            Err(failure) => return Err(failure),
        }
    }
    Ok(images)
}
