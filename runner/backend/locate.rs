//! Finds a model file by what a person wrote: a path, `understudy`, or a name in Hugging Face's local cache.

use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};

/// Where a model's GGUF is.
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

/// Finds a model.
///
/// # Errors
/// There is no such file; the message says where it was looked for.
pub fn locate(name: &str) -> anyhow::Result<ModelFile> {
    if name == "understudy" {
        return Ok(ModelFile::Understudy);
    }
    if let Some(name) = name.strip_prefix("hf:") {
        return Ok(ModelFile::Path(in_hub(name, &hub_folder()?)?));
    }
    let path = PathBuf::from(name);
    if !path.is_file() {
        bail!(
            "there is no model file {}; give a GGUF's path, `understudy` (bundled), or hf:ORG/REPO/FILE.gguf for a \
             file in Hugging Face's cache",
            path.display()
        );
    }
    Ok(ModelFile::Path(path))
}

/// Hugging Face's cache of repositories.
fn hub_folder() -> anyhow::Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = var("HUGGINGFACE_HUB_CACHE").or_else(|| var("HF_HUB_CACHE")) {
        return Ok(folder);
    }
    if let Some(home) = var("HF_HOME") {
        return Ok(home.join("hub"));
    }
    let home = dirs::home_dir().context("no home folder: set HF_HOME to find Hugging Face's cache")?;
    Ok(home.join(".cache/huggingface/hub"))
}

fn in_hub(name: &str, hub: &Path) -> anyhow::Result<PathBuf> {
    let mut parts = name.splitn(3, '/');
    let (Some(org), Some(repo), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
        bail!("`hf:{name}` is not of the form hf:ORG/REPO/FILE.gguf");
    };
    if [org, repo].iter().chain(&[file]).any(|part| part.is_empty() || part.split('/').any(|p| p == "..")) {
        bail!("`hf:{name}` is not of the form hf:ORG/REPO/FILE.gguf");
    }
    let snapshots = hub.join(format!("models--{org}--{repo}")).join("snapshots");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&snapshots)
        .map(|entries| {
            entries.flatten().map(|entry| entry.path().join(file)).filter(|p| p.is_file()).collect()
        })
        .unwrap_or_default();
    // The newest download, if there are several; nothing else tells them apart.
    found.sort_by_key(|path| std::fs::metadata(path).and_then(|m| m.modified()).ok());
    found.pop().with_context(|| {
        format!(
            "{file} is not in Hugging Face's cache ({}); fetch it first, e.g. `hf download {org}/{repo} {file}`",
            snapshots.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_file_is_found_and_a_missing_one_explained() {
        let hub = tempfile::tempdir().unwrap();
        let folder = hub.path().join("models--org--repo/snapshots/abc/sub");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("m.gguf"), "x").unwrap();
        assert_eq!(in_hub("org/repo/sub/m.gguf", hub.path()).unwrap(), folder.join("m.gguf"));
        let error = in_hub("org/repo/n.gguf", hub.path()).unwrap_err().to_string();
        assert!(error.contains("hf download org/repo n.gguf"), "{error}");
        assert!(in_hub("org/repo", hub.path()).is_err());
        assert!(in_hub("org/repo/../x", hub.path()).is_err());
    }
}
