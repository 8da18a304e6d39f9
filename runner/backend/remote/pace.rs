//! How often an engine may be asked: requests at once, requests and tokens a minute, and a budget of tokens.

use anyhow::bail;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

const MINUTE: Duration = Duration::from_secs(60);

/// Limits of one engine, and what was asked of it.
pub(super) struct Pace {
    places: Semaphore,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u64>,
    budget: Option<u64>,
    spent: Mutex<PaceUsage>,
}

#[derive(Default)]
struct PaceUsage {
    /// Requests of the last minute: when, and their tokens.
    requests: VecDeque<(Instant, u64)>,
    /// Tokens in all.
    tokens: u64,
}

impl Pace {
    pub(super) fn new(
        slots: usize,
        requests_per_minute: Option<u32>,
        tokens_per_minute: Option<u64>,
        budget: Option<u64>,
    ) -> Self {
        let (places, spent) = (Semaphore::new(slots), Mutex::default());
        Self { places, requests_per_minute, tokens_per_minute, budget, spent }
    }

    /// Waits for a place, and until the limits allow a request.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) async fn enter(&self) -> anyhow::Result<SemaphorePermit<'_>> {
        let place = self.places.acquire().await?;
        loop {
            let Some(wait) = self.wait(Instant::now())? else { return Ok(place) };
            tokio::time::sleep(wait).await;
        }
    }

    /// The time until a request is allowed; `None`: it is, and is counted.
    fn wait(&self, now: Instant) -> anyhow::Result<Option<Duration>> {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = self.budget.filter(|budget| spent.tokens >= *budget) {
            bail!(
                "the budget of {budget} tokens is used up ({} prompt and reply tokens); continue with \
                 --resume, which has its own budget",
                spent.tokens
            );
        }
        spent.requests.retain(|(at, _)| now.duration_since(*at) < MINUTE);
        let tokens: u64 = spent.requests.iter().map(|(_, tokens)| tokens).sum();
        let is_full =
            self.requests_per_minute.is_some_and(|most| spent.requests.len() >= most.max(1) as usize)
                || self.tokens_per_minute.is_some_and(|most| tokens >= most.max(1));
        match spent.requests.front() {
            Some((oldest, _)) if is_full => {
                Ok(Some((MINUTE - now.duration_since(*oldest)).max(Duration::from_millis(10))))
            }
            _ => {
                spent.requests.push_back((now, 0));
                Ok(None)
            }
        }
    }

    /// Counts the tokens of an answer.
    pub(super) fn spend(&self, tokens: usize) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.tokens += tokens as u64;
        if let Some((_, of_latest)) = spent.requests.back_mut() {
            *of_latest += tokens as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_so_many_requests_and_tokens() {
        let pace = Pace::new(1, Some(2), Some(100), None);
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(pace.wait(now).unwrap(), None);
        assert_eq!(pace.wait(later(1)).unwrap(), None);
        assert_eq!(pace.wait(later(2)).unwrap(), Some(Duration::from_secs(58)), "two requests");
        assert_eq!(pace.wait(later(60)).unwrap(), None);
        pace.spend(100);
        assert_eq!(pace.wait(later(62)).unwrap(), Some(Duration::from_secs(58)), "a hundred tokens");
        assert_eq!(pace.wait(later(120)).unwrap(), None);
    }

    #[test]
    fn a_budget_ends() {
        let pace = Pace::new(1, None, None, Some(10));
        assert_eq!(pace.wait(Instant::now()).unwrap(), None);
        pace.spend(11);
        let error = pace.wait(Instant::now()).unwrap_err().to_string();
        assert!(error.contains("budget of 10 tokens is used up (11 prompt and reply tokens)"), "{error}");
    }
}
