//! Formats of cached keys and values, as the command line gives them: a word, or a file of
//! `greenroom-lab kv-config`.

use crate::files::{self, FileKind};
use anyhow::{Context as _, bail, ensure};
use greenroom_engine::{KvChoice, KvFormat, KvLayer};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::str::FromStr;

/// A choice, as it was written and as the engine takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    word: String,
    choice: KvChoice,
    /// The model that a file was measured on.
    measured_on: Option<String>,
}

/// The names of the choices of formats.
const WORDS: [(&str, KvChoice); 8] = [
    ("auto", KvChoice::Auto),
    ("f16", KvChoice::Uniform(KvFormat::F16)),
    ("q8", KvChoice::Uniform(KvFormat::Q8)),
    ("q8/q4", KvChoice::Sides(KvLayer { k: KvFormat::Q8, v: KvFormat::Q4 })),
    ("q4-m", KvChoice::Mixture),
    ("q4", KvChoice::Uniform(KvFormat::Q4)),
    ("q8-plain", KvChoice::Unrotated(KvFormat::Q8)),
    ("q4-plain", KvChoice::Unrotated(KvFormat::Q4)),
];

impl Kv {
    /// As it was written.
    pub fn word(&self) -> &str {
        &self.word
    }

    /// The model that a file was measured on.
    pub fn measured_on(&self) -> Option<&str> {
        self.measured_on.as_deref()
    }

    /// As the engine takes it.
    pub fn choice(&self) -> &KvChoice {
        &self.choice
    }
}

impl Default for Kv {
    fn default() -> Self {
        Self { word: "auto".to_owned(), choice: KvChoice::Auto, measured_on: None }
    }
}

impl FromStr for Kv {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Self> {
        let known = WORDS.iter().find(|(name, _)| *name == word);
        let (choice, measured_on) = match known {
            Some((_, choice)) => (choice.clone(), None),
            None => {
                let config = KvConfig::read(Path::new(word))?;
                (KvChoice::Mixed(config.formats()?), Some(config.model))
            }
        };
        Ok(Self { word: word.to_owned(), choice, measured_on })
    }
}

/// A file with the formats of each layer's keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvConfig {
    /// Name of the model that it was measured on.
    pub model: String,
    /// Bits of a cached number on average, scales and means included.
    pub bits: f64,
    /// The layers, from the first.
    pub layers: Vec<LayerBits>,
}

/// Bits of a layer's keys and values: 4, 8, or 16 for half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerBits {
    /// Of keys.
    pub k: u8,
    /// Of values.
    pub v: u8,
}

impl KvConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or is not a KV configuration.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.is_file() {
            let words: Vec<&str> = WORDS.iter().map(|(word, _)| *word).collect();
            bail!("`{}` is neither one of {} nor a file", path.display(), words.join(", "));
        }
        let text = files::read_text(path, FileKind::KvConfig)
            .with_context(|| format!("can't read {}", path.display()))?;
        let json = &mut serde_json::Deserializer::from_str(&text);
        serde_path_to_error::deserialize(json).with_context(|| {
            format!("{} is not a KV configuration; make one with `greenroom-lab kv-config`", path.display())
        })
    }

    /// As the engine takes it.
    ///
    /// # Errors
    /// A number of bits that there is no format for.
    pub fn formats(&self) -> anyhow::Result<Vec<KvLayer>> {
        ensure!(!self.layers.is_empty(), "the KV configuration has no layers");
        let format = |layer: usize, side: &str, bits: u8| match bits {
            4 => Ok(KvFormat::Q4),
            8 => Ok(KvFormat::Q8),
            16 => Ok(KvFormat::F16),
            other => {
                bail!("layers[{layer}].{side} is {other} bits in the KV configuration; expected 4, 8 or 16")
            }
        };
        let layer = |(l, bits): (usize, &LayerBits)| {
            Ok(KvLayer { k: format(l, "k", bits.k)?, v: format(l, "v", bits.v)? })
        };
        self.layers.iter().enumerate().map(layer).collect()
    }
}

impl From<KvLayer> for LayerBits {
    fn from(layer: KvLayer) -> Self {
        let bits = |format| match format {
            KvFormat::Q4 => 4,
            KvFormat::Q8 => 8,
            KvFormat::F16 => 16,
        };
        Self { k: bits(layer.k), v: bits(layer.v) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_files_are_choices_and_mistakes_are_explained() {
        assert_eq!("q8".parse::<Kv>().unwrap().choice(), &KvChoice::Uniform(KvFormat::Q8));
        let wrong = "q5".parse::<Kv>().unwrap_err().to_string();
        assert!(wrong.contains("auto, f16, q8, q8/q4, q4-m, q4"), "{wrong}");
        let sides = KvLayer { k: KvFormat::Q8, v: KvFormat::Q4 };
        assert_eq!("q8/q4".parse::<Kv>().unwrap().choice(), &KvChoice::Sides(sides));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write(r#"{"model": "m", "bits": 5.5, "layers": [{"k": 8, "v": 4}, {"k": 16, "v": 8}]}"#);
        let expected =
            vec![KvLayer { k: KvFormat::Q8, v: KvFormat::Q4 }, KvLayer { k: KvFormat::F16, v: KvFormat::Q8 }];
        assert_eq!(path.parse::<Kv>().unwrap().choice(), &KvChoice::Mixed(expected));
        for (text, place) in [
            (r#"{"model": "m", "bits": 5, "layers": [{"k": 5, "v": 4}]}"#, "layers[0].k is 5 bits"),
            (r#"{"model": "m", "bits": 5, "layers": [{"k": 8}]}"#, "layers[0]"),
            (r#"{"model": "m", "bits": 5, "layers": []}"#, "no layers"),
            ("no json", "not a KV configuration"),
        ] {
            write(text);
            let error = format!("{:#}", path.parse::<Kv>().unwrap_err());
            assert!(error.contains(place), "{text}: {error}");
        }
    }
}
