//! What the header of a model file says of it, read without the weights and the vocabulary: a hundred files
//! are listed in a moment, and none is loaded.

use crate::Result;
use crate::model::family::FAMILIES;
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::text::tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::path::Path;

/// Description of a model file by its header.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/understudy.gguf");
/// let header = ModelHeader::read(path.as_ref())?;
/// assert_eq!(header.refusal, None);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelHeader {
    /// `general.architecture`.
    pub family: String,
    /// Number of weights.
    pub n_params: u64,
    /// The number format of most weights, as ggml names it: `Q4_K`.
    pub weights: String,
    /// Size of the model's files.
    pub file_bytes: u64,
    /// What of the model is not supported: its family, or a message. `None`: nothing in the header is against
    /// it. (Tensors are only compared with those of the family when they are loaded.)
    pub refusal: Option<String>,
}

impl ModelHeader {
    /// Reads the header of a GGUF file; of a model that was split, of all its files.
    ///
    /// # Errors
    /// It is not a complete GGUF file.
    pub fn read(path: &Path) -> Result<Self> {
        let gguf = Gguf::open_header(path)?;
        let family = gguf.text("general.architecture").unwrap_or("(none)").to_owned();
        let mut weights: BTreeMap<String, u64> = BTreeMap::new();
        for (_, tensor) in gguf.tensors() {
            let n = weights.entry(tensor.kind.to_string()).or_default();
            *n = n.saturating_add(tensor.n_elements());
        }
        let check = || {
            DecoderSpec::from_gguf(&gguf)?;
            gguf.knows_types()?;
            Tokenizer::check_kind(&gguf)
        };
        let refusal = match FAMILIES.iter().any(|known| known.name == family) {
            false => Some(family.clone()),
            true => check().err().map(|error| {
                let said = error.to_string();
                said.strip_prefix(&format!("{}: ", gguf.name)).unwrap_or(&said).to_owned()
            }),
        };
        Ok(Self {
            family,
            n_params: weights.values().fold(0, |sum, n| sum.saturating_add(*n)),
            weights: weights.into_iter().max_by_key(|(_, n)| *n).map_or_else(String::new, |(name, _)| name),
            file_bytes: gguf.n_bytes(),
            refusal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::RandomModel;

    fn read(model: &RandomModel) -> ModelHeader {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, model.bytes()).unwrap();
        ModelHeader::read(&path).unwrap()
    }

    #[test]
    fn a_header_says_what_the_whole_file_says() {
        let model = RandomModel { n_vocab: 5000, ..RandomModel::tiny_of("qwen2", 1) };
        let bytes = model.bytes();
        let header = read(&model);
        let encoder = crate::PromptEncoder::open(&crate::ModelSource::Bundled("m", bytes.leak())).unwrap();
        let info = encoder.model();
        assert_eq!((&header.family, header.n_params), (&info.family, info.n_params));
        assert_eq!((header.file_bytes, header.refusal), (info.file_bytes, None));
    }

    #[test]
    fn refusals_are_named() {
        let unknown = RandomModel { architecture: "gemma3n".into(), ..RandomModel::tiny(1) };
        assert_eq!(read(&unknown).refusal.as_deref(), Some("gemma3n"));
        let mut strange = RandomModel::tiny(1);
        strange.facts.insert("attention.causal".into(), crate::fixtures::Fact::Flag(false));
        let refusal = read(&strange).refusal.unwrap();
        assert!(refusal.starts_with("`llama.attention.causal` is false"), "{refusal}");
    }

    #[test]
    fn what_is_not_a_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let refused = |bytes: &[u8], words: &str| {
            std::fs::write(&path, bytes).unwrap();
            let error = ModelHeader::read(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(b"", "ends inside magic");
        refused(b"PK..", "does not begin with \"GGUF\"");
        let bytes = RandomModel::tiny(1).bytes();
        refused(&bytes[..bytes.len() / 2], "reaches past the end of the file");
        let many = [&b"GGUF\x03\0\0\0"[..], &[0; 8], &u64::MAX.to_le_bytes()].concat();
        refused(&many, "expected at most 1048576 of each");
    }
}
