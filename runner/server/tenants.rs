//! Tenants, identified by their keys, and their limits.
//!
//! A tenant's name is part of the key of every memory, so tenants share only the weights. Keys are compared
//! by their hashes, all of them and in constant time, so that neither a key nor its beginning can be guessed
//! from the timing.

use super::error::Refusal;
use crate::files::{self, FileKind};
use anyhow::{Context as _, bail, ensure};
use axum::http::HeaderMap;
use greenroom_engine::Meter;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A file of keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    keys: Vec<KeyEntry>,
}

/// A key and its tenant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    /// The key itself, or its BLAKE3 hash (64 hexadecimal digits) as `blake3:…`.
    key: String,
    tenant: String,
    #[serde(flatten)]
    limits: Limits,
}

/// A tenant's limits; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct Limits {
    /// Requests within a minute.
    requests_per_minute: Option<u32>,
    /// Tokens, read or said, within a minute: prompts count what was not reused.
    tokens_per_minute: Option<u64>,
    /// Requests at once, waiting ones included.
    pub(super) at_once: Option<usize>,
    /// Tokens, read or said, while the server runs.
    token_quota: Option<u64>,
}

/// A client.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) limits: Limits,
    /// Tokens that were computed for it, counted as they are: a request that is cancelled costs what it has
    /// used.
    meter: Meter,
    spent: Mutex<MinuteUsage>,
}

/// A tenant's usage within a minute.
#[derive(Debug)]
struct MinuteUsage {
    since: Instant,
    requests: u32,
    /// Tokens before that minute.
    tokens_before: u64,
}

/// All tenants.
#[derive(Debug)]
pub struct Tenants {
    /// By the hash of the key; if empty, no keys are required.
    keys: Vec<(blake3::Hash, Arc<Tenant>)>,
    /// The tenant of requests without a key, if none is required.
    everybody: Arc<Tenant>,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Tenants {
    /// One tenant, without a key.
    pub fn one(name: &str) -> Self {
        Self { keys: Vec::new(), everybody: Arc::new(Tenant::new(name, Limits::default())) }
    }

    /// The tenants in a file of keys (YAML).
    ///
    /// # Errors
    /// The file can't be read, is open to others, or is wrong.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = files::read_text(path, FileKind::Keys)
            .with_context(|| format!("can't read the key file {}", path.display()))?;
        is_private(path)?;
        Self::parse(&text).with_context(|| format!("the key file {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let value = crate::scenario::parse(text).map_err(anyhow::Error::msg)?;
        let file: KeyFile = serde_path_to_error::deserialize(value)?;
        ensure!(!file.keys.is_empty(), "it contains no keys; expected `keys: [{{key: …, tenant: …}}]`");
        let mut tenants = BTreeMap::<String, Arc<Tenant>>::new();
        let (mut keys, mut seen) = (Vec::new(), BTreeSet::new());
        for (at, KeyEntry { key, tenant, limits }) in file.keys.into_iter().enumerate() {
            let hash = match key.strip_prefix("blake3:") {
                Some(hex) => blake3::Hash::from_hex(hex).with_context(|| {
                    format!("keys[{at}].key: expected 64 hexadecimal digits after `blake3:`")
                })?,
                None if key.len() < 16 => {
                    bail!(
                        "keys[{at}].key: {} characters are too few for a secret; expected at least 16",
                        key.len()
                    )
                }
                None => blake3::hash(key.as_bytes()),
            };
            ensure!(!tenant.is_empty(), "keys[{at}].tenant: the name is empty");
            ensure!(seen.insert(*hash.as_bytes()), "keys[{at}].key: this key is given twice");
            let known =
                tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Tenant::new(&tenant, limits)));
            ensure!(
                known.limits == limits,
                "keys[{at}]: the limits of `{tenant}` differ from those of its earlier key"
            );
            keys.push((hash, known.clone()));
        }
        Ok(Self { keys, everybody: Arc::new(Tenant::new("", Limits::default())) })
    }

    /// True if the server requires API keys.
    pub fn are_asked(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The client, by the key in `Authorization: Bearer …` or `x-api-key`.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, Refusal> {
        if self.keys.is_empty() {
            return Ok(self.everybody.clone());
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| value.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
        let keys = text("x-api-key").into_iter().chain(bearer);
        let hashes: Vec<blake3::Hash> = keys.map(|key| blake3::hash(key.trim().as_bytes())).collect();
        if hashes.is_empty() {
            return Err(Refusal::unauthorized(
                "there is no API key; expected `Authorization: Bearer KEY` or `x-api-key: KEY`",
            ));
        }
        let is_shown =
            |known: &blake3::Hash| hashes.iter().fold(false, |shown, hash| shown | (known == hash));
        // All are compared, each in constant time.
        let found = self.keys.iter().fold(
            None,
            |found, (known, tenant)| {
                if is_shown(known) { Some(tenant) } else { found }
            },
        );
        found.cloned().ok_or_else(|| Refusal::unauthorized("unknown key"))
    }
}

impl Tenant {
    fn new(name: &str, limits: Limits) -> Self {
        let spent = MinuteUsage { since: Instant::now(), requests: 0, tokens_before: 0 };
        Self { name: name.to_string(), limits, meter: Meter::default(), spent: Mutex::new(spent) }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The tenant has reached its limit.
    pub(super) fn ask(&self) -> Result<(), Refusal> {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let Limits { requests_per_minute, tokens_per_minute, token_quota, .. } = self.limits;
        let tokens = self.meter.total();
        if let Some(quota) = token_quota.filter(|quota| tokens >= *quota) {
            return Err(Refusal::too_many(format!("the quota of {quota} tokens is used up"), MINUTE * 60));
        }
        let elapsed = spent.since.elapsed();
        if elapsed >= MINUTE {
            (spent.since, spent.requests, spent.tokens_before) = (Instant::now(), 0, tokens);
        }
        let wait = MINUTE.saturating_sub(elapsed);
        if let Some(most) = requests_per_minute.filter(|most| spent.requests >= *most) {
            return Err(Refusal::too_many(format!("at most {most} requests per minute are allowed"), wait));
        }
        if let Some(most) = tokens_per_minute.filter(|most| tokens - spent.tokens_before >= *most) {
            return Err(Refusal::too_many(format!("at most {most} tokens per minute are allowed"), wait));
        }
        spent.requests += 1;
        Ok(())
    }

    /// Counts tokens while they are computed; every request to an engine takes it along.
    pub(super) fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

/// Refuses a file of secrets that others may read.
#[cfg(unix)]
fn is_private(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    ensure!(
        mode & 0o077 == 0,
        "{} can be read by others (mode {mode:03o}); use chmod 600 {}",
        path.display(),
        path.display()
    );
    Ok(())
}

#[cfg(not(unix))]
fn is_private(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(axum::http::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn a_key_says_who_asks() {
        let hash = blake3::hash(b"another-long-secret").to_hex();
        let tenants = Tenants::parse(&format!(
            "keys: [{{key: a-secret-of-alice, tenant: alice}}, {{key: 'blake3:{hash}', tenant: bob, \
             requests_per_minute: 1}}]"
        ));
        let tenants = tenants.unwrap();
        let who = |headers: &HeaderMap| tenants.identify(headers).map(|tenant| tenant.name.clone());
        assert_eq!(who(&headers("authorization", "Bearer a-secret-of-alice")).unwrap(), "alice");
        assert_eq!(who(&headers("x-api-key", "another-long-secret")).unwrap(), "bob");
        for wrong in ["", "a-secret-of-alic", "a-secret-of-alicee", "blake3:"] {
            assert_eq!(who(&headers("x-api-key", wrong)).unwrap_err().status(), 401);
        }
        assert_eq!(who(&HeaderMap::new()).unwrap_err().status(), 401);
        let bob = tenants.identify(&headers("x-api-key", "another-long-secret")).unwrap();
        assert!(bob.ask().is_ok());
        assert_eq!(bob.ask().unwrap_err().status(), 429);
    }

    #[test]
    fn a_wrong_file_of_keys_is_explained() {
        for (text, expected) in [
            ("keys: []", "it contains no keys"),
            ("keys: [{key: short, tenant: a}]", "too few"),
            ("keys: [{key: a-secret-of-alice}]", "tenant"),
            ("keys: [{key: a-secret-of-alice, tenant: ''}]", "the name is empty"),
            ("keys: [{key: 'blake3:zz', tenant: a}]", "64 hexadecimal digits"),
            ("keys: [{key: a-secret-of-alice, tenant: a}, {key: a-secret-of-alice, tenant: b}]", "twice"),
            ("[", ""),
        ] {
            let error = format!("{:#}", Tenants::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn tokens_are_counted_against_rate_and_quota() {
        let limits = Limits { tokens_per_minute: Some(10), token_quota: Some(25), ..Limits::default() };
        let tenant = Tenant::new("a", limits);
        assert!(tenant.ask().is_ok());
        tenant.meter().add(10);
        assert!(tenant.ask().unwrap_err().message().contains("10 tokens per minute"));
        tenant.meter().add(20);
        assert!(tenant.ask().unwrap_err().message().contains("quota of 25"));
    }
}
