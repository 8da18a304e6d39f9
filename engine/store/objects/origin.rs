//! An object store as blocking calls, which every thread may make.

use super::http::TrafficCounts;
use crate::store::found::Failure;
use crate::store::medium::Traffic;
use crate::{Error, ErrorKind, Result};
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// An object store, below a prefix.
pub(super) struct Origin {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    /// What a person calls it.
    name: String,
    /// Keeps the time of waits before another attempt. Requests are made on the thread that waits for them.
    runtime: Option<Runtime>,
    traffic: Arc<TrafficCounts>,
}

/// Result of writing under a condition.
pub(super) enum Put {
    Done(UpdateVersion),
    /// The condition failed: another process has written.
    Refused,
}

impl Origin {
    pub(super) fn new(
        store: Box<dyn ObjectStore>,
        prefix: Path,
        name: String,
        traffic: Arc<TrafficCounts>,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("greenroom-objects")
            .enable_time()
            .build()
            .map_err(|e| Error::new(ErrorKind::Closed, format!("can't start a thread for {name}: {e}")))?;
        Ok(Self { store, prefix, name, runtime: Some(runtime), traffic })
    }

    /// What a person calls it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic.read()
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        // Not `block_on`, which a thread of another runtime may not call.
        let _entered = self.runtime.as_ref().map(Runtime::enter);
        pollster::block_on(future)
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, what: &str, name: &str, error: &object_store::Error) -> Error {
        Error::store(format!("can't {what} {name} in {}: {}", self.name, in_words(error)))
    }

    /// Reads an object, with its version.
    pub(super) fn get(&self, name: &str) -> Result<(Vec<u8>, UpdateVersion), Failure> {
        let read = self.wait(async {
            let found = self.store.get(&self.path(name)).await?;
            let version =
                UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok((found.bytes().await?.to_vec(), version))
        });
        read.map_err(|error: object_store::Error| match error {
            object_store::Error::NotFound { .. } => Failure::Missing,
            error => Failure::Unreadable(format!("can't read {}: {}", self.name, in_words(&error))),
        })
    }

    /// Writes an object, whole or not at all.
    pub(super) fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<Put> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.wait(self.store.put_opts(&self.path(name), bytes.to_vec().into(), options));
        match put {
            Ok(done) => Ok(Put::Done(done.into())),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                // An object that is to be replaced does not exist.
                | object_store::Error::NotFound { .. },
            ) => Ok(Put::Refused),
            Err(error) => Err(self.failed("write", name, &error)),
        }
    }

    /// Bytes of an object; `None` if it is not there.
    ///
    /// # Errors
    /// It can't be determined.
    pub(super) fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.wait(self.store.head(&self.path(name))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("find", name, &error)),
        }
    }

    /// Names and bytes of the objects below a folder ("": all).
    pub(super) fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        let below = if folder.is_empty() { self.prefix.clone() } else { self.path(folder) };
        let listed = self.wait(self.store.list(Some(&below)).try_collect::<Vec<_>>());
        let listed = listed.map_err(|error| self.failed("list", folder, &error))?;
        let prefix =
            if self.prefix.as_ref().is_empty() { String::new() } else { format!("{}/", self.prefix) };
        let name = |path: &Path| path.as_ref().strip_prefix(&prefix).map(str::to_owned);
        let mut found: Vec<_> =
            listed.iter().filter_map(|meta| Some((name(&meta.location)?, meta.size))).collect();
        found.sort();
        Ok(found)
    }

    /// Removes an object; one that is missing is not an error.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match self.wait(self.store.delete(&self.path(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("remove", name, &error)),
        }
    }

    /// Copies an object under another name.
    pub(super) fn copy(&self, name: &str, to: &str) -> Result<()> {
        let copied = self.wait(self.store.copy(&self.path(name), &self.path(to)));
        copied.map_err(|error| self.failed("copy", name, &error))
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // a runtime that waits for its end may not be dropped everywhere
        }
    }
}

/// An error with its sources, on one line.
fn in_words(error: &object_store::Error) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}
