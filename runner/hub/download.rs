//! Downloads a file into the cache: continues where an earlier attempt ended, and publishes nothing that it
//! has not verified.

use super::cache::{CacheSlot, RemoteFile};
use super::client::{HubClient, HubFailure};
use super::{HubCache, HubFile};
use crate::files::{self, FileKind};
use anyhow::{Context as _, anyhow, bail};
use indicatif::DecimalBytes;
use sha2::{Digest as _, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::{HeaderMap, StatusCode, header};

/// Attempts without progress before it gives up.
const ATTEMPTS: u32 = 6;

/// Pause after the first one; it doubles each time.
const PAUSE: Duration = Duration::from_millis(500);

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// First bytes of every GGUF file.
const MAGIC: &[u8] = b"GGUF";

/// Progress of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownloadEvent {
    /// Another process is downloading the same file.
    Waiting,
    /// The bytes that are already there are being verified.
    Verifying {
        /// Bytes.
        done: u64,
        /// Total bytes.
        total: u64,
    },
    /// It arrives.
    Downloading {
        /// Bytes, those of earlier attempts included.
        done: u64,
        /// Total bytes.
        total: u64,
    },
    /// An attempt has failed, and the next one begins after a pause.
    Retrying {
        /// The error, as text.
        error: String,
        /// The pause.
        after: Duration,
    },
}

/// A file that is in the cache and verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// It was there before.
    pub was_there: bool,
}

/// Downloads a file, unless it is there.
///
/// # Errors
/// The Hub can't be reached or does not give it out, the cache can't be written to, or what came is not the
/// file. What has arrived by then stays for the next attempt, unless it is wrong.
pub fn pull(
    cache: &HubCache,
    address: &HubFile,
    on_event: &mut dyn FnMut(DownloadEvent),
) -> anyhow::Result<Pulled> {
    let client = HubClient::from_env()?;
    let mut patience = Patience::default();
    let remote = loop {
        match client.describe(address) {
            Ok(remote) => break remote,
            Err(failure) => patience.wait(failure, on_event)?,
        }
    };
    let place = cache.place(address, &remote)?;
    let _lock = place.lock(|| on_event(DownloadEvent::Waiting)).with_context(|| cache.not_writable())?;
    let was_there = match place.downloaded() {
        Some(file) => keep(file, &remote, on_event)?,
        None => false,
    };
    if !was_there {
        download(&client, address, &place, &remote, on_event)?;
    }
    let path = place.publish().with_context(|| cache.not_writable())?;
    Ok(Pulled { path, size: remote.size, was_there })
}

/// Verifies a file that was there before; removes a damaged one.
fn keep(file: &Path, remote: &RemoteFile, on_event: &mut dyn FnMut(DownloadEvent)) -> anyhow::Result<bool> {
    let mut found = Arrived::new(files::open(file, FileKind::Model)?, file, remote.size);
    found.reread(on_event)?;
    if found.len == remote.size && found.sha256() == remote.sha256 {
        return Ok(true);
    }
    tracing::warn!("{} is damaged and will be downloaded again", file.display());
    std::fs::remove_file(file).with_context(|| format!("can't remove {}", file.display()))?;
    Ok(false)
}

fn download(
    client: &HubClient,
    address: &HubFile,
    place: &CacheSlot,
    remote: &RemoteFile,
    on_event: &mut dyn FnMut(DownloadEvent),
) -> anyhow::Result<()> {
    let options = &mut OpenOptions::new();
    let file = files::open_to_write(&place.partial, options.read(true).write(true).create(true));
    let file = file.with_context(|| format!("can't open {}", place.partial.display()))?;
    let mut arrived = Arrived::new(file, &place.partial, remote.size);
    let verified = arrived.fill(client, address, on_event).and_then(|()| {
        let sha256 = arrived.sha256();
        if sha256 == remote.sha256 {
            return Ok(());
        }
        arrived.discard()?;
        bail!(
            "{address} arrived damaged and was deleted: its SHA-256 is {sha256}, expected {}; try again",
            remote.sha256
        )
    });
    if arrived.len == 0 {
        // Nothing is left to go on from.
        let _ = std::fs::remove_file(&place.partial);
    }
    verified?;
    arrived.file.sync_all().and_then(|()| place.complete()).with_context(|| arrived.not_written())
}

/// The part of a file that has arrived, and its checksum so far.
struct Arrived {
    file: File,
    path: PathBuf,
    sha256: Sha256,
    len: u64,
    total: u64,
}

impl Arrived {
    fn new(file: File, path: &Path, total: u64) -> Self {
        Self { file, path: path.into(), sha256: Sha256::new(), len: 0, total }
    }

    /// Reads what is there, as far as it can be the file.
    fn reread(&mut self, on_event: &mut dyn FnMut(DownloadEvent)) -> anyhow::Result<()> {
        let mut chunk = vec![0; CHUNK];
        while self.len <= self.total {
            match self.file.read(&mut chunk).with_context(|| format!("can't read {}", self.path.display()))? {
                0 => break,
                n => {
                    self.sha256.update(&chunk[..n]);
                    self.len += n as u64;
                }
            }
            on_event(DownloadEvent::Verifying { done: self.len, total: self.total });
        }
        Ok(())
    }

    /// Downloads what is missing.
    fn fill(
        &mut self,
        client: &HubClient,
        address: &HubFile,
        on_event: &mut dyn FnMut(DownloadEvent),
    ) -> anyhow::Result<()> {
        self.reread(on_event)?;
        if self.len > self.total {
            self.discard()?;
        }
        has_room(&self.path, self.total - self.len)?;
        let mut patience = Patience::default();
        while self.len < self.total {
            let before = self.len;
            if let Err(failure) = self.transfer(client, address, on_event) {
                if self.len > before {
                    patience = Patience::default();
                }
                patience.wait(failure, on_event)?;
            }
        }
        Ok(())
    }

    /// The range of one connection.
    fn transfer(
        &mut self,
        client: &HubClient,
        address: &HubFile,
        on_event: &mut dyn FnMut(DownloadEvent),
    ) -> Result<(), HubFailure> {
        let response = client.read(address, self.len)?;
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        if partial && begins(response.headers()) != Some(self.len) {
            let sent = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
            let sent = sent.unwrap_or("no range");
            return Err(HubFailure::Permanent(anyhow!(
                "the server was asked for {address} from byte {} on, but sent `{sent}`",
                self.len
            )));
        }
        if !partial {
            // A server that knows no ranges sends everything again.
            self.discard().map_err(HubFailure::Permanent)?;
        }
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            on_event(DownloadEvent::Downloading { done: self.len, total: self.total });
            match body.read(&mut chunk) {
                Ok(0) if self.len < self.total => {
                    return Err(HubFailure::Transient(anyhow!("the connection ended early")));
                }
                Ok(0) => return Ok(()),
                Ok(n) => self.append(&chunk[..n], address).map_err(HubFailure::Permanent)?,
                Err(error) => return Err(HubFailure::Transient(anyhow!("the connection was lost: {error}"))),
            }
        }
    }

    fn append(&mut self, bytes: &[u8], address: &HubFile) -> anyhow::Result<()> {
        let magic = MAGIC.iter().skip(usize::try_from(self.len).unwrap_or(usize::MAX));
        if !magic.zip(bytes).all(|(expected, found)| expected == found) {
            self.discard()?;
            let found = String::from_utf8_lossy(&bytes[..bytes.len().min(MAGIC.len())]).into_owned();
            bail!("{address} is not a GGUF file: it begins with {found:?}; expected \"GGUF\"");
        }
        let len = self.len + bytes.len() as u64;
        if len > self.total {
            self.discard()?;
            bail!("the server sent more of {address} than the announced {} bytes; try again", self.total);
        }
        self.file.write_all(bytes).with_context(|| self.not_written())?;
        self.sha256.update(bytes);
        self.len = len;
        Ok(())
    }

    /// Starts over.
    fn discard(&mut self) -> anyhow::Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.with_context(|| self.not_written())?;
        (self.sha256, self.len) = (Sha256::new(), 0);
        Ok(())
    }

    fn sha256(&self) -> String {
        self.sha256.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn not_written(&self) -> String {
        format!("can't write {}", self.path.display())
    }
}

/// Refuses what can't fit, before it fills the disk.
fn has_room(file: &Path, needed: u64) -> anyhow::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    // Where the system can't say, writing will.
    let free = fs4::available_space(folder).unwrap_or(u64::MAX);
    if free < needed {
        let (free, needed) = (DecimalBytes(free), DecimalBytes(needed));
        let folder = folder.display();
        bail!(
            "{needed} are needed in {folder}, but only {free} are free; use HF_HUB_CACHE=DIR to put the \
             cache elsewhere"
        );
    }
    Ok(())
}

/// The offset at which a part of a file begins: `Content-Range: bytes 5-9/10`.
fn begins(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes")?.trim().split_once('-')?.0.parse().ok()
}

/// Attempts in a row that have failed.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
}

impl Patience {
    /// Pauses before the next attempt, or gives up.
    fn wait(&mut self, failure: HubFailure, on_event: &mut dyn FnMut(DownloadEvent)) -> anyhow::Result<()> {
        let error = match failure {
            HubFailure::Permanent(error) => return Err(error),
            HubFailure::Transient(error) => error,
        };
        self.failures += 1;
        if self.failures == ATTEMPTS {
            return Err(error.context(format!("{ATTEMPTS} attempts in a row failed")));
        }
        let after = PAUSE * 2_u32.pow(self.failures - 1);
        on_event(DownloadEvent::Retrying { error: format!("{error:#}"), after });
        std::thread::sleep(after);
        Ok(())
    }
}
