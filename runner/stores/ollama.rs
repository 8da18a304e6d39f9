//! Ollama's models, as it keeps them:
//!
//! ```text
//! manifests/HOST/NAMESPACE/NAME/TAG      a list of layers: JSON, or in manifests-v2 a link to a blob of it
//! blobs/sha256-HEX                       a layer; the model's is a GGUF file
//! ```
//!
//! Of the layers only the model's is used: its file has its own chat template and sampling settings. A
//! manifest may be a list of manifests for several runners, given whole or by digest.

use super::folder::{Folders, Surroundings, files, text};
use super::{Location, StoredModel};
use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Hosts of Ollama's own models, which names leave out, and their namespace.
const HOSTS: [&str; 2] = ["registry.ollama.ai", "ollama.com"];
const NAMESPACE: &str = "library";

/// Beginning of the media types of layers.
const LAYER: &str = "application/vnd.ollama.image.";

/// The manifest of a model, which has not been read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestFile {
    /// The store's folder.
    folder: PathBuf,
    path: PathBuf,
}

/// A manifest, as Ollama writes it (Go writes an empty list as null).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    layers: Option<Vec<Layer>>,
    /// Of a list: one for each runner.
    manifests: Option<Vec<Entry>>,
}

/// A manifest in a list, or its digest.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    layers: Option<Vec<Layer>>,
    digest: Option<String>,
}

/// A file of a model.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: Option<u64>,
}

/// `OLLAMA_MODELS`, else the folder in the user's home, and that of the service on Linux.
pub(super) fn folders(surroundings: &Surroundings) -> Folders {
    if let Some(folder) = surroundings.var("OLLAMA_MODELS") {
        return Folders::new(vec![folder]);
    }
    let own = surroundings.home.as_ref().map(|home| home.join(".ollama/models"));
    let service = cfg!(target_os = "linux").then(|| PathBuf::from("/usr/share/ollama/.ollama/models"));
    Folders::new(own.into_iter().chain(service).collect())
}

pub(super) fn models(folder: &Path) -> Vec<StoredModel> {
    // The newer folder counts where both have a model.
    let manifests = ["manifests-v2", "manifests"].map(|name| files(&folder.join(name), 4..=4));
    let model = |(path_in_folder, path): (String, PathBuf)| {
        let (name, tag) = path_in_folder.rsplit_once('/')?;
        let name = without_defaults(name);
        let location = Location::Manifest(ManifestFile { folder: folder.to_owned(), path });
        Some(StoredModel { name: format!("{name}:{tag}"), location })
    };
    manifests.into_iter().flatten().filter_map(model).collect()
}

/// A name as a person writes it, in the form of [`models`]. `None`: it has too many parts, or empty ones.
pub(super) fn written(name: &str) -> Option<String> {
    let is_tag = |tag: &&str| !tag.contains('/');
    let (name, tag) = match name.rsplit_once(':').filter(|(_, tag)| is_tag(tag)) {
        Some(parts) => parts,
        None => (name, "latest"),
    };
    let parts: Vec<&str> = name.split('/').collect();
    let is_whole = parts.len() <= 3 && parts.iter().chain([&tag]).all(|part| !part.trim().is_empty());
    is_whole.then(|| format!("{}:{tag}", without_defaults(name)))
}

/// `HOST/NAMESPACE/NAME` without what is so by default.
fn without_defaults(name: &str) -> &str {
    let is = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    let parts: Vec<&str> = name.split('/').collect();
    let n_default = match parts[..] {
        [host, namespace, _] if HOSTS.iter().any(|it| is(it, host)) => {
            1 + usize::from(is(namespace, NAMESPACE))
        }
        [namespace, _] => usize::from(is(namespace, NAMESPACE)),
        _ => 0,
    };
    name.splitn(n_default + 1, '/').last().unwrap_or(name)
}

impl ManifestFile {
    /// The GGUF file of the model, which has this name.
    ///
    /// # Errors
    /// The manifest can't be read, names no GGUF model, or one that needs more than its file; the file is
    /// missing or incomplete.
    pub(super) fn model(&self, name: &str) -> anyhow::Result<PathBuf> {
        let Manifest { layers, manifests } = manifest(&self.path)?;
        let Some(entries) = manifests.filter(|entries| !entries.is_empty()) else {
            return self.file(name, &layers.unwrap_or_default());
        };
        let mut refused = None;
        for entry in entries {
            match self.layers(entry).and_then(|layers| self.file(name, &layers)) {
                Ok(file) => return Ok(file),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| anyhow!("its list of manifests is empty")))
    }

    /// Layers of a manifest in a list.
    fn layers(&self, entry: Entry) -> anyhow::Result<Vec<Layer>> {
        let (None, Some(digest)) = (&entry.layers, &entry.digest) else {
            return Ok(entry.layers.unwrap_or_default());
        };
        let path = self.blob(digest)?;
        let Manifest { layers, manifests } = manifest(&path)?;
        ensure!(manifests.is_none(), "its manifest {} is a list within a list", path.display());
        Ok(layers.unwrap_or_default())
    }

    /// The file of the one layer that is a model.
    fn file(&self, name: &str, layers: &[Layer]) -> anyhow::Result<PathBuf> {
        let of = |kind: &str| {
            let is_it = move |layer: &&Layer| {
                let media_type = layer.media_type.split(';').next().unwrap_or_default();
                media_type.trim().strip_prefix(LAYER) == Some(kind)
            };
            layers.iter().filter(is_it).collect::<Vec<_>>()
        };
        let (models, adapters) = (of("model"), of("adapter"));
        let &[layer] = &models[..] else {
            match models.len() {
                0 if !of("tensor").is_empty() => bail!("its weights are safetensors; expected a GGUF file"),
                0 if !adapters.is_empty() => bail!("it is an adapter (LoRA) alone; expected a model"),
                0 if !of("projector").is_empty() => bail!("it is an image projector alone; expected a model"),
                0 => bail!("it has no model file (a cloud model has none); expected a GGUF file"),
                n => bail!("its model is in {n} files; expected one GGUF file"),
            }
        };
        ensure!(
            adapters.is_empty(),
            "it applies an adapter (LoRA) to its model, which is not supported; use the model that it is made from"
        );
        let path = self.blob(&layer.digest)?;
        let again = || format!("download it again with: ollama pull {name}");
        let shown = path.display();
        let found =
            std::fs::metadata(&path).with_context(|| format!("can't find its file {shown}; {}", again()))?;
        if let Some(size) = layer.size.filter(|size| *size != found.len()) {
            bail!("its file {shown} has {} bytes; expected {size}; {}", found.len(), again());
        }
        Ok(path)
    }

    /// The path of a layer's file.
    ///
    /// # Errors
    /// The digest is none, and could lead anywhere.
    fn blob(&self, digest: &str) -> anyhow::Result<PathBuf> {
        let hex = digest.strip_prefix("sha256").and_then(|rest| rest.strip_prefix([':', '-']));
        let is_hex = |hex: &&str| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hex = hex.filter(is_hex).with_context(|| {
            let shown: String = digest.chars().take(80).collect();
            format!("its manifest has the digest `{shown}`; expected sha256: and 64 hexadecimal digits")
        })?;
        Ok(self.folder.join("blobs").join(format!("sha256-{}", hex.to_ascii_lowercase())))
    }
}

fn manifest(path: &Path) -> anyhow::Result<Manifest> {
    let context = || format!("can't read its manifest {}", path.display());
    let text = text(path).with_context(context)?;
    serde_json::from_str(&text).with_context(|| format!("{}: expected JSON with `layers`", context()))
}
