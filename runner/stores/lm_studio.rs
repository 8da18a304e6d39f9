//! LM Studio's models: `ORG/REPO/FILE.gguf` in its folder.

use super::folder::{Folders, Surroundings, files, is_model, text};
use super::{Location, StoredModel};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Depth of files: `ORG/REPO/FILE.gguf`, with folders in a repository.
const DEPTH: std::ops::RangeInclusive<usize> = 3..=5;

/// The part of `settings.json` that is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    downloads_folder: Option<PathBuf>,
}

/// The folder that LM Studio's settings name, else `models`, in each home that it may have: the one that
/// `~/.lmstudio-home-pointer` names, else `~/.lmstudio` and `~/.cache/lm-studio` of older versions.
pub(super) fn folders(surroundings: &Surroundings) -> Folders {
    let Some(home) = &surroundings.home else { return Folders::default() };
    let pointed = text(&home.join(".lmstudio-home-pointer")).ok().map(|text| PathBuf::from(text.trim()));
    let homes = match pointed.filter(|path| path.is_absolute() && path.is_dir()) {
        Some(pointed) => vec![pointed],
        None => vec![home.join(".lmstudio"), home.join(".cache/lm-studio")],
    };
    Folders::new(homes.iter().map(|home| models_folder(home)).collect())
}

/// The folder of the models of a home.
fn models_folder(home: &Path) -> PathBuf {
    let settings = text(&home.join("settings.json")).ok();
    let settings = settings.and_then(|text| serde_json::from_str::<Settings>(&text).ok());
    let named = settings.and_then(|settings| settings.downloads_folder).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| home.join("models"))
}

pub(super) fn models(folder: &Path) -> Vec<StoredModel> {
    let found = files(folder, DEPTH).into_iter().filter(|(name, _)| is_model(name));
    found.map(|(name, path)| StoredModel { name, location: Location::File(path) }).collect()
}
