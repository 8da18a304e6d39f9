//! A session's manifest: what it is made of. One line of JSON and, on a second line, its blake3.

use super::tail::TailRef;
use crate::prefix::Segment;
use crate::{Error, Result, SessionKey};
use serde::{Deserialize, Serialize};

/// What is needed to bring a session back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) run: String,
    pub(crate) agent: String,
    pub(crate) identity: Identity,
    /// Addresses of the sealed blocks, in order.
    pub(crate) blocks: Vec<String>,
    /// The rows after them.
    pub(crate) tail: Option<TailRef>,
    /// Tokens held: `256 * blocks + tail rows`.
    pub(crate) n_tokens: usize,
    /// What the tokens are.
    pub(crate) segments: Vec<Segment>,
    /// Seconds since the epoch.
    pub(crate) saved_at: u64,
}

/// What a cache was computed by and how: any difference is a miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Name of the model, for messages; not compared.
    pub(crate) model_name: String,
    /// blake3 of the model file: weights, tokenizer and chat template.
    pub(crate) model: String,
    /// KV layout and formats.
    pub(crate) layout: String,
    /// The kernels' contract.
    pub(crate) numerics: String,
    /// Version of the store.
    pub(crate) store: u32,
    /// Keeps tenants apart: with another salt nothing is shared.
    pub(crate) salt: String,
}

impl Identity {
    /// All that is compared, in one text.
    pub(crate) fn text(&self) -> String {
        let Self { model, layout, numerics, store, salt, .. } = self;
        format!("{model}\n{layout}\n{numerics}\n{store}\n{salt}")
    }

    /// Why a cache of identity `other` can't serve here; `None` if it can.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        let differs = |what: &str, here: &str, there: &str| {
            (here != there).then(|| format!("the cache was computed with {what} {there}, this is {here}"))
        };
        let model = || {
            format!("the cache was computed by model `{}`, this is `{}`", other.model_name, self.model_name)
        };
        (self.model != other.model)
            .then(model)
            .or_else(|| differs("KV layout", &self.layout, &other.layout))
            .or_else(|| differs("numerics", &self.numerics, &other.numerics))
            .or_else(|| differs("store version", &self.store.to_string(), &other.store.to_string()))
            .or_else(|| (self.salt != other.salt).then(|| "the cache belongs to another tenant".to_owned()))
    }
}

impl Manifest {
    /// Whose it is.
    pub(crate) fn session(&self) -> SessionKey {
        SessionKey { run: self.run.clone(), agent: self.agent.clone() }
    }
}

/// The file of a manifest.
pub(crate) fn encode(manifest: &Manifest) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(manifest)
        .map_err(|e| Error::store(format!("a manifest can't be encoded: {e}")))?;
    let sum = blake3::hash(&bytes).to_hex();
    bytes.push(b'\n');
    bytes.extend_from_slice(sum.as_bytes());
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads a manifest; the error is the reason why it can't be trusted.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    let (body, sum) = text.trim_end().rsplit_once('\n').ok_or("it has no checksum line")?;
    if sum != blake3::hash(body.as_bytes()).to_hex().as_str() {
        return Err("its checksum does not match".to_owned());
    }
    let manifest: Manifest = serde_json::from_str(body).map_err(|e| e.to_string())?;
    let safe =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.') && !name.starts_with('.');
    if manifest.tail.as_ref().is_some_and(|tail| !safe(&tail.file)) {
        return Err("its tail's name is not one of ours".to_owned());
    }
    Ok(manifest)
}
