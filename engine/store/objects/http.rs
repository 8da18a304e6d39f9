//! The HTTP client below the object stores: ureq, on the thread that waits for the answer anyway. Counts
//! bytes on the wire.

use crate::store::medium::Traffic;
use async_trait::async_trait;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use ureq::http::{Method, Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Longest time to reach a server, and longest silence of one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of an object.
const MAX_OBJECT_BYTES: u64 = crate::store::pack::MAX_PACK_BYTES;

/// Counts of [`Traffic`], kept while requests are under way: of requests, of bytes sent and of bytes
/// received.
#[derive(Debug, Default)]
pub(super) struct TrafficCounts([AtomicU64; 3]);

impl TrafficCounts {
    pub(super) fn read(&self) -> Traffic {
        let [requests, sent, received] = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        Traffic { requests, sent, received }
    }

    fn add(&self, counts: [u64; 3]) {
        for (count, more) in self.0.iter().zip(counts) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Makes clients that count together.
#[derive(Debug, Default)]
pub(super) struct Connector(pub(super) Arc<TrafficCounts>);

#[derive(Debug)]
struct Client {
    agent: Agent,
    traffic: Arc<TrafficCounts>,
    allow_http: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The system's certificates, so that those of a company's proxy count.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(SILENCE_TIMEOUT))
            .timeout_per_read(Some(SILENCE_TIMEOUT));
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|is| is == "true");
        Ok(HttpClient::new(Client { agent: config.build().into(), traffic: self.0.clone(), allow_http }))
    }
}

impl Client {
    fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, ureq::Error> {
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE) {
            return self.agent.run(request.map(drop));
        }
        self.agent.run(request)
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !self.allow_http && request.uri().scheme_str() == Some("http") && !is_loopback(request.uri()) {
            let refused = "requests would not be encrypted; allow this with allow_http=true";
            return Err(HttpError::new(HttpErrorKind::Unknown, Error::other(refused)));
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes().to_vec();
        let sent = body.len() as u64;
        self.traffic.add([1, sent, 0]);
        let response = self.send(Request::from_parts(parts, body)).map_err(failed)?;
        let (parts, mut body) = response.into_parts();
        let bytes = body.with_config().limit(MAX_OBJECT_BYTES).read_to_vec().map_err(failed)?;
        self.traffic.add([0, 0, bytes.len() as u64]);
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)))
    }
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// What a failure means to those who decide whether to ask again. Every request may be made twice, for what
/// is written is written under a condition or is the same again: so none counts as one that may have arrived.
fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Timeout(_) | ureq::Error::Io(_) => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
