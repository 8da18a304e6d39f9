//! Who is let in: requests for this machine's names, from pages of this machine, with a key if there are keys.
//!
//! A page from another site can make a browser call any address under that site's name (DNS rebinding), and post plain
//! text to any server. So a server without keys answers only to its own names and to its own pages, and to those that
//! it is started with ([`Doors`]). To pages of allowed origins it also says so (CORS), without credentials.

use super::error::Refusal;
use super::tenants::Tenant;
use super::{App, window};
use anyhow::ensure;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_LENGTH,
    HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use std::sync::Arc;

/// Names of this machine.
const OWN: [&str; 3] = ["127.0.0.1", "localhost", "::1"];
/// What a container calls the machine that it runs on.
const OF_CONTAINERS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];

/// The names and pages that are answered besides this machine's.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    hosts: Vec<String>,
    origins: Vec<String>,
    /// True if every request has a key.
    has_keys: bool,
    /// True if the server listens at an address that other machines reach: then it has any name.
    is_open: bool,
}

impl Doors {
    /// Answers to these hosts (`name` or `name:port`) and pages of these origins (`https://name:port`, or `*`).
    ///
    /// # Errors
    /// An origin is not one, or is any, though no key is needed.
    pub fn new(
        hosts: Vec<String>,
        origins: Vec<String>,
        has_keys: bool,
        is_open: bool,
    ) -> anyhow::Result<Self> {
        for origin in &origins {
            let host = origin.split_once("://").map(|(_, host)| host);
            let is_one = host.is_some_and(|host| !host.is_empty() && !host.contains('/'));
            ensure!(
                is_one || origin == "*",
                "--allow-origin {origin}: expected an origin, such as https://example.com:8443, or `*`"
            );
            ensure!(
                origin != "*" || has_keys,
                "--allow-origin '*' lets every page that you visit use the server; restrict access with --keys FILE, or \
                 name the origins"
            );
        }
        Ok(Self { hosts, origins, has_keys, is_open })
    }

    fn knows(&self, host: &str) -> bool {
        let name = name_of(host);
        let is = |known: &&str| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host);
        let of_containers = if self.has_keys { &OF_CONTAINERS[..] } else { &[] };
        OWN.iter()
            .chain(of_containers)
            .copied()
            .chain(self.hosts.iter().map(String::as_str))
            .any(|it| is(&it))
    }

    /// The origin of a request, if pages of it are allowed by name.
    fn allowed<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        let is_allowed = |known: &String| known == "*" || known.eq_ignore_ascii_case(text);
        self.origins.iter().any(is_allowed).then_some(origin)
    }

    /// Refuses a request that calls this machine by another's name, or comes from another's page.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = text(HOST).unwrap_or_default();
        if !self.is_open && !self.knows(host) {
            return Err(Refusal::forbidden(format!(
                "`{host}` is not a name of this machine; use 127.0.0.1 or localhost, or start the server with \
                 --allow-host {}",
                name_of(host)
            )));
        }
        // A browser names the requesting page; it lets any page post plain text.
        let is_known = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| self.knows(host));
        match text(ORIGIN) {
            Some(origin) if !self.is_open && !is_known(origin) && self.allowed(headers).is_none() => {
                Err(Refusal::forbidden(format!(
                    "requests from pages of `{origin}` are refused; start the server with --allow-origin {origin}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// What a browser asks before it sends a page's request: whether it may; `None`: that is not asked.
    pub(super) fn preflight(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        if request.method() != Method::OPTIONS || !headers.contains_key("access-control-request-method") {
            return None;
        }
        if let Err(refusal) = self.check(headers) {
            return Some(refusal.into_response());
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE"));
        answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        Some(response)
    }

    /// Lets the page that asked read the answer, if its origin is allowed.
    pub(super) fn label(&self, asked: &HeaderMap, answer: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        answer.append(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.allowed(asked) {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let shown = HeaderValue::from_static("request-id, retry-after");
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, shown);
        }
    }
}

/// Refuses unauthorized requests.
pub(super) fn let_in(app: &App, mut request: Request) -> Result<Request, Refusal> {
    if let Some(tenant) = admitted(app, &request)? {
        request.extensions_mut().insert(tenant);
    }
    Ok(request)
}

/// The request's tenant. Health and the status page, which contain no data, need no key.
fn admitted(app: &App, request: &Request<Body>) -> Result<Option<Arc<Tenant>>, Refusal> {
    app.doors.check(request.headers())?;
    let path = request.uri().path();
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let is_too_large =
        length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|n| n > app.max_body as u64);
    // A memory in a file is imported piece by piece.
    if is_too_large && !path.ends_with("/import") {
        return Err(Refusal::too_large(app.max_body));
    }
    let needs_a_key = path != "/health" && !window::needs_no_key(path);
    needs_a_key.then(|| app.tenants.identify(request.headers())).transpose()
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        headers.extend(origin.map(|origin| (ORIGIN, origin.parse().unwrap())));
        headers
    }

    fn doors(hosts: &[&str], origins: &[&str], has_keys: bool) -> Doors {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        Doors::new(all(hosts), all(origins), has_keys, false).unwrap()
    }

    #[test]
    fn a_server_answers_to_its_own_names_and_to_those_that_are_allowed() {
        let closed = doors(&[], &[], false);
        for host in ["127.0.0.1:8080", "LocalHost", "localhost:1", "[::1]:8080"] {
            assert!(closed.check(&asked(host, None)).is_ok(), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "", "host.docker.internal:8080", "127.0.0.1.nip.io"]
        {
            assert!(closed.check(&asked(host, None)).is_err(), "{host}");
        }
        let open = doors(&["box.lan"], &[], true);
        for host in ["Box.Lan:8080", "host.docker.internal:8080"] {
            assert!(open.check(&asked(host, None)).is_ok(), "{host}");
        }
        assert!(open.check(&asked("box.lan.evil.example", None)).is_err());
    }

    #[test]
    fn a_page_is_answered_if_its_origin_is_allowed() {
        let closed = doors(&[], &[], false);
        assert!(closed.check(&asked("localhost", Some("http://localhost:3000"))).is_ok());
        for origin in ["https://app.example", "null", "http://localhost.evil.example"] {
            assert!(closed.check(&asked("localhost", Some(origin))).is_err(), "{origin}");
        }
        let open = doors(&[], &["https://app.example"], false);
        let page = asked("localhost", Some("https://app.example"));
        assert!(open.check(&page).is_ok());
        let mut answer = HeaderMap::new();
        open.label(&page, &mut answer);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://app.example");
        assert!(!answer.contains_key("access-control-allow-credentials"));
        let other = asked("localhost", Some("https://app.example.evil.example"));
        assert!(open.check(&other).is_err());
        let mut answer = HeaderMap::new();
        closed.label(&page, &mut answer);
        assert!(answer.is_empty());
        for (origins, has_keys) in
            [("*", false), ("app.example", true), ("https://", true), ("http://a/b", true)]
        {
            assert!(Doors::new(Vec::new(), vec![origins.to_string()], has_keys, false).is_err(), "{origins}");
        }
    }
}
