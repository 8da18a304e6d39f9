//! The Hub's HTTP API: what is asked, what is answered, and why it was not.
//!
//! The access token is sent to the Hub alone, never to the servers that it redirects to.

use super::cache::{RemoteFile, is_commit};
use super::{HubFile, Repository};
use anyhow::{Context as _, anyhow, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::io::{self, ErrorKind};
use std::time::Duration;
use ureq::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Timeout};

/// Address of the Hub, unless `HF_ENDPOINT` gives another.
const ENDPOINT: &str = "https://huggingface.co";

/// Times that the Hub may send on to another address.
const MAX_REDIRECTS: usize = 8;

/// Longest list of a repository's files.
const MAX_LIST_BYTES: u64 = 16 << 20;

/// Longest silence of a server.
const SILENCE: Duration = Duration::from_secs(30);

/// Longest time to reach one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Characters of a path's part that need no encoding in a URL.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Failure of a request.
#[derive(Debug)]
pub(super) enum HubFailure {
    /// Another attempt may do better: a connection that broke, a server that is busy.
    Transient(anyhow::Error),
    /// A person has to fix it.
    Permanent(anyhow::Error),
}

/// The server that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnsweredBy {
    /// The Hub itself.
    Hub,
    /// A server that it sent us on to.
    Storage,
}

/// Speaks to the Hub.
pub(super) struct HubClient {
    agent: Agent,
    endpoint: String,
    token: Option<HeaderValue>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub file: String,
    /// Bytes, if the Hub says.
    pub size: Option<u64>,
}

/// The GGUF files of a repository.
///
/// # Errors
/// The Hub can't be reached, or does not show the repository.
pub fn list(repository: &Repository) -> anyhow::Result<Vec<Listed>> {
    let listed = HubClient::from_env()?.list(repository);
    listed.map_err(|(HubFailure::Transient(error) | HubFailure::Permanent(error))| error)
}

impl HubClient {
    /// As the environment has it: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, and proxies.
    ///
    /// # Errors
    /// A variable does not hold what it should.
    pub(super) fn from_env() -> anyhow::Result<Self> {
        let var = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        if var("HF_HUB_OFFLINE")
            .is_some_and(|value| !["0", "false", "no", "off"].contains(&&*value.to_lowercase()))
        {
            bail!("HF_HUB_OFFLINE is set, so nothing is downloaded");
        }
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        let uri: Option<Uri> = endpoint.parse().ok();
        if uri.as_ref().and_then(origin).is_none_or(|origin| origin.contains('@')) {
            bail!("HF_ENDPOINT is not a server address; expected e.g. {ENDPOINT}");
        }
        let token = var("HF_TOKEN").map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok();
            value.iter_mut().for_each(|value| value.set_sensitive(true));
            value.context("HF_TOKEN contains characters that are not valid in an access token")
        });
        // The system's certificates, so that those of a company's proxy count; `SSL_CERT_FILE` names others.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("greenroom/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE));
        Ok(Self { agent: config.build().into(), endpoint, token: token.transpose()? })
    }

    /// Asks the Hub for a file's commit, checksum and size.
    pub(super) fn describe(&self, address: &HubFile) -> Result<RemoteFile, HubFailure> {
        let url = self.file_url(address);
        let (response, _) = self.send(Method::HEAD, &url, 0).map_err(|error| unanswered(&url, error))?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            return Err(HubFailure::Permanent(self.not_found(address, response.headers())));
        }
        if !status.is_success() && !status.is_redirection() {
            return Err(self.refused(&address.repository, &url, status));
        }
        remote(response.headers())
            .with_context(|| format!("{url} does not answer like the Hub; check HF_ENDPOINT"))
            .map_err(HubFailure::Permanent)
    }

    /// A file's bytes from `start` on; the server may begin at 0 all the same, which the status says.
    pub(super) fn read(&self, address: &HubFile, start: u64) -> Result<Response<Body>, HubFailure> {
        let url = self.file_url(address);
        let (response, by) = match self.send(Method::GET, &url, start) {
            Ok(answer) => answer,
            Err(error) => return Err(HubFailure::Transient(lost(error))),
        };
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            // The address that the Hub sent on to is signed, and soon out of date; the next attempt has a new
            // one.
            StatusCode::FORBIDDEN if by == AnsweredBy::Storage => {
                Err(HubFailure::Transient(anyhow!("the Hub's storage answered {}", StatusCode::FORBIDDEN)))
            }
            status => Err(self.refused(&address.repository, &url, status)),
        }
    }

    fn list(&self, repository: &Repository) -> Result<Vec<Listed>, HubFailure> {
        #[derive(Deserialize)]
        struct HubModel {
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
            size: Option<u64>,
        }
        let Repository { org, name, revision } = repository;
        let revision = utf8_percent_encode(revision, PART);
        let url = format!("{}/api/models/{org}/{name}/revision/{revision}?blobs=true", self.endpoint);
        let (mut response, _) = self.send(Method::GET, &url, 0).map_err(|error| unanswered(&url, error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(HubFailure::Permanent(self.no_repository(repository))),
            status => return Err(self.refused(repository, &url, status)),
        }
        let body = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let model: Result<HubModel, _> = match body {
            Ok(body) => serde_json::from_slice(&body),
            Err(error) => return Err(HubFailure::Transient(lost(error).context(url))),
        };
        let model = model
            .with_context(|| format!("{url} does not answer like the Hub"))
            .map_err(HubFailure::Permanent)?;
        let files = model.siblings.into_iter();
        let files = files.map(|Sibling { rfilename: file, size }| Listed { file, size });
        Ok(files.filter(|listed| HubFile::new(repository.clone(), &listed.file).is_ok()).collect())
    }

    /// Sends a request and follows redirects. What the Hub says of a file (`X-Linked-Etag`) is in its own
    /// response, so `HEAD` follows redirects only within the Hub.
    fn send(
        &self,
        method: Method,
        url: &str,
        start: u64,
    ) -> Result<(Response<Body>, AnsweredBy), ureq::Error> {
        let home = self.endpoint.parse().ok().as_ref().and_then(origin);
        let mut uri: Uri = url.parse().map_err(|_| ureq::Error::BadUri(url.to_owned()))?;
        for _ in 0..MAX_REDIRECTS {
            let by = if origin(&uri) == home { AnsweredBy::Hub } else { AnsweredBy::Storage };
            let mut request = Request::builder().method(&method).uri(&uri);
            if let (AnsweredBy::Hub, Some(token)) = (by, &self.token) {
                request = request.header(header::AUTHORIZATION, token);
            }
            if start > 0 {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            let response = self.agent.run(request.body(())?)?;
            let Some(next) = next(&uri, &response)? else { return Ok((response, by)) };
            if method == Method::HEAD
                && (origin(&next) != home || response.headers().contains_key(LINKED_ETAG))
            {
                return Ok((response, by));
            }
            uri = next;
        }
        Err(ureq::Error::TooManyRedirects)
    }

    fn file_url(&self, address: &HubFile) -> String {
        let Repository { org, name, revision } = &address.repository;
        let revision = utf8_percent_encode(revision, PART);
        let parts = address.file.split('/').map(|part| utf8_percent_encode(part, PART).to_string());
        format!("{}/{org}/{name}/resolve/{revision}/{}", self.endpoint, parts.collect::<Vec<_>>().join("/"))
    }

    /// The failure of a request that a server refused.
    fn refused(&self, repository: &Repository, url: &str, status: StatusCode) -> HubFailure {
        let Repository { org, name, .. } = repository;
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let page = format!("{}/{org}/{name}", self.endpoint);
                let help = match self.token {
                    Some(_) => format!("the token in HF_TOKEN gives no access; accept the terms at {page}"),
                    None => format!(
                        "it does not exist, or is private or gated; accept its terms at {page}, and put a \
                         token from {}/settings/tokens into HF_TOKEN",
                        self.endpoint
                    ),
                };
                HubFailure::Permanent(anyhow!("access to {org}/{name} was refused ({status}): {help}"))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                HubFailure::Transient(anyhow!("{url} answered {status}"))
            }
            status if status.is_server_error() => HubFailure::Transient(anyhow!("{url} answered {status}")),
            status => HubFailure::Permanent(anyhow!("{url} answered {status}")),
        }
    }

    /// An error that names the part of an address that does not exist, and what there is instead.
    fn not_found(&self, address: &HubFile, headers: &HeaderMap) -> anyhow::Error {
        let Repository { org, name, revision } = &address.repository;
        let code = headers.get("X-Error-Code").and_then(|code| code.to_str().ok());
        match code {
            Some("RepoNotFound") => return self.no_repository(&address.repository),
            Some("RevisionNotFound") => return anyhow!("{org}/{name} has no revision `{revision}`"),
            _ => {}
        }
        let missing = format!("{org}/{name} has no file `{}` at revision `{revision}`", address.file);
        match self.list(&address.repository) {
            Ok(files) if files.is_empty() => anyhow!("{missing}, and no other GGUF files"),
            Ok(files) => {
                const MAX_SHOWN: usize = 40;
                let names: Vec<_> = files.iter().take(MAX_SHOWN).map(|listed| listed.file.as_str()).collect();
                let more = if files.len() > MAX_SHOWN { ", …" } else { "" };
                anyhow!("{missing}; it has {}{more}", names.join(", "))
            }
            Err(_) => anyhow!("{missing}"),
        }
    }

    fn no_repository(&self, Repository { org, name, revision }: &Repository) -> anyhow::Error {
        anyhow!("there is no repository {}/{org}/{name} with a revision `{revision}`", self.endpoint)
    }
}

/// The SHA-256 of a file that the Hub keeps in its store for large files.
const LINKED_ETAG: &str = "X-Linked-Etag";

/// Reads the Hub's metadata of a file.
fn remote(headers: &HeaderMap) -> anyhow::Result<RemoteFile> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let commit = text("X-Repo-Commit").context("the commit is missing (`X-Repo-Commit`)")?;
    let etag =
        text(LINKED_ETAG).or_else(|| text("ETag")).context("the checksum is missing (`X-Linked-Etag`)")?;
    let size = text("X-Linked-Size").or_else(|| text("Content-Length"));
    let size = size.and_then(|size| size.parse().ok()).context("the size is missing (`X-Linked-Size`)")?;
    let sha256 = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("the checksum `{sha256}` is not a SHA-256 of 64 digits");
    }
    if !is_commit(commit) {
        bail!("the commit `{commit}` is not a hash of 40 digits");
    }
    Ok(RemoteFile { commit: commit.into(), sha256, size })
}

/// Scheme, host and port.
fn origin(uri: &Uri) -> Option<String> {
    let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
    Some(format!("{scheme}://{}", uri.authority()?).to_ascii_lowercase())
}

/// The address that a response redirects to, if it does.
fn next(from: &Uri, response: &Response<Body>) -> Result<Option<Uri>, ureq::Error> {
    let to = response.headers().get(header::LOCATION).filter(|_| response.status().is_redirection());
    let Some(to) = to else { return Ok(None) };
    let to = String::from_utf8_lossy(to.as_bytes()).into_owned();
    let uri = match (to.starts_with('/') && !to.starts_with("//"), origin(from)) {
        (true, Some(origin)) => format!("{origin}{to}").parse(),
        _ => to.parse::<Uri>(),
    };
    match uri {
        Ok(uri) if origin(&uri).is_some() => Ok(Some(uri)),
        _ => Err(ureq::Error::BadUri(to)),
    }
}

/// A request without an answer. If no server was reached, waiting would not help.
fn unanswered(url: &str, error: ureq::Error) -> HubFailure {
    match &error {
        ureq::Error::Timeout(Timeout::RecvResponse | Timeout::PerRead) => {}
        ureq::Error::Io(error) if broke(error) => {}
        _ => {
            return HubFailure::Permanent(lost(error).context(format!(
                "can't reach {url} (to use a GGUF file on this machine: --model FILE.gguf)"
            )));
        }
    }
    HubFailure::Transient(lost(error).context(url.to_owned()))
}

/// Returns whether an established connection has ended.
fn broke(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// A transport error, without the library's own words for it.
fn lost(error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(error) => error.into(),
        ureq::Error::HostNotFound => anyhow!("unknown host, or no network"),
        ureq::Error::Timeout(_) => anyhow!("no answer in time"),
        ureq::Error::BadUri(uri) => anyhow!("it redirects to `{uri}`, which is not a valid address"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_file_is_described_whole_or_not_at_all() {
        let (commit, sha256) = ("ab".repeat(20), "cd".repeat(32));
        let (quoted, weak) = (format!("\"{sha256}\""), format!("W/\"{sha256}\""));
        let expected = RemoteFile { commit: commit.clone(), sha256: sha256.clone(), size: 7 };
        let linked = [("x-repo-commit", &*commit), ("x-linked-etag", &*quoted), ("x-linked-size", "7")];
        assert_eq!(remote(&headers(&linked)).unwrap(), expected);
        let plain = [("x-repo-commit", &*commit), ("etag", &*weak), ("content-length", "7")];
        assert_eq!(remote(&headers(&plain)).unwrap(), expected);
        for (at, value) in
            [(0, "main"), (0, "../../x"), (1, "\"abc\""), (1, "\"../../../../x\""), (2, "-1"), (2, "x")]
        {
            let mut wrong = linked;
            wrong[at].1 = value;
            assert!(remote(&headers(&wrong)).is_err(), "{value}");
        }
        for at in 0..3 {
            let mut fewer = linked.to_vec();
            fewer.remove(at);
            assert!(remote(&headers(&fewer)).is_err(), "{at}");
        }
    }

    #[test]
    fn origins_are_distinguished() {
        let of = |text: &str| origin(&text.parse().unwrap());
        assert_eq!(of("https://Hub.co/a"), of("https://hub.co/b?c"));
        for other in ["http://hub.co", "https://hub.co:8443", "https://cdn.hub.co", "https://hub.co@evil.org"]
        {
            assert_ne!(of(other), of("https://hub.co"), "{other}");
        }
        assert_eq!(of("ftp://hub.co"), None);
    }
}
