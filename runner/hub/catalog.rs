//! Models with a short name: chat models of families that the engine plays, in single files.

use super::{HubFile, Repository};

/// A model with a short name.
#[derive(Debug)]
pub struct CatalogEntry {
    /// The name that `--model` and `pull` take.
    pub name: &'static str,
    /// Its repository: organization, name, and a revision if only that one is meant.
    repository: (&'static str, &'static str, Option<&'static str>),
    file: &'static str,
    /// Roughly.
    pub size: &'static str,
    /// The weights' licence.
    pub licence: &'static str,
    /// The part of it that was ever run with greenroom.
    pub tested: Tested,
    /// Uses that it is good for, by its size.
    pub good_for: &'static str,
}

/// Evidence that a model works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested {
    /// This very file was run with greenroom (the same SHA-256).
    File,
    /// What is nearest to it was run: these words say what.
    Near(&'static str),
    /// Its family is checked against reference implementations on random weights in the same layout; these
    /// weights were never run.
    Layout,
}

impl Tested {
    /// In a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "this file",
            Self::Near(what) => what,
            Self::Layout => "random weights",
        }
    }
}

impl CatalogEntry {
    /// Its address on the Hub.
    ///
    /// # Errors
    /// None, for entries that the tests have seen.
    pub fn address(&self) -> Result<HubFile, String> {
        let (org, name, revision) = self.repository;
        let mut repository = Repository::new(org, name)?;
        repository.revision = revision.map_or(repository.revision, str::to_owned);
        HubFile::new(repository, self.file)
    }
}

/// All of them, the smallest first.
pub const CATALOG: &[CatalogEntry] = &[
    CatalogEntry {
        name: "smollm2-135m-instruct",
        repository: (
            "QuantFactory",
            "SmolLM2-135M-Instruct-GGUF",
            Some("ab810cf68114990406fdf996510dd3d3c6adbdf5"),
        ),
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        size: "98 MB",
        licence: "Apache-2.0",
        tested: Tested::File,
        good_for: "a first try: fast, often confused",
    },
    CatalogEntry {
        name: "gemma-3-270m-it",
        repository: ("unsloth", "gemma-3-270m-it-GGUF", None),
        file: "gemma-3-270m-it-Q4_K_M.gguf",
        size: "253 MB",
        licence: "Gemma",
        tested: Tested::Near("its base model"),
        good_for: "a first try: fast, in many languages",
    },
    CatalogEntry {
        name: "qwen2.5-0.5b-instruct",
        repository: ("Qwen", "Qwen2.5-0.5B-Instruct-GGUF", None),
        file: "qwen2.5-0.5b-instruct-q4_k_m.gguf",
        size: "491 MB",
        licence: "Apache-2.0",
        tested: Tested::Near("its coder"),
        good_for: "short dialogues on any machine",
    },
    CatalogEntry {
        name: "qwen2.5-coder-0.5b-instruct",
        repository: ("Qwen", "Qwen2.5-Coder-0.5B-Instruct-GGUF", None),
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size: "491 MB",
        licence: "Apache-2.0",
        tested: Tested::Near("these weights"),
        good_for: "short dialogues, calls of tools",
    },
    CatalogEntry {
        name: "qwen3-0.6b",
        repository: ("Qwen", "Qwen3-0.6B-GGUF", None),
        file: "Qwen3-0.6B-Q8_0.gguf",
        size: "639 MB",
        licence: "Apache-2.0",
        tested: Tested::Layout,
        good_for: "short dialogues on any machine",
    },
    CatalogEntry {
        name: "llama-3.2-1b-instruct",
        repository: ("bartowski", "Llama-3.2-1B-Instruct-GGUF", None),
        file: "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        size: "808 MB",
        licence: "Llama 3.2",
        tested: Tested::Layout,
        good_for: "dialogues with consistent roles",
    },
    CatalogEntry {
        name: "qwen2.5-coder-1.5b-instruct",
        repository: ("Qwen", "Qwen2.5-Coder-1.5B-Instruct-GGUF", None),
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size: "1.1 GB",
        licence: "Apache-2.0",
        tested: Tested::Near("these weights"),
        good_for: "dialogues, calls of tools, coding agents",
    },
    CatalogEntry {
        name: "qwen3-1.7b",
        repository: ("Qwen", "Qwen3-1.7B-GGUF", None),
        file: "Qwen3-1.7B-Q8_0.gguf",
        size: "1.8 GB",
        licence: "Apache-2.0",
        tested: Tested::Layout,
        good_for: "scenarios with several phases",
    },
    CatalogEntry {
        name: "llama-3.2-3b-instruct",
        repository: ("bartowski", "Llama-3.2-3B-Instruct-GGUF", None),
        file: "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        size: "2.0 GB",
        licence: "Llama 3.2",
        tested: Tested::Layout,
        good_for: "long dialogues; 4 GB of memory",
    },
    CatalogEntry {
        name: "qwen3-4b",
        repository: ("Qwen", "Qwen3-4B-GGUF", None),
        file: "Qwen3-4B-Q4_K_M.gguf",
        size: "2.5 GB",
        licence: "Apache-2.0",
        tested: Tested::Layout,
        good_for: "negotiations and debates; 5 GB of memory",
    },
    CatalogEntry {
        name: "gpt-oss-20b",
        repository: ("lmstudio-community", "gpt-oss-20b-GGUF", None),
        file: "gpt-oss-20b-MXFP4.gguf",
        size: "12 GB",
        licence: "Apache-2.0",
        tested: Tested::Layout,
        good_for: "the hardest scenarios; 16 GB of memory",
    },
];

/// The entry of a short name.
pub fn named(name: &str) -> Option<&'static CatalogEntry> {
    CATALOG.iter().find(|entry| entry.name.eq_ignore_ascii_case(name))
}

/// The short name that a text may have been meant as.
pub fn similar(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let near = |entry: &&CatalogEntry| entry.name.starts_with(&text) && text.len() > 3;
    let alike = |entry: &&CatalogEntry| strsim::jaro_winkler(entry.name, &text) > 0.9;
    CATALOG.iter().find(near).or_else(|| CATALOG.iter().find(alike)).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_addresses_and_names_of_their_own() {
        for (at, entry) in CATALOG.iter().enumerate() {
            assert!(entry.address().is_ok(), "{}", entry.name);
            assert_eq!(named(&entry.name.to_uppercase()).unwrap().name, entry.name);
            assert!(CATALOG[..at].iter().all(|other| other.name != entry.name));
        }
        assert_eq!(similar("qwen3-0.6"), Some("qwen3-0.6b"));
        assert_eq!(similar("smolm2-135m-instruct"), Some("smollm2-135m-instruct"));
        assert_eq!(similar("story.txt"), None);
    }
}
