//! Shared parts of the commands that measure a cache's quality: a model opened once, and the formats to
//! compare on it.

use anyhow::Context as _;
use greenroom::backend::worded;
use greenroom::backend::{Device, EmbeddedConfig, Kv, ModelFile, locate, source};
use greenroom::files::{self, FileKind};
use greenroom_engine::{Engine, KvChoice, KvCost, KvFormat, PromptEncoder};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// Arguments of all of them.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct QualityCommon {
    /// GGUF file, a name that `greenroom models` or `greenroom pull` lists, hf:ORG/REPO/FILE.gguf, or the
    /// bundled `understudy`
    #[arg(long, default_value = "understudy", value_name = "MODEL")]
    pub(super) model: String,
    /// Device that runs it: auto, cpu, gpu, or gpu:NAME (see `greenroom devices`)
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: Device,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// An open model that can read texts with any cache format.
pub(super) struct Subject {
    pub(super) engine: Engine,
    pub(super) prompter: PromptEncoder,
    bar: ProgressBar,
}

/// Formats to measure with.
pub(super) struct Format {
    pub(super) kv: Kv,
    /// The formats' name in transcripts.
    pub(super) name: String,
    pub(super) cost: KvCost,
}

impl QualityCommon {
    /// Opens the model; nothing is kept on disk.
    pub(super) fn open(&self) -> anyhow::Result<Subject> {
        let model: ModelFile = locate(&self.model)?;
        let prompter = PromptEncoder::open(&source(&model))?;
        let threads = self.threads.map(usize::from);
        let device = self.device.clone();
        let config = EmbeddedConfig { device, kv: "f16".parse()?, threads, ..EmbeddedConfig::new(model) };
        let bar = ProgressBar::new_spinner();
        bar.set_message("loading the model");
        bar.tick();
        let engine = Engine::open(config.engine()).map_err(worded)?;
        Ok(Subject { engine, prompter, bar })
    }
}

impl Subject {
    /// Shows the current activity.
    pub(super) fn say(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
        self.bar.tick();
    }

    /// Clears it.
    pub(super) fn done(&self) {
        self.bar.finish_and_clear();
    }

    /// Says what is being read, and shows the progress.
    pub(super) fn progress(&self, n_tokens: usize, plan: &str) -> ProgressBar {
        self.bar.finish_and_clear();
        eprintln!("{plan}");
        let bar = ProgressBar::new(n_tokens as u64);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} tokens, {eta} left");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Average bits of a cached number, including all side data.
    pub(super) fn bits(&self, kv: &KvChoice) -> anyhow::Result<f64> {
        let bytes = |kv: &KvChoice| {
            let cost = self.prompter.kv_cost(kv).map_err(worded)?;
            anyhow::Ok((cost.global + cost.windowed) as f64)
        };
        Ok(16.0 * bytes(kv)? / bytes(&KvChoice::Uniform(KvFormat::F16))?)
    }

    /// The choices as formats of this model, without duplicates.
    pub(super) fn formats(&self, kvs: &[Kv]) -> anyhow::Result<Vec<Format>> {
        let mut formats: Vec<Format> = Vec::new();
        for kv in kvs {
            let name = self.prompter.kv_name(kv.choice()).map_err(worded)?;
            if formats.iter().all(|format| format.name != name) {
                let cost = self.prompter.kv_cost(kv.choice()).map_err(worded)?;
                formats.push(Format { kv: kv.clone(), name, cost });
            }
        }
        Ok(formats)
    }

    /// Log-probabilities of all ids except the first.
    pub(super) fn logprobs(&self, ids: &[u32], kv: &KvChoice) -> anyhow::Result<Vec<f64>> {
        let mut all = Vec::with_capacity(ids.len());
        self.engine.score(ids, Some(kv), &mut |score| all.push(f64::from(score.logprob)))?;
        Ok(all)
    }

    /// Maximum number of tokens in one text.
    pub(super) fn context(&self) -> usize {
        self.prompter.model().context_length
    }

    /// Ids of a file's text, or of the built-in sample.
    pub(super) fn read(&self, text: Option<&Path>, special: bool) -> anyhow::Result<Vec<u32>> {
        let text = match text {
            None => greenroom_engine::SAMPLE.to_owned(),
            Some(path) => files::read_text(path, FileKind::Text)
                .with_context(|| format!("can't read {}", path.display()))?,
        };
        Ok(self.engine.encode(&text, special)?)
    }
}

/// A text to read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TextArgs {
    /// A text [default: a built-in dialogue of 1,300 words]
    #[arg(long, value_name = "FILE")]
    pub(super) text: Option<PathBuf>,
    /// Recognise special tokens in the text
    #[arg(long)]
    pub(super) special: bool,
}
