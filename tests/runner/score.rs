//! Scores name the figures of what they speak of: of the recorded and of the drawn option, each its own.

use crate::verify::recorded;
use greenroom::backend::StopReason;
use greenroom::backend::{
    Backend, BoxFuture, ForcedToken, ModelCard, Reply, Request, Scripted, Session, Sink,
};
use greenroom::verify::{JudgeQuestion, JudgeSettings, Verdict};
use std::sync::Arc;

/// A model that reads what was recorded as its own, but would choose otherwise, with these log-probabilities
/// of the two doors.
struct Otherwise {
    script: Scripted,
    logprobs: [f32; 2],
    drawn: &'static str,
}

impl Backend for Otherwise {
    fn card(&self) -> ModelCard {
        self.script.card()
    }
    fn reply(&self, request: Request, _sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            if request.choice.is_some() {
                let logprobs = self.logprobs.iter().copied().enumerate().collect();
                return Ok(Reply {
                    logprobs,
                    ..Reply::of(vec![1], self.drawn.into(), StopReason::EndOfTurn)
                });
            }
            let ids = request.follow.unwrap();
            let text: String = ids.iter().filter_map(|id| char::from_u32(*id)).collect();
            let token = |id: &u32| ForcedToken { drawn: *id, logprob: -0.5, drawn_logprob: -0.5 };
            let followed = ids.iter().map(token).collect();
            Ok(Reply { followed, ..Reply::of(ids, text, StopReason::EndOfTurn) })
        })
    }
    fn forget(&self, _session: &Session) {}
}

fn scored(logprobs: [f32; 2], drawn: &'static str) -> Verdict {
    let folder = recorded(&[]); // all choose Left
    let model = Arc::new(Otherwise { script: Scripted::new(|_| None), logprobs, drawn });
    let question = JudgeQuestion::Score { model, tolerance: 0.0 };
    JudgeSettings { search: greenroom::replay::Search::default(), question, writes_pending: false }
        .judge(&folder.path().join("run"))
}

#[test]
fn a_surprising_choice_has_both_options_own_log_probabilities() {
    // The drawn option is not the best one: sampling draws others too.
    for logprobs in [[-0.2, -1.7], [-1.7, -0.2]] {
        let verdict = scored(logprobs, "Right");
        let score = verdict.score.unwrap();
        assert_eq!(score.surprises.len(), 2, "{score:?}");
        for surprise in &score.surprises {
            assert_eq!((surprise.recorded.as_str(), surprise.drawn.as_str()), ("Left", "Right"));
            assert_eq!((surprise.logprob, surprise.drawn_logprob), (Some(logprobs[0]), Some(logprobs[1])));
        }
        let detail = &verdict.problems[0].detail;
        let named = format!(
            "recorded \"Left\" ({:.3} nats), but the sampler draws \"Right\" ({:.3} nats)",
            logprobs[0], logprobs[1]
        );
        assert!(detail.contains(&named), "{detail}");
    }
}

#[test]
fn a_choice_that_is_drawn_again_is_no_surprise() {
    let verdict = scored([-1.7, -0.2], "Left");
    assert_eq!((verdict.problems.len(), verdict.score.unwrap().surprises.len()), (0, 0));
}
