//! Finds a model file by what a person wrote: a path, `understudy`, or the name of a model that was
//! downloaded before, by this program or another. Nothing here uses the network.

use crate::hub::{self, HubCache, HubFile};
use crate::scenario;
use crate::stores::{self, Store};
use anyhow::{Context as _, anyhow, bail};
use std::path::PathBuf;

/// The location of a model's GGUF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFile {
    /// A file.
    Path(PathBuf),
    /// The model compiled into the program.
    Understudy,
}

impl std::fmt::Display for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Understudy => f.write_str("understudy (bundled)"),
        }
    }
}

/// Finds the file whose tokenizer and chat template a model has: its own, or the one that is named for a
/// remote engine. `None`: the engine takes messages, and only it can count their tokens.
///
/// # Errors
/// As [`locate`]; an engine that takes token ids is given without a tokenizer.
pub fn tokenizer(name: &str) -> anyhow::Result<Option<ModelFile>> {
    if !scenario::EngineAddress::is_meant(name) {
        return locate(name).map(Some);
    }
    let address: scenario::EngineAddress = name.parse()?;
    match address.tokenizer {
        Some(file) => locate(&file).map(Some),
        None if address.api.takes_ids() => bail!(
            "{name} takes token ids; give a local model file with its tokenizer and chat template, \
             `tokenizer=FILE.gguf` (or use messages: openai+URL)"
        ),
        None => Ok(None),
    }
}

/// Finds a model.
///
/// # Errors
/// There is no such file; the message names the places searched, and how to get it.
pub fn locate(name: &str) -> anyhow::Result<ModelFile> {
    if name == "understudy" {
        return Ok(ModelFile::Understudy);
    }
    if scenario::EngineAddress::is_meant(name) {
        bail!("{name} is a remote engine; expected a model file");
    }
    if name.starts_with("hf:") {
        let address = name.parse().map_err(|error| anyhow!("`{name}` is not a model: {error}"))?;
        return Ok(ModelFile::Path(in_cache(&HubCache::open()?, &address, name)?));
    }
    if let Some((store, rest)) = Store::of(name) {
        return Ok(ModelFile::Path(store.find(rest)?));
    }
    let path = PathBuf::from(name);
    if path.is_file() {
        return Ok(ModelFile::Path(path));
    }
    if let Some(entry) = hub::named(name) {
        return Ok(ModelFile::Path(in_cache(
            &HubCache::open()?,
            &entry.address().map_err(|error| anyhow!(error))?,
            entry.name,
        )?));
    }
    let meant = hub::similar(name).map(str::to_owned).or_else(|| stores::similar(name));
    let meant = meant.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default();
    bail!(
        "there is no model file {name}{meant}; expected a GGUF file, `understudy` (bundled), a name that \
         `greenroom models` or `greenroom pull` lists, hf:ORG/REPO/FILE.gguf, or a remote engine (API+URL)"
    )
}

/// True if a text begins as the name of a downloaded model does.
pub fn is_downloaded(text: &str) -> bool {
    text.starts_with("hf:") || Store::of(text).is_some()
}

fn in_cache(cache: &HubCache, address: &HubFile, name: &str) -> anyhow::Result<PathBuf> {
    cache.find(address).with_context(|| {
        let folder = cache.folder().display();
        format!(
            "{name} has not been downloaded (it is not in {folder}); download it with: greenroom pull {name}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_things_are_reported_with_their_remedy() {
        let hub = tempfile::tempdir().unwrap();
        let cache = HubCache::at(hub.path());
        let message = |name: &str| in_cache(&cache, &name.parse().unwrap(), name).unwrap_err().to_string();
        assert!(message("hf:org/repo/n.gguf").contains("greenroom pull hf:org/repo/n.gguf"));
        let message = |name: &str| locate(name).unwrap_err().to_string();
        assert!(message("hf:org/repo").contains("expected hf:ORG/REPO/FILE.gguf"));
        assert!(message("hf:org/repo/../x.gguf").contains("not a path within a repository"));
        assert!(message("qwen3-0.6").contains("did you mean `qwen3-0.6b`?"));
        assert!(message("nothing.gguf").contains("there is no model file nothing.gguf;"));
    }
}
