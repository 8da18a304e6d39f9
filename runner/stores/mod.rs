//! Models that other programs have downloaded, used where they lie: those of Ollama, LM Studio and llama.cpp.
//!
//! [`Store::of`] recognizes names such as `ollama:llama3.2`, [`Store::find`] gives the file, [`Store::models`]
//! lists all. Nothing is written, and nothing is read but folders, small JSON files and names.
//!
//! A name is compared with what a folder holds; no path is made from it. What a folder holds was written by
//! others: files are read within limits, and a digest leads to a file of the store or nowhere.

mod choice;
mod folder;
mod llama_cpp;
mod lm_studio;
mod ollama;

pub use folder::is_model;

use crate::diagnostic::{Suggestion, suggestion};
use anyhow::bail;
use choice::matching;
use folder::{Folders, Surroundings};
use std::path::PathBuf;

/// A program that keeps models on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// llama.cpp.
    LlamaCpp,
}

/// A model of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModel {
    /// Its name after the store's prefix.
    pub name: String,
    location: Location,
}

/// What leads to a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Location {
    File(PathBuf),
    Manifest(ollama::ManifestFile),
}

/// Models of a store, and what of it could not be read.
#[derive(Debug, Default)]
pub struct StoredModels {
    /// In order of their names.
    pub models: Vec<StoredModel>,
    /// Folders that can't be read, each with the reason.
    pub unread: Vec<String>,
    /// Folders that were searched.
    folders: Vec<PathBuf>,
}

/// Maximum number of models that an error lists.
const MAX_LISTED: usize = 12;

impl StoredModel {
    /// Its file.
    ///
    /// # Errors
    /// The store has no file for it, or one that is not a GGUF model's.
    pub fn file(&self) -> anyhow::Result<PathBuf> {
        match &self.location {
            Location::File(path) => Ok(path.clone()),
            Location::Manifest(manifest) => manifest.model(&self.name),
        }
    }
}

impl Store {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ollama, Self::LmStudio, Self::LlamaCpp];

    /// Name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::LlamaCpp => "llama.cpp",
        }
    }

    /// Beginning of the names of its models.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Ollama => "ollama:",
            Self::LmStudio => "lmstudio:",
            Self::LlamaCpp => "llama.cpp:",
        }
    }

    /// Form of such names, for messages.
    const fn form(self) -> &'static str {
        match self {
            Self::Ollama => "ollama:[[HOST/]NAMESPACE/]NAME[:TAG]",
            Self::LmStudio => "lmstudio:ORG/REPO[/FILE.gguf]",
            Self::LlamaCpp => "llama.cpp:ORG/REPO[:QUANT] or llama.cpp:FILE.gguf",
        }
    }

    /// The store that a name is of, and the rest of the name.
    pub fn of(name: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|store| Some((store, name.strip_prefix(store.prefix())?)))
    }

    /// Its models on this machine.
    pub fn models(self) -> StoredModels {
        self.models_in(&Surroundings::of_this_process())
    }

    fn models_in(self, surroundings: &Surroundings) -> StoredModels {
        let folders = match self {
            Self::Ollama => ollama::folders(surroundings),
            Self::LmStudio => lm_studio::folders(surroundings),
            Self::LlamaCpp => llama_cpp::folders(surroundings),
        };
        let Folders { readable, unread, .. } = &folders;
        let mut models: Vec<StoredModel> = match self {
            Self::Ollama => readable.iter().flat_map(|folder| ollama::models(folder)).collect(),
            Self::LmStudio => readable.iter().flat_map(|folder| lm_studio::models(folder)).collect(),
            Self::LlamaCpp => llama_cpp::models(&folders, surroundings),
        };
        // Of two of the same name the one in the first folder counts.
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models.dedup_by(|a, b| a.name == b.name);
        StoredModels { models, unread: unread.clone(), folders: folders.searched }
    }

    /// The file of one of its models, by the name without the prefix.
    ///
    /// # Errors
    /// There is no such model, or several fit; the model's file is missing, or is not a GGUF model.
    pub fn find(self, name: &str) -> anyhow::Result<PathBuf> {
        self.find_among(name, &self.models())
    }

    fn find_among(self, name: &str, stored: &StoredModels) -> anyhow::Result<PathBuf> {
        let (program, prefix) = (self.program(), self.prefix());
        let names: Vec<&str> = stored.models.iter().map(|model| model.name.as_str()).collect();
        let found = match self {
            Self::Ollama => ollama::written(name).map(|whole| {
                let same = |known: &&str| known.eq_ignore_ascii_case(&whole);
                names.iter().position(same).into_iter().collect()
            }),
            Self::LmStudio | Self::LlamaCpp => {
                (!name.trim().is_empty()).then(|| matching(name.trim(), &names))
            }
        };
        let Some(found) = found else {
            bail!("`{prefix}{name}` is not a name of a model; expected {}", self.form());
        };
        match found[..] {
            [one] => stored.models[one].file().map_err(|error| match self {
                Self::Ollama => error.context(format!("can't use the model `{name}` of {program}")),
                _ => error,
            }),
            [] => bail!("{}", self.missing(name, &names, stored)),
            _ => bail!(
                "`{prefix}{name}` could be {}; give the whole name of one",
                listed(prefix, found.iter().map(|at| names[*at]), " or ")
            ),
        }
    }

    /// Message for a model that is not there: where it was searched, what may be meant, how to get it.
    fn missing(self, name: &str, names: &[&str], stored: &StoredModels) -> String {
        let (program, prefix) = (self.program(), self.prefix());
        let folders: Vec<String> = stored.folders.iter().map(|folder| folder.display().to_string()).collect();
        let folders = folders.join(" and ");
        let unread = stored.unread.iter().map(|why| format!("; {why}")).collect::<String>();
        let known = names.iter().flat_map(|name| match self {
            Self::Ollama => vec![name.strip_suffix(":latest").unwrap_or(name)],
            Self::LmStudio | Self::LlamaCpp => parts(name),
        });
        let help = match suggestion(name, known) {
            Some(Suggestion::Near(near)) => format!("did you mean `{prefix}{near}`? Otherwise "),
            _ if names.is_empty() => String::new(),
            _ => format!("it has {}; ", listed(prefix, names.iter().copied(), ", ")),
        };
        let get = match self {
            Self::Ollama => format!("download it with: ollama pull {name}"),
            Self::LmStudio => format!("download it with: lms get {name}"),
            Self::LlamaCpp => "download it with: greenroom pull hf:ORG/REPO/FILE.gguf".to_owned(),
        };
        let set = match self {
            Self::Ollama => " (OLLAMA_MODELS=DIR if its models are elsewhere)",
            Self::LmStudio => "",
            Self::LlamaCpp => " (LLAMA_CACHE=DIR if its models are elsewhere)",
        };
        format!("{program} has no model `{name}` in {folders}{set}{unread}; {help}{get}")
    }
}

/// The name of a stored model that a name without a prefix may have been meant as.
pub fn similar(name: &str) -> Option<String> {
    let is_it = |store: &Store| {
        let stored = store.models();
        let names: Vec<&str> = stored.models.iter().map(|model| model.name.as_str()).collect();
        match store {
            Store::Ollama => ollama::written(name)
                .is_some_and(|whole| names.iter().any(|it| it.eq_ignore_ascii_case(&whole))),
            _ => name.len() > 3 && matching(name, &names).len() == 1,
        }
    };
    Store::ALL.into_iter().find(is_it).map(|store| format!("{}{name}", store.prefix()))
}

/// The names by which a person may call a file: its path, `ORG/REPO`, `REPO`, and its own without the ending.
fn parts(path: &str) -> Vec<&str> {
    let (repository, file) = path.rsplit_once('/').unwrap_or(("", path));
    let own = repository.rsplit('/').next().unwrap_or_default();
    let file = file.strip_suffix(".gguf").unwrap_or(file);
    [path, repository, own, file].into_iter().filter(|part| !part.is_empty()).collect()
}

/// Names with their prefix, as many as a message has room for.
fn listed<'a>(prefix: &str, names: impl ExactSizeIterator<Item = &'a str>, joined: &str) -> String {
    let more = names.len().saturating_sub(MAX_LISTED);
    let shown: Vec<String> = names.take(MAX_LISTED).map(|name| format!("`{prefix}{name}`")).collect();
    let more = if more > 0 { format!(" ({more} more not shown)") } else { String::new() };
    shown.join(joined) + &more
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// A made-up home.
    struct Home {
        folder: tempfile::TempDir,
        vars: BTreeMap<String, PathBuf>,
    }

    impl Home {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            // The Hub's cache is not looked for in the home of who runs the tests.
            let vars = [("LLAMA_CACHE".to_owned(), folder.path().join("llama"))].into();
            Self { folder, vars }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        }

        fn stored(&self, store: Store) -> StoredModels {
            let vars = self.vars.clone();
            store.models_in(&Surroundings {
                var: Box::new(move |name| vars.get(name).cloned()),
                home: Some(self.folder.path().to_owned()),
                caches: Some(self.path(".cache")),
            })
        }

        fn names(&self, store: Store) -> Vec<String> {
            self.stored(store).models.into_iter().map(|model| model.name).collect()
        }

        #[track_caller]
        fn finds(&self, store: Store, name: &str, file: &Path) {
            assert_eq!(store.find_among(name, &self.stored(store)).unwrap(), file, "{name}");
        }

        #[track_caller]
        fn refuses(&self, store: Store, name: &str, words: &[&str]) {
            let error = format!("{:#}", store.find_among(name, &self.stored(store)).unwrap_err());
            words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
        }

        /// A model of Ollama's, with a file of these bytes.
        fn ollama(&self, manifest: &str, bytes: &[u8]) -> PathBuf {
            let digest = blake3::hash(bytes).to_hex();
            let layer = layer("model", &format!("sha256:{digest}"), bytes.len());
            self.write(&format!(".ollama/models/{manifest}"), format!(r#"{{"layers":[{layer}]}}"#));
            self.write(&format!(".ollama/models/blobs/sha256-{digest}"), bytes)
        }
    }

    fn layer(kind: &str, digest: &str, size: usize) -> String {
        format!(r#"{{"mediaType":"{LAYER}{kind}","digest":"{digest}","size":{size}}}"#)
    }

    const LAYER: &str = "application/vnd.ollama.image.";
    const MANIFESTS: &str = ".ollama/models/manifests/registry.ollama.ai/library";
    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn models_of_ollama_have_the_names_that_ollama_gives_them() {
        let home = Home::new();
        let tiny = home.ollama("manifests/registry.ollama.ai/library/tiny/latest", b"a");
        let other = home.ollama("manifests/registry.ollama.ai/library/tiny/8b", b"b");
        let hub = home.ollama("manifests/hf.co/org/Repo-GGUF/Q4_K_M", b"c");
        let of_ann = home.ollama("manifests/registry.ollama.ai/ann/mine/latest", b"d");
        let newer = home.ollama("manifests-v2/ollama.com/library/new/latest", b"e");
        home.write(".ollama/models/manifests/registry.ollama.ai/library/.DS_Store", "");
        for name in ["tiny", "tiny:latest", "TINY", "library/tiny", "registry.ollama.ai/library/tiny:latest"]
        {
            home.finds(Store::Ollama, name, &tiny);
        }
        home.finds(Store::Ollama, "tiny:8B", &other);
        home.finds(Store::Ollama, "hf.co/org/repo-gguf:Q4_K_M", &hub);
        home.finds(Store::Ollama, "ann/mine", &of_ann);
        home.finds(Store::Ollama, "new", &newer);
        let names = ["ann/mine:latest", "hf.co/org/Repo-GGUF:Q4_K_M", "new:latest", "tiny:8b", "tiny:latest"];
        assert_eq!(home.names(Store::Ollama), names);
        home.refuses(Store::Ollama, "tiny:7b", &["did you mean `ollama:tiny:8b`?", "ollama pull tiny:7b"]);
        home.refuses(Store::Ollama, "mistral", &["it has `ollama:ann/mine:latest`", "OLLAMA_MODELS=DIR"]);
        for name in ["", "a//b", "tiny:", "a/b/c/d", ":8b"] {
            home.refuses(Store::Ollama, name, &["is not a name of a model; expected ollama:"]);
        }
        home.refuses(Store::Ollama, "../../../../etc/passwd", &["is not a name of a model"]);
        home.refuses(Store::Ollama, "../library/tiny", &["has no model"]);
    }

    #[test]
    fn the_folder_of_the_environment_replaces_the_others() {
        let mut home = Home::new();
        home.ollama("manifests/registry.ollama.ai/library/tiny/latest", b"a");
        home.vars.insert("OLLAMA_MODELS".into(), home.path("none"));
        home.refuses(Store::Ollama, "tiny", &["has no model `tiny` in", "none"]);
    }

    #[test]
    fn what_is_no_model_file_is_refused_by_name() {
        let home = Home::new();
        let refused = |layers: &[(&str, &str)], words: &[&str]| {
            let layers: Vec<_> = layers.iter().map(|(kind, digest)| layer(kind, digest, 1)).collect();
            home.write(&format!("{MANIFESTS}/m/latest"), format!(r#"{{"layers":[{}]}}"#, layers.join(",")));
            home.refuses(Store::Ollama, "m", words);
        };
        refused(
            &[("tensor; name=x; dtype=BF16", DIGEST), ("json", DIGEST)],
            &["its weights are safetensors"],
        );
        refused(&[("adapter", DIGEST)], &["it is an adapter (LoRA) alone"]);
        refused(&[("projector", DIGEST)], &["it is an image projector alone"]);
        refused(&[("model", DIGEST), ("adapter", DIGEST)], &["applies an adapter", "is not supported"]);
        refused(&[("model", DIGEST), ("model", DIGEST)], &["its model is in 2 files"]);
        refused(&[], &["it has no model file"]);
        refused(&[("model", DIGEST)], &["can't find its file", "ollama pull m"]);
        home.write(&format!(".ollama/models/blobs/{}", DIGEST.replace(':', "-")), "longer");
        refused(&[("model", DIGEST)], &["has 6 bytes; expected 1", "ollama pull m"]);
    }

    #[test]
    fn a_hostile_manifest_leads_nowhere() {
        let home = Home::new();
        let secret = home.write("secret", "x");
        let refused = |manifest: &str, words: &[&str]| {
            home.write(&format!("{MANIFESTS}/m/latest"), manifest);
            home.refuses(Store::Ollama, "m", words);
        };
        let at = |digest: &str| format!(r#"{{"layers":[{}]}}"#, layer("model", digest, 1));
        let not_hex = format!("sha256:{}", "z".repeat(64));
        let dots = format!("sha256:{}", "../".repeat(21) + "x");
        let (up, absolute) = ("../../../secret", secret.display().to_string());
        for digest in
            [up, "sha256:../../../../secret", &absolute, "", "sha256:", "sha256-12", &not_hex, &dots]
        {
            refused(&at(digest), &["expected sha256: and 64 hexadecimal digits"]);
        }
        let deep = "[".repeat(100_000);
        let wrong = r#"{"layers":[{"mediaType":1,"digest":[],"size":-1}]}"#;
        let texts = ["", "GGUF", "[]", "7", r#"{"layers":7}"#, r#"{"layers":[7]}"#, wrong, &deep];
        for text in texts {
            refused(text, &["can't use the model `m` of Ollama: can't read its manifest", "expected JSON"]);
        }
        refused("null", &["can't read its manifest"]);
        refused(r#"{"layers":null}"#, &["it has no model file"]);
        refused(&" ".repeat(5 << 20), &["can't read its manifest", "may have at most 4.00 MiB"]);
        home.write(&format!("{MANIFESTS}/m/latest"), [0xff, 0xfe]);
        home.refuses(Store::Ollama, "m", &["can't read its manifest", "invalid utf-8"]);
    }

    #[test]
    fn a_list_of_manifests_is_followed_once() {
        let home = Home::new();
        let whole = |layers: &str| format!(r#"{{"mediaType":"x","layers":[{layers}]}}"#);
        let file = home.ollama("manifests/registry.ollama.ai/library/other/latest", b"a");
        let digest = format!("sha256:{}", blake3::hash(b"a").to_hex());
        let (mlx, gguf) = (whole(&layer("tensor", DIGEST, 1)), whole(&layer("model", &digest, 1)));
        home.write(&format!("{MANIFESTS}/m/latest"), format!(r#"{{"manifests":[{mlx},{gguf}]}}"#));
        home.finds(Store::Ollama, "m", &file);
        let reference = format!(r#"{{"manifests":[{{"digest":"{DIGEST}","runner":"ollama"}}]}}"#);
        home.write(&format!("{MANIFESTS}/m/latest"), &reference);
        let blob = format!(".ollama/models/blobs/{}", DIGEST.replace(':', "-"));
        home.write(&blob, &gguf);
        home.finds(Store::Ollama, "m", &file);
        // One that refers to itself.
        home.write(&blob, &reference);
        home.refuses(Store::Ollama, "m", &["is a list within a list"]);
        home.write(&format!("{MANIFESTS}/m/latest"), format!(r#"{{"manifests":[{mlx}]}}"#));
        home.refuses(Store::Ollama, "m", &["its weights are safetensors"]);
    }

    #[test]
    fn models_of_lm_studio_are_found_by_a_part_of_their_names() {
        let home = Home::new();
        let models = |folder: &str| {
            let write = |name: &str| home.write(&format!("{folder}/{name}"), "x");
            write("org/Qwen3-4B-GGUF/mmproj-Qwen3-4B-F16.gguf");
            write("org/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf");
            write("loose.gguf");
            write("org/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf")
        };
        let q4 = models(".lmstudio/models");
        let old = home.write(".cache/lm-studio/models/old/Tiny/tiny.gguf", "x");
        for name in ["org/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", "qwen3-4b-q4_k_m", "org/qwen3-4b-gguf:q4_k_m"]
        {
            home.finds(Store::LmStudio, name, &q4);
        }
        home.finds(Store::LmStudio, "tiny", &old);
        let both = [
            "could be `lmstudio:org/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf` or",
            "`lmstudio:org/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf`; give the whole name of one",
        ];
        home.refuses(Store::LmStudio, "org/Qwen3-4B-GGUF", &both);
        home.refuses(Store::LmStudio, "tinny", &["did you mean `lmstudio:Tiny`?", "lms get tinny"]);
        home.refuses(Store::LmStudio, " ", &["expected lmstudio:ORG/REPO"]);
        // Elsewhere, by its settings; then another home.
        let moved = models("moved");
        let settings = serde_json::json!({ "downloadsFolder": home.path("moved") });
        home.write(".lmstudio/settings.json", settings.to_string());
        home.finds(Store::LmStudio, "q4_k_m", &moved);
        let pointed = models("pointed/models");
        home.write(".lmstudio-home-pointer", format!("{}\n", home.path("pointed").display()));
        home.finds(Store::LmStudio, "q4_k_m", &pointed);
        home.refuses(Store::LmStudio, "tiny", &["has no model `tiny`"]);
        home.write("pointed/settings.json", "{");
        home.finds(Store::LmStudio, "q4_k_m", &pointed);
    }

    #[test]
    fn models_of_llama_cpp_are_files_or_those_of_a_hub_cache() {
        let home = Home::new();
        let flat = home.write("llama/ggml-org_gemma-3-4b-it-GGUF_gemma-3-4b-it-Q4_K_M.gguf", "x");
        home.write("llama/ggml-org_gemma-3-4b-it-GGUF_mmproj-model-f16.gguf", "x");
        home.write("llama/manifest=ggml-org=gemma-3-4b-it-GGUF=latest.json", "{}");
        let commit = "c0ffee00".repeat(5);
        let cached = home.write(&format!("llama/models--org--Tiny/snapshots/{commit}/tiny-Q8_0.gguf"), "x");
        for name in ["ggml-org/gemma-3-4b-it-GGUF", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "gemma-3-4b"] {
            home.finds(Store::LlamaCpp, name, &flat);
        }
        for name in ["org/tiny", "org/Tiny:Q8_0", "org/Tiny/tiny-Q8_0.gguf", "tiny-Q8_0.gguf"] {
            home.finds(Store::LlamaCpp, name, &cached);
        }
        home.refuses(
            Store::LlamaCpp,
            "org/Tiny:Q4_0",
            &["has no model `org/Tiny:Q4_0` in", "greenroom pull"],
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_cannot_be_read_is_named() {
        let home = Home::new();
        home.write(".ollama", "a file in its place");
        home.refuses(Store::Ollama, "m", &["has no model `m`", "can't read", ".ollama/models: "]);
    }
}
