//! The bound on disk while the server runs. (Each model's engine keeps it when it is opened and closed.)

use super::live::Live;
use super::models::Models;
use crate::terminal::bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the bytes that were written are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What runs write is not counted, so the folder is also measured once in this many ticks.
const ANYWAY: u32 = 600;
/// Maximum share of the limit that is written between two measurements of the folder, which may be exceeded
/// by that.
const MAX_WRITTEN_SHARE: u64 = 16;

/// Removes the least valuable memories whenever much was written.
pub(super) async fn keep_within(limit: u64, models: Arc<Models>, live: Arc<Live>) {
    let mut n: u32 = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        n = n.wrapping_add(1);
        let written = live.written.load(Ordering::Relaxed);
        if written <= limit / MAX_WRITTEN_SHARE && n % ANYWAY > 0 {
            continue;
        }
        live.written.fetch_sub(written, Ordering::Relaxed);
        for served in models.at_hand() {
            let shrunk = tokio::task::spawn_blocking(move || served.engine().shrink(limit)).await;
            match shrunk {
                Ok(Ok(removed)) if removed.sessions > 0 => tracing::info!(
                    "{} memories were removed to keep those on disk within {}",
                    removed.sessions,
                    bytes(limit)
                ),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!("can't limit the memories on disk: {error}"),
                Err(error) => tracing::warn!("can't limit the memories on disk: {error}"),
            }
        }
    }
}
