//! Replies that fail a check of complete replies: they are requested again, a few times, and recorded.

use crate::backend::{Backend, Progress, Reply, Request, Sampling, Sink};
use crate::transcript::Rejected;
use greenroom_scenario::{MAX_AGAIN, turn_seed};
use std::sync::Arc;

/// Temperature of further replies where the first one is greedy: the same would be said again.
const WARM: f32 = 0.7;

/// A request for a reply after some that were rejected: with another seed.
pub fn asked_again(request: Request, n_rejected: usize) -> Request {
    Request { sampling: sampled_again(request.sampling, n_rejected), ..request }
}

/// The sampling of a reply after some that were rejected.
pub fn sampled_again(sampling: Sampling, n_rejected: usize) -> Sampling {
    if n_rejected == 0 {
        return sampling;
    }
    let seed = turn_seed(sampling.seed, &format!("again {n_rejected}"));
    let temperature = match sampling.temperature {
        0.0 => WARM,
        temperature => temperature,
    };
    Sampling { seed, temperature, ..sampling }
}

/// The reply to a request. Where one can be rejected, it is shown only after it is accepted.
pub(super) async fn reply(backend: Arc<dyn Backend>, request: Request, sink: Sink) -> anyhow::Result<Reply> {
    let form = request.form.clone().filter(|form| form.is_checked() && request.strategy.is_none());
    let Some(form) = form.filter(|_| request.choice.is_none()) else {
        return backend.reply(request, sink).await;
    };
    let sink: Arc<dyn Fn(Progress) + Send + Sync> = Arc::from(sink);
    let (mut rejected, mut n_generated, mut ms) = (Vec::new(), 0, 0.0);
    loop {
        let quiet = sink.clone();
        let quiet: Sink = Box::new(move |piece| match piece {
            Progress::Text(_) => {}
            piece => quiet(piece),
        });
        let mut reply = backend.reply(asked_again(request.clone(), rejected.len()), quiet).await?;
        // A reply from a recording comes with those that were rejected before it: to ask for it again returns
        // the same one.
        let is_new = reply.rejected.is_empty() && reply.call.is_none();
        let broken = if is_new { form.broken_by(reply.speech()) } else { None };
        if let Some(invalid) = broken.filter(|_| rejected.len() < MAX_AGAIN) {
            tracing::debug!("{}: asking again: {invalid}", request.path);
            n_generated += reply.usage.as_ref().map_or(0, |usage| usage.generated);
            ms += reply.usage.as_ref().map_or(0.0, |usage| usage.total_ms);
            rejected.push(Rejected { raw: reply.text, invalid });
            continue;
        }
        if is_new {
            reply.rejected = rejected;
        }
        if let Some(usage) = &mut reply.usage {
            usage.generated += n_generated;
            usage.total_ms += ms;
        }
        sink(Progress::Text(reply.speech().to_string()));
        return Ok(reply);
    }
}
