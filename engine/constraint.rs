//! Constrained replies: which tokens may come next. Decided on bytes, so that any tokenization of an option will do.

use crate::tokenizer::Tokenizer;
use crate::{Constraint, Error, Result};

/// Refuses a constraint that no reply could fulfil.
pub(crate) fn check(constraint: &Constraint) -> Result<()> {
    let Constraint::OneOf(options) = constraint;
    match options.iter().any(String::is_empty) || options.is_empty() {
        true => Err(Error::request("a choice needs options, and none of them may be empty")),
        false => Ok(()),
    }
}

/// Sets the logits of all tokens that may not follow `said` to minus infinity; `eog` tokens may where `said` is complete.
///
/// # Errors
/// No token may follow: the vocabulary can't spell any option.
pub(crate) fn mask(
    constraint: &Constraint,
    said: &[u8],
    logits: &mut [f32],
    tokenizer: &Tokenizer,
    eog: &[u32],
) -> Result<()> {
    let Constraint::OneOf(options) = constraint;
    let rests: Vec<&[u8]> = options.iter().filter_map(|o| o.as_bytes().strip_prefix(said)).collect();
    let mut open = false;
    for (id, logit) in (0u32..).zip(logits.iter_mut()) {
        let piece = tokenizer.piece(id);
        let spells =
            !piece.is_empty() && !tokenizer.is_control(id) && rests.iter().any(|r| r.starts_with(piece));
        let ends = eog.contains(&id) && rests.contains(&&b""[..]);
        if spells || ends {
            open = true;
        } else {
            *logit = f32::NEG_INFINITY;
        }
    }
    match open {
        true => Ok(()),
        false => Err(Error::request(format!("the vocabulary can't spell any of the options {options:?}"))),
    }
}

/// Whether `said` is an option that no other option goes on from: the reply is then complete.
pub(crate) fn complete(constraint: &Constraint, said: &[u8]) -> bool {
    let Constraint::OneOf(options) = constraint;
    let mut rests = options.iter().filter_map(|o| o.as_bytes().strip_prefix(said)).peekable();
    rests.peek().is_some() && rests.all(<[u8]>::is_empty)
}

#[cfg(test)]
mod tests {
    use crate::fixtures::RandomModel;
    use crate::*;

    /// The reply of a random model under a constraint.
    fn reply(engine: &Engine, options: &[&str], seed: u64) -> Result<Completion> {
        let mut turn = engine.submit(Request {
            session: SessionKey { run: "r".to_owned(), agent: format!("{options:?} {seed}") },
            parent: None,
            retention: Retention::Ephemeral,
            conversation: Conversation { next: "Choose.".to_owned(), ..Conversation::default() },
            sampling: Sampling { seed, temperature: 1.5, ..Sampling::default() },
            max_tokens: 40,
            min_tokens: 0,
            stop: Vec::new(),
            constraint: Some(Constraint::OneOf(options.iter().map(|o| (*o).to_owned()).collect())),
            next_use: None,
            cold: false,
        })?;
        loop {
            match turn.blocking_next().expect("an end") {
                Event::Failed(e) => return Err(e),
                Event::Done(done) => return Ok(*done),
                _ => {}
            }
        }
    }

    #[test]
    fn a_reply_is_one_of_the_options_and_every_option_can_win() {
        let model: &'static [u8] = RandomModel::tiny(5).bytes().leak();
        let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)), &mut |_, _| {})
            .expect("an engine");
        let options = ["I talk", "I stay silent", "I stay", "☃"];
        let mut seen = std::collections::HashSet::new();
        for seed in 0..60 {
            let done = reply(&engine, &options, seed).expect("a reply");
            assert!(options.contains(&done.text.as_str()), "{:?}", done.text);
            assert_eq!(done.stop, StopReason::EndOfTurn);
            assert_eq!(done.usage.generated, done.ids.len(), "every token of the reply is in the cache");
            seen.insert(done.text);
        }
        assert!(seen.len() >= 3, "{seen:?}");
        assert!(reply(&engine, &[], 0).is_err());
        assert!(reply(&engine, &[""], 0).is_err());
    }
}
