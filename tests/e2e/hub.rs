//! A server that speaks what `pull` needs of the Hugging Face Hub's API, and fails on demand: one port for
//! the Hub, and one for the storage that it sends its clients on to.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The commit of `main`.
pub(crate) const COMMIT: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";

/// Faults of the Hub and its storage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Connections of the storage end after this many bytes: the first one, the second one, …
    pub(crate) breaks: VecDeque<usize>,
    /// Number of requests to the Hub that are answered with 503 first.
    pub(crate) busy: usize,
    /// Number of requests to the storage that are answered with 403 first, as if their addresses were out of
    /// date.
    pub(crate) expired: usize,
    /// The content that the storage sends instead.
    pub(crate) content: Option<Vec<u8>>,
    /// The storage sends everything, whatever range was requested.
    pub(crate) ignores_ranges: bool,
    /// The storage sends another range than was requested.
    pub(crate) shifts_ranges: bool,
    /// Size that the Hub announces.
    pub(crate) announces: Option<u64>,
    /// The token without which the Hub shows nothing.
    pub(crate) token: Option<&'static str>,
    /// The Hub has renamed the repository: it sends on to this one.
    pub(crate) renamed: Option<(&'static str, &'static str)>,
    /// Pause after each 64 KiB.
    pub(crate) pace: Duration,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// It came to the storage, not to the Hub.
    pub(crate) storage: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Mutex<Faults>,
    seen: Mutex<Vec<Seen>>,
    storage: u16,
}

/// The server; it ends with the test's process.
pub(crate) struct Hub {
    state: Arc<State>,
    port: u16,
}

impl Hub {
    /// Serves files by `ORG/REPO/PATH`.
    pub(crate) fn serve(files: &[(&str, &[u8])], faults: Faults) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, storage) = (listen(), listen());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let (faults, seen) = (Mutex::new(faults), Mutex::default());
        let state = Arc::new(State { files, faults, seen, storage: port(&storage) });
        let served = Self { state: state.clone(), port: port(&hub) };
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    // A client that disconnects does not matter to the server.
                    std::thread::spawn(move || drop(state.answer(&stream, is_storage)));
                }
            });
        }
        served
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Ranges of what was read from the storage; empty: all of it.
    pub(crate) fn ranges(&self) -> Vec<String> {
        let seen = self.seen().into_iter().filter(|seen| seen.storage && seen.method == "GET");
        seen.map(|seen| seen.range.unwrap_or_default()).collect()
    }

    pub(crate) fn set(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
    }
}

/// The hash that the Hub gives of a file.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl State {
    fn answer(&self, stream: &TcpStream, storage: bool) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut seen = Seen { storage, method, path, range: None, authorization: None };
        for line in lines {
            let line = line?;
            match line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())) {
                Some((name, value)) if name == "range" => seen.range = Some(value),
                Some((name, value)) if name == "authorization" => seen.authorization = Some(value),
                Some(_) => {}
                None => break,
            }
        }
        self.seen.lock().unwrap().push(seen.clone());
        let mut faults = self.faults.lock().unwrap();
        let busy = !storage && faults.busy > 0;
        faults.busy -= usize::from(busy);
        let expired = storage && faults.expired > 0;
        faults.expired -= usize::from(expired);
        let cut = if storage && !expired { faults.breaks.pop_front() } else { None };
        let faults_now = faults.clone();
        drop(faults);
        match storage {
            true if expired => respond(stream, &seen, "403 Forbidden", &[], b""),
            true => self.store(stream, &seen, &faults_now, cut),
            false if busy => respond(stream, &seen, "503 Service Unavailable", &[], b""),
            false => self.describe(stream, &seen, &faults_now),
        }
    }

    /// Answers as the Hub.
    fn describe(&self, stream: &TcpStream, seen: &Seen, faults: &Faults) -> std::io::Result<()> {
        let refused = faults.token.is_some_and(|token| seen.authorization != Some(format!("Bearer {token}")));
        if refused {
            return respond(stream, seen, "401 Unauthorized", &[("X-Error-Code", "GatedRepo")], b"");
        }
        let missing = |code: &str| respond(stream, seen, "404 Not Found", &[("X-Error-Code", code)], b"");
        if let Some((from, to)) = faults.renamed.filter(|(from, _)| seen.path.contains(from)) {
            let location = seen.path.replace(from, to);
            return respond(stream, seen, "307 Temporary Redirect", &[("Location", &location)], b"");
        }
        let in_repository = |repository: &str| {
            let names = self.files.keys().filter_map(|name| name.strip_prefix(&format!("{repository}/")));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        if let Some(path) = seen.path.strip_prefix("/api/models/") {
            let repository = path.split("/revision/").next().unwrap_or_default();
            let siblings = in_repository(repository);
            if siblings.is_empty() {
                return missing("RepoNotFound");
            }
            let sibling = |name: &String| {
                let size = self.files[&format!("{repository}/{name}")].len();
                serde_json::json!({ "rfilename": name, "size": size })
            };
            let siblings: Vec<_> = siblings.iter().map(sibling).collect();
            let body = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
            return respond(stream, seen, "200 OK", &[], body.as_bytes());
        }
        let Some((repository, rest)) = seen.path[1..].split_once("/resolve/") else { return missing("") };
        let (revision, file) = rest.split_once('/').unwrap_or_default();
        if in_repository(repository).is_empty() {
            return missing("RepoNotFound");
        }
        let commit = match revision {
            "main" => COMMIT,
            hash if hash.len() == 40 => hash,
            _ => return missing("RevisionNotFound"),
        };
        let Some(bytes) = self.files.get(&format!("{repository}/{}", file.replace("%20", " "))) else {
            return missing("EntryNotFound");
        };
        let size = faults.announces.unwrap_or(bytes.len() as u64).to_string();
        let sha256 = sha256(bytes);
        let location = format!("http://127.0.0.1:{}/{repository}/{file}?signature=secret", self.storage);
        let headers = [
            ("X-Repo-Commit", commit),
            ("X-Linked-Etag", &format!("\"{sha256}\"")),
            ("X-Linked-Size", &size),
            ("Location", &location),
        ];
        respond(stream, seen, "302 Found", &headers, b"Found. Redirecting to somewhere else")
    }

    /// Answers as the storage.
    fn store(
        &self,
        mut stream: &TcpStream,
        seen: &Seen,
        faults: &Faults,
        cut: Option<usize>,
    ) -> std::io::Result<()> {
        let name = seen.path[1..].split('?').next().unwrap_or_default().replace("%20", " ");
        let bytes = faults.content.as_ref().unwrap_or(&self.files[&name]);
        let start = seen.range.as_ref().filter(|_| !faults.ignores_ranges);
        let start =
            start.map(|range| range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap());
        let start = start.map(|start: usize| start - usize::from(faults.shifts_ranges));
        if start.is_some_and(|start| start >= bytes.len()) {
            return respond(stream, seen, "416 Range Not Satisfiable", &[], b"");
        }
        let body = &bytes[start.unwrap_or(0)..];
        let status = if start.is_some() { "206 Partial Content" } else { "200 OK" };
        let range = start
            .map(|start| format!("Content-Range: bytes {start}-{}/{}\r\n", bytes.len() - 1, bytes.len()));
        let range = range.unwrap_or_default();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}Connection: close\r\n\r\n",
            body.len()
        )?;
        for chunk in body[..cut.unwrap_or(body.len()).min(body.len())].chunks(64 << 10) {
            stream.write_all(chunk)?;
            std::thread::sleep(faults.pace);
        }
        Ok(())
    }
}

fn respond(
    mut stream: &TcpStream,
    seen: &Seen,
    status: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len())?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    if seen.method == "HEAD" { Ok(()) } else { stream.write_all(body) }
}
