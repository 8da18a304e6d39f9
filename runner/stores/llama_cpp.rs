//! llama.cpp's models. Older versions have a folder of files, `ORG_REPO_FILE.gguf`; newer ones use the cache
//! that all clients of the Hub share, or one like it in `LLAMA_CACHE`.

use super::folder::{Folders, Surroundings, files, is_model};
use super::{Location, StoredModel};
use crate::hub::HubCache;

/// `LLAMA_CACHE`, else `llama.cpp` in the user's folder for caches.
pub(super) fn folders(surroundings: &Surroundings) -> Folders {
    let own = || Some(surroundings.caches.as_ref()?.join("llama.cpp"));
    Folders::new(surroundings.var("LLAMA_CACHE").or_else(own).into_iter().collect())
}

pub(super) fn models(folders: &Folders, surroundings: &Surroundings) -> Vec<StoredModel> {
    let flat = folders.readable.iter().flat_map(|folder| files(folder, 1..=1));
    let flat = flat.filter(|(name, _)| is_model(name));
    let flat = flat.map(|(name, path)| StoredModel { name, location: Location::File(path) });
    let hub = match surroundings.var("LLAMA_CACHE") {
        Some(folder) => Some(HubCache::at(folder)),
        None => HubCache::open().ok(),
    };
    let in_hub = hub.iter().flat_map(|hub| {
        hub.addresses().into_iter().filter_map(|address| {
            let name = address.to_string().trim_start_matches("hf:").to_owned();
            let path = hub.find(&address).filter(|_| is_model(&name))?;
            Some(StoredModel { name, location: Location::File(path) })
        })
    });
    flat.chain(in_hub).collect()
}
