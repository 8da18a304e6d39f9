//! What answers turns: the engine in this process (`embedded`), one of another process or machine (`remote`),
//! or several of them (`pool`), and the trait and its plain types, which are `greenroom-play`'s.

mod device;
mod embedded;
mod kv;
mod locate;
mod pool;
mod remote;
pub mod wire;

pub use device::Device;
pub use embedded::{
    CacheKey, Embedded, EmbeddedConfig, Loading, MemoryBudget, ObjectsAddress, about, bytes_in, source,
    worded,
};
pub use greenroom_play::backend::*;
pub use kv::{Kv, KvConfig, LayerBits};
pub use locate::{ModelFile, is_downloaded, locate, tokenizer};
pub use pool::{Pool, Reach};
