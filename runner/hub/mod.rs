//! Models of the Hugging Face Hub: what they are called, where they lie on this machine, and how they get
//! there.
//!
//! [`HubFile`] names a file, [`CATALOG`] has short names for some, [`HubCache`] finds what was downloaded,
//! [`pull`] downloads. The cache is the one that all clients of the Hub share: what `hf download` or another
//! program has fetched is found, and the other way round. Only `pull` and [`list`] use the network.
//!
//! Downloads go by ureq and rustls with the system's certificates. The hf-hub crate begins an interrupted
//! file again, compares no checksum, and brings some 230 crates. The cache's layout and locks are those of
//! `huggingface_hub`, so each finds what the other has fetched. Only `pull` opens a connection.

mod address;
mod cache;
mod catalog;
mod client;
mod download;

pub use address::{HubFile, Repository};
pub use cache::HubCache;
pub use catalog::{CATALOG, CatalogEntry, named, similar};
pub use client::{Listed, list};
pub use download::{DownloadEvent, Pulled, pull};
