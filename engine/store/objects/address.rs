//! Addresses of object stores: `s3://BUCKET/PREFIX?SETTING=VALUE`, and `gs://`, `az://` likewise.

use super::http::{Connector, TrafficCounts};
use crate::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Schemes of object stores.
const SCHEMES: [&str; 3] = ["s3", "gs", "az"];
/// Time after which a lease that is not renewed counts no more, unless the address says another.
const LEASE: Duration = Duration::from_secs(10);
/// Maximum number of retries of a request.
const RETRIES: usize = 6;

/// Where an object store is, and how it is used. Credentials are not part of it: they are read from the
/// environment, where the provider's own tools look for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsAddress {
    text: String,
    url: Url,
    settings: Vec<(String, String)>,
    lease: Duration,
    plaintext: bool,
}

impl ObjectsAddress {
    /// Name of a folder of copies: a hash of what the address names.
    pub fn folder_name(&self) -> String {
        blake3::hash(self.url.as_str().as_bytes()).to_hex()[..16].to_owned()
    }

    /// Time after which a lease that is not renewed counts no more.
    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Tells whether memories may lie there without being encrypted.
    pub(super) fn allows_plaintext(&self) -> bool {
        self.plaintext
    }

    /// Folder in the bucket.
    pub(super) fn prefix(&self) -> Result<Path> {
        Path::from_url_path(self.url.path()).map_err(|e| self.wrong(e))
    }

    /// The store at the address.
    ///
    /// # Errors
    /// A setting is unknown, or there are no credentials.
    pub(super) fn connect(&self, traffic: &Arc<TrafficCounts>) -> Result<Box<dyn ObjectStore>> {
        let (connector, url) = (Connector(traffic.clone()), self.url.as_str());
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: Duration::from_secs(60) };
        match self.url.scheme() {
            "s3" => {
                let mut builder = AmazonS3Builder::from_env().with_url(url);
                for (key, value) in &self.settings {
                    builder = builder.with_config(self.setting::<AmazonS3ConfigKey>(key)?, value);
                }
                let store = builder.with_retry(retry).with_http_connector(connector).build();
                Ok(Box::new(store.map_err(|e| self.wrong(e))?))
            }
            "gs" => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url);
                for (key, value) in &self.settings {
                    builder = builder.with_config(self.setting::<GoogleConfigKey>(key)?, value);
                }
                let store = builder.with_retry(retry).with_http_connector(connector).build();
                Ok(Box::new(store.map_err(|e| self.wrong(e))?))
            }
            _ => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_url(url);
                for (key, value) in &self.settings {
                    builder = builder.with_config(self.setting::<AzureConfigKey>(key)?, value);
                }
                let store = builder.with_retry(retry).with_http_connector(connector).build();
                Ok(Box::new(store.map_err(|e| self.wrong(e))?))
            }
        }
    }

    fn setting<K: FromStr>(&self, key: &str) -> Result<K> {
        let of = match self.url.scheme() {
            "s3" => "endpoint, region, allow_http, virtual_hosted_style_request",
            "gs" => "base_url, allow_http",
            _ => "account_name, endpoint, allow_http",
        };
        key.parse().map_err(|_| {
            self.wrong(format!(
                "unknown setting `{key}`; expected lease, plaintext, {of} or another of the \
                object_store crate"
            ))
        })
    }

    fn wrong(&self, why: impl std::fmt::Display) -> Error {
        Error::request(format!("the object store {self}: {why}"))
    }
}

impl std::fmt::Display for ObjectsAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ObjectsAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::request(format!("`{text}` is not an object store address: {why}"));
        let expected = "expected s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER";
        let mut url = Url::parse(text).map_err(|e| wrong(format!("{e}; {expected}")))?;
        if !SCHEMES.contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return Err(wrong(expected.to_owned()));
        }
        if url.password().is_some() || !url.username().is_empty() {
            return Err(wrong("credentials belong in the environment, not in the address".to_owned()));
        }
        let (mut lease, mut plaintext, mut settings) = (LEASE, false, Vec::new());
        for (key, value) in url.query_pairs() {
            match &*key {
                "lease" => {
                    let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                    lease =
                        Duration::from_secs(seconds.ok_or_else(|| {
                            wrong(format!("lease={value}: expected seconds, from 1 to 3600"))
                        })?);
                }
                "plaintext" => {
                    plaintext = value
                        .parse()
                        .map_err(|_| wrong(format!("plaintext={value}: expected true or false")))?;
                }
                key if ["secret", "token", "password", "_key", "credential"]
                    .iter()
                    .any(|w| key.contains(w)) =>
                {
                    return Err(wrong(format!(
                        "{key}: credentials belong in the environment, not in the address"
                    )));
                }
                _ => settings.push((key.into_owned(), value.into_owned())),
            }
        }
        url.set_query(None);
        url.set_fragment(None);
        Ok(Self { text: text.to_owned(), url, settings, lease, plaintext })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_credentials_in_them_are_refused() {
        let address: ObjectsAddress =
            "s3://bucket/some/folder?region=eu-central-1&lease=30".parse().expect("an address");
        assert_eq!(address.prefix().expect("a prefix"), Path::from("some/folder"));
        assert_eq!((address.lease(), address.allows_plaintext()), (Duration::from_secs(30), false));
        assert_eq!(address.settings, [("region".to_owned(), "eu-central-1".to_owned())]);
        assert!(
            "az://container?plaintext=true".parse::<ObjectsAddress>().expect("an address").allows_plaintext()
        );
        // What is set about it does not make it another place.
        let again: ObjectsAddress = "s3://bucket/some/folder".parse().expect("an address");
        assert_eq!(again.folder_name(), address.folder_name());
        for (text, word) in [
            ("http://host/folder", "expected s3://"),
            ("s3:///folder", "expected s3://"),
            ("s3://", "expected s3://"),
            ("s3://me:word@bucket/f", "environment"),
            ("s3://bucket/f?secret_access_key=x", "environment"),
            ("s3://bucket/f?aws_session_token=x", "environment"),
            ("s3://bucket/f?lease=0", "from 1 to 3600"),
            ("s3://bucket/f?plaintext=perhaps", "true or false"),
        ] {
            let refused = text.parse::<ObjectsAddress>().expect_err(text).to_string();
            assert!(refused.contains(word), "{refused}");
        }
        let unknown: ObjectsAddress = "s3://bucket/f?colour=red".parse().expect("an address");
        let refused = unknown.connect(&Arc::default()).expect_err("a refusal").to_string();
        assert!(refused.contains("unknown setting `colour`"), "{refused}");
    }
}
