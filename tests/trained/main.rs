//! Trained models: log-probabilities against llama.cpp, the cost of the default cache format, exactness over
//! a long talk, a played scenario.
//!
//! `tests/models.py` fetches the models. A test whose model is missing passes and says that it was skipped.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod conformance;
mod dilemma;
mod drafting;
mod embeddings;
mod exactness;
mod families;
mod grammars;
mod quality;

use greenroom_engine::{Engine, EngineConfig, KvChoice, ModelSource};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The first chapter of "Pride and Prejudice" by Jane Austen (1813, in the public domain).
const TEXT: &str = include_str!("../fixtures/pride-and-prejudice.txt");

/// A model that `tests/models.py` fetches.
struct Trained {
    /// Its name there.
    name: &'static str,
    file: &'static str,
    /// Special tokens before a text.
    begin: &'static str,
}

const SMOLLM2: Trained = Trained { name: "smollm2", file: "SmolLM2-135M-Instruct-Q4_1.gguf", begin: "" };
const QWEN05: Trained =
    Trained { name: "qwen0.5", file: "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", begin: "" };
const QWEN15: Trained =
    Trained { name: "qwen1.5", file: "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf", begin: "" };
const GEMMA3: Trained = Trained { name: "gemma3", file: "gemma-3-270m-Q4_K_M.gguf", begin: "<bos>" };

impl Trained {
    /// The model's file; `None`, and a line on the terminal, if it is missing.
    fn path(&self) -> Option<PathBuf> {
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models");
        let named = std::env::var_os("GREENROOM_TEST_MODELS").filter(|folder| !folder.is_empty());
        let path = named.map_or(default, PathBuf::from).join(self.file);
        if path.exists() {
            return Some(path);
        }
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        let (name, path) = (self.name, path.display());
        // Not `eprintln!`, which the test harness captures: a passing test would say nothing.
        let _ = writeln!(
            std::io::stderr(),
            "skipped {test}: {path} is missing; `python3 tests/models.py {name}` fetches it"
        );
        None
    }

    /// Ids of the text.
    fn ids(&self, engine: &Engine) -> Vec<u32> {
        [engine.encode(self.begin, true), engine.encode(TEXT, false)].map(Result::unwrap).concat()
    }
}

/// An engine with one thread, for tests run side by side.
fn open(model: &Path, kv: KvChoice, cache_dir: Option<&Path>) -> Engine {
    let source = ModelSource::Path(model.to_owned());
    let cache_dir = cache_dir.map(Path::to_owned);
    let mut config = EngineConfig::new(source).kv(kv).threads(1);
    config.cache_dir = cache_dir;
    Engine::open(config).unwrap()
}
