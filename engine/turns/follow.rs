//! A recorded reply, read instead of sampled (teacher forcing): at each of its tokens the sampler says what
//! it would have drawn.
//!
//! The ids are known before, so they go through the model as a prompt does, many rows a pass; a row's logits
//! are those of a decoded token, bit for bit. After the last of them the reply continues freely, so it ends
//! as recorded or shows that it would not.

use crate::scoring::distribution::Distribution;
use crate::text::tokenizer::Tokenizer;
use crate::turns::logprobs::token_logprob;
use crate::turns::reply::ReplyText;
use crate::{Error, ForcedToken, Result, StopReason};

/// A reply that is being followed.
pub(crate) struct Following {
    ids: Vec<u32>,
    pub(crate) reply: ReplyText,
    /// Findings at each token so far.
    pub(crate) found: Vec<ForcedToken>,
}

impl Following {
    /// Nothing is read yet; `reply` is empty.
    ///
    /// # Errors
    /// The vocabulary has no such id.
    pub(crate) fn new(ids: &[u32], reply: ReplyText, tokenizer: &Tokenizer) -> Result<Self> {
        let n = tokenizer.n_vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= n) {
            let found = format!("a recorded reply has the token {id}, but the vocabulary has {n}");
            return Err(Error::request(format!("{found}; it may have been recorded with another model")));
        }
        Ok(Self { ids: ids.to_vec(), reply, found: Vec::new() })
    }

    /// The recorded ids.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tells whether all of it was seen: what comes now is said freely.
    pub(crate) fn is_over(&self) -> bool {
        self.found.len() == self.ids.len()
    }

    /// Takes the logits after the tokens so far, and what the sampler draws from them; continues with the
    /// recorded id, whose log-probability is noted if `logprobs` requests it. A reason to stop is one that
    /// the recording does not have, or that its grammar is complete.
    ///
    /// # Errors
    /// Its grammar became too costly.
    pub(crate) fn see(
        &mut self,
        logits: &[f32],
        drawn: u32,
        logprobs: Option<usize>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<StopReason>> {
        let id = self.ids[self.found.len()];
        let distribution = Distribution::of(logits);
        let (logprob, drawn_logprob) = (distribution.logprob(id), distribution.logprob(drawn));
        self.found.push(ForcedToken { drawn, logprob, drawn_logprob });
        let stop = self.reply.follow(id, tokenizer)?;
        self.reply.note(logprobs.map(|n| token_logprob(id, &distribution, n, |id| tokenizer.piece(id))));
        Ok(stop)
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::RandomModel;
    use crate::*;

    fn engine() -> Engine {
        let model = ModelSource::Bundled("tiny", RandomModel::tiny(3).bytes().leak());
        Engine::open(EngineConfig::new(model)).unwrap()
    }

    fn asked(
        agent: &str,
        past: Vec<Exchange>,
        sampling: &Sampling,
        constraint: Option<Constraint>,
    ) -> Request {
        Request {
            sampling: sampling.clone(),
            max_tokens: if sampling.seed % 3 == 1 { 9 } else { 300 },
            stop: if sampling.seed % 3 == 2 { vec!["e".into(), "a".into()] } else { Vec::new() },
            whole_sentences: true,
            constraint,
            ..Request::new(
                SessionKey::new("r", agent),
                Conversation { exchanges: past, next: "Go on. ".repeat(30), ..Conversation::default() },
            )
        }
    }

    fn finished(engine: &Engine, request: Request) -> Result<Completion> {
        let mut turn = engine.submit(request)?;
        while let Some(event) = turn.blocking_next() {
            match event {
                Event::Done(done) => return Ok(*done),
                Event::Failed(error) => return Err(error),
                _ => {}
            }
        }
        panic!("the turn did not end");
    }

    fn past(said: &Completion) -> Vec<Exchange> {
        let reply = ReplyContent::Ids(said.ids.clone().into());
        vec![Exchange::new("Go on. ".repeat(30), reply)]
    }

    /// Greedy and sampled, with filters and without; replies of these end in all three ways.
    fn samplings() -> Vec<Sampling> {
        let hot = |seed| Sampling { temperature: 4.0, seed, repetition_penalty: 1.3, ..Sampling::default() };
        let greedy = Sampling { temperature: 0.0, repetition_penalty: 1.1, ..Sampling::default() };
        let dry = Some(Dry { multiplier: 4.0, ..Dry::default() });
        let filtered =
            Sampling { dry, temperature: 1.5, top_p: 0.9, min_p: 0.02, top_k: 40, ..Sampling::default() };
        (0..12).map(hot).chain([greedy, filtered]).collect()
    }

    #[test]
    fn a_recording_is_followed_without_surprise_and_leaves_the_same_memory() {
        let engine = engine();
        let mut ends = std::collections::HashSet::new();
        for (i, sampling) in samplings().iter().enumerate() {
            let said = finished(&engine, asked(&format!("a{i}"), Vec::new(), sampling, None)).unwrap();
            ends.insert(said.stop);
            let follow = Constraint::Follow(said.ids.clone());
            let read =
                finished(&engine, asked(&format!("b{i}"), Vec::new(), sampling, Some(follow))).unwrap();
            assert_eq!((&read.ids, &read.text, read.stop), (&said.ids, &said.text, said.stop), "{i}");
            let drawn: Vec<u32> = read.followed.iter().map(|token| token.drawn).collect();
            assert_eq!(drawn, said.ids, "{i}");
            assert_eq!(read.usage.prefilled + read.usage.generated, read.usage.layer0_rows);
            let next = |agent: String| finished(&engine, asked(&agent, past(&said), sampling, None)).unwrap();
            let (one, other) = (next(format!("a{i}")), next(format!("b{i}")));
            assert_eq!((one.ids, one.usage.reused), (other.ids, other.usage.reused), "{i}");
        }
        assert!(ends.len() >= 3, "replies end in all ways: {ends:?}");
    }

    #[test]
    fn an_altered_token_is_a_surprise_at_its_position() {
        let engine = engine();
        let sampling = Sampling { temperature: 4.0, seed: 9, ..Sampling::default() };
        let said = finished(&engine, asked("a", Vec::new(), &sampling, None)).unwrap();
        assert!(said.ids.len() > 8, "{} tokens", said.ids.len());
        let mut altered = said.ids.clone();
        altered[5] = if altered[5] == 40 { 41 } else { 40 };
        let read =
            finished(&engine, asked("b", Vec::new(), &sampling, Some(Constraint::Follow(altered.clone()))));
        let read = read.unwrap();
        assert_eq!(read.ids[..altered.len()], altered);
        let first = read.followed.iter().zip(&altered).position(|(token, id)| token.drawn != *id);
        assert_eq!((first, read.followed[5].drawn), (Some(5), said.ids[5]));
        assert_eq!(read.followed.len(), altered.len());
        // The model treats it like the same ids anywhere.
        let conversation = asked("b", Vec::new(), &sampling, None).prompt;
        let prompt = read.usage.reused + read.usage.prefilled;
        let again = asked("c", past(&read), &sampling, Some(Constraint::Follow(Vec::new())));
        let user = &again.prompt.conversation().unwrap().exchanges[0].user;
        assert_eq!(*user, conversation.conversation().unwrap().next);
        let next = finished(&engine, asked("b", past(&read), &sampling, None)).unwrap();
        assert_eq!(finished(&engine, again).unwrap().ids, next.ids);
        assert!(next.usage.reused >= prompt + read.ids.len() - 1);
    }

    #[test]
    fn an_id_that_the_vocabulary_has_not_is_refused() {
        let follow = Some(Constraint::Follow(vec![1, 4_000_000]));
        let error = finished(&engine(), asked("a", Vec::new(), &Sampling::default(), follow)).unwrap_err();
        assert!(error.to_string().contains("4000000"), "{error}");
    }
}
