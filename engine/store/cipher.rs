//! Encryption at rest: XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha), a random nonce of 24 bytes before each
//! text.
//!
//! The place of a text (its file's name, or the record before it) is authenticated with it, so that one can't
//! replace another.
//!
//! Encryption (XChaCha20-Poly1305) has a folder of its own for each key, and names derived from the key: the
//! names reveal nothing about texts. Not encrypted: sizes, times, and measurements of a model.

use crate::{Error, Result};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

/// A secret that memories on disk are encrypted with.
#[derive(Clone)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// The key that belongs to a secret, which must be random: at least 32 characters, such as
    /// `openssl rand -hex 32` prints. White space around it does not count.
    ///
    /// # Errors
    /// It is shorter.
    pub fn new(secret: &str) -> Result<Self> {
        let secret = secret.trim();
        if secret.len() < 32 {
            return Err(Error::store(format!(
                "the cache key has {} characters; expected at least 32; make one with `openssl rand -hex 32`",
                secret.len()
            )));
        }
        Ok(Self(blake3::derive_key("greenroom 2026 cache encryption key", secret.as_bytes())))
    }

    /// A secret that names are derived from, so that names in an encrypted folder reveal nothing about their
    /// content.
    pub(crate) fn names(&self) -> String {
        blake3::Hash::from_bytes(blake3::derive_key("greenroom 2026 cache names", &self.0))
            .to_hex()
            .to_string()
    }

    /// Tells folders of different keys apart; says nothing of the key.
    pub(super) fn fingerprint(&self) -> String {
        let digest = blake3::derive_key("greenroom 2026 cache key fingerprint", &self.0);
        blake3::Hash::from_bytes(digest).to_hex()[..12].to_owned()
    }
}

impl std::fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheKey(…)")
    }
}

/// Encrypts with a key, or lets pass without one.
#[derive(Clone)]
pub(crate) struct Cipher(Option<XChaCha20Poly1305>);

const NONCE: usize = 24;
/// Bytes that encryption adds: the nonce, and the text's authentication.
pub(super) const OVERHEAD: usize = NONCE + 16;

impl Cipher {
    pub(crate) fn new(key: Option<&CacheKey>) -> Self {
        Self(key.map(|key| XChaCha20Poly1305::new(&key.0.into())))
    }

    /// Tells whether what is sealed differs from what was given.
    pub(super) fn encrypts(&self) -> bool {
        self.0.is_some()
    }

    /// Encrypts what is to be written in `place`; without a key it stays as it is.
    pub(super) fn seal(&self, place: &[u8], bytes: Vec<u8>) -> Result<Vec<u8>> {
        let Some(aead) = &self.0 else { return Ok(bytes) };
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|e| Error::store(format!("can't get random numbers: {e}")))?;
        let sealed = aead.encrypt(&XNonce::from(nonce), Payload { msg: &bytes, aad: place });
        let sealed = sealed.map_err(|_| Error::store("a file is too large to be encrypted"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Decrypts what was written in `place`; without a key it stays as it is.
    pub(super) fn open(&self, place: &[u8], bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        let Some(aead) = &self.0 else { return Ok(bytes) };
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or("it is too short to be encrypted")?;
        aead.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: place })
            .map_err(|_| "it was not encrypted with this key for this place".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_opens_in_its_place_with_its_key_alone() {
        let cipher = |secret: &str| Cipher::new(Some(&CacheKey::new(secret).expect("a key")));
        let (ours, theirs) = (cipher(&"a".repeat(32)), cipher(&"b".repeat(32)));
        let sealed = ours.seal(b"here", b"what she said".to_vec()).expect("a text");
        assert!(!sealed.windows(4).any(|w| w == b"said"));
        assert_eq!(ours.open(b"here", sealed.clone()).as_deref(), Ok(&b"what she said"[..]));
        assert!(ours.open(b"there", sealed.clone()).is_err());
        assert!(theirs.open(b"here", sealed.clone()).is_err());
        assert!(
            ours.open(b"here", sealed[..30].to_vec()).is_err() && ours.open(b"here", Vec::new()).is_err()
        );
        assert!(CacheKey::new(" short ").is_err());
    }
}
