//! Constrained replies: one of several whole options, drawn by how likely each is after the prompt.
//!
//! The options' ids form a trie. [`ScoreOptions`] says what of it to read next, adds up log-probabilities,
//! and draws in the end; it knows nothing of caches. `turn` reads, and takes its sequence back between
//! branches.
//!
//! A choice is drawn among whole options by their log-probabilities, not token by token under a mask: a mask
//! gives all that it forbids to what is left at each token, so an option with a likely beginning wins though
//! the model would never have continued it, and no figure says how likely it was. Whole options have the
//! probabilities of `Engine::rank`. That costs a row for each inner node of the trie of their ids, after a
//! prompt that is read once; between branches the sequence goes back (`Sequence::hold`), and nothing is
//! written before the option is known.

use crate::scoring::distribution::Distribution;
use crate::text::chat::reply_ids;
use crate::text::prefix::{Segment, common_prefix};
use crate::text::tokenizer::Tokenizer;
use crate::turns::logprobs::token_logprob;
use crate::turns::sampler::{by_length, draw};
use crate::{Choice, Error, Result, Sampling, TokenLogprob};

/// An option as text and ids.
#[derive(Clone)]
pub(crate) struct Spelling {
    /// The option as it was given.
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    /// The ids' own text: what leads to the option, and perhaps an extra space, before it.
    pub(crate) spelled: String,
}

/// A choice in the making.
pub(crate) struct ScoreOptions {
    options: Vec<Spelling>,
    /// Ids that all of them begin with, and that are no part of any.
    n_lead: usize,
    /// Sums so far, by option.
    logprobs: Vec<f32>,
    /// Number of likely tokens to report for each token of the chosen option; `None`: nothing is reported.
    n_top: Option<usize>,
    /// Then: findings at each token seen so far, by option.
    tokens: Vec<Vec<TokenLogprob>>,
    /// True if the draw weighs them by length.
    by_length: bool,
    /// Options in the order of their ids, the order of the walk: common prefixes are adjacent, so this is the
    /// trie depth first, and whatever the last branch does not share with the next is needed no more.
    ahead: std::vec::IntoIter<usize>,
    /// Ids after the prompt that are read or about to be: inner nodes of the trie, from its root down.
    path: Vec<u32>,
    /// Nodes on the path whose logits were seen; the prompt's end is the first one.
    n_seen: usize,
}

/// The option that was chosen, and the record of the choice.
pub(crate) struct Chosen {
    pub(crate) option: Spelling,
    pub(crate) choice: Choice,
    /// Log-probabilities of its tokens, if requested.
    pub(crate) tokens: Vec<TokenLogprob>,
}

/// Next step of a choice.
pub(crate) enum ChoiceStep {
    /// Read on: logits of the branch are still to come.
    Wait,
    /// Go back to the first `keep` ids after the prompt, then read `ids`; all their logits are wanted.
    Walk { keep: usize, ids: Vec<u32> },
    /// Go back to the first `keep` ids after the prompt, then read the rest of the option: that is the reply.
    Say { keep: usize, chosen: Chosen },
}

impl ScoreOptions {
    /// Nothing is known yet; the options are spelled as a reply to `prompt` is, after `lead`. `by_length` is the request's,
    /// `n_top` its `logprobs`.
    ///
    /// # Errors
    /// There are no options, one is empty or can't be spelled, or two are the same.
    pub(crate) fn new(
        texts: &[String],
        (by_length, n_top): (bool, Option<usize>),
        (prompt, lead): (&[Segment], &[u32]),
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        if texts.is_empty() {
            return Err(Error::request("a choice needs options: the list is empty"));
        }
        let spell = |(i, text): (usize, &String)| spell(i, text, (prompt, lead), tokenizer);
        let options = texts.iter().enumerate().map(spell).collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..options.len()).collect();
        order.sort_by(|a, b| options[*a].ids.cmp(&options[*b].ids));
        for pair in order.windows(2) {
            let [one, other] = [&options[pair[0]], &options[pair[1]]];
            if one.text == other.text {
                return Err(Error::request(format!("the option `{}` of a choice is given twice", one.text)));
            }
            if one.ids == other.ids {
                let (one, other) = (&one.text, &other.text);
                let found = format!("the options `{one}` and `{other}` of a choice are the same tokens");
                return Err(Error::request(found));
            }
        }
        let (logprobs, tokens) = (vec![0.0; options.len()], vec![Vec::new(); options.len()]);
        let (ahead, path) = (order.into_iter(), Vec::new());
        Ok(Self { options, n_lead: lead.len(), logprobs, n_top, tokens, by_length, ahead, path, n_seen: 0 })
    }

    /// Tokens of the longest option.
    pub(crate) fn longest(&self) -> usize {
        self.options.iter().map(|option| option.ids.len()).max().unwrap_or(0)
    }

    /// Takes the distribution of the next row: first of the prompt's last one, then of each that was read for
    /// a branch. `piece` gives the text of a token.
    pub(crate) fn see<'a>(&mut self, next: &Distribution<'_>, eog: &[u32], piece: impl Fn(u32) -> &'a [u8]) {
        let node = &self.path[..self.n_seen];
        let is_lead = node.len() < self.n_lead;
        for (option, logprob) in self.options.iter().zip(&mut self.logprobs) {
            if !is_lead && option.ids.starts_with(node) {
                // Only inner nodes are read: an option that ends at one is the beginning of another.
                let id = option.ids.get(node.len());
                *logprob += id.map_or_else(|| next.logprob_of_any(eog), |id| next.logprob(*id));
            }
        }
        if let Some(n) = self.n_top {
            for (option, tokens) in self.options.iter().zip(&mut self.tokens) {
                let id = option.ids.get(node.len()).filter(|_| option.ids.starts_with(node));
                tokens.extend(id.map(|id| token_logprob(*id, next, n, &piece)));
            }
        }
        self.n_seen += 1;
    }

    /// Returns the next step, given all that was seen.
    pub(crate) fn step(&mut self, sampling: &Sampling) -> ChoiceStep {
        if self.n_seen <= self.path.len() {
            return ChoiceStep::Wait;
        }
        for option in self.ahead.by_ref() {
            let ids = &self.options[option].ids;
            let (inner, keep) = (&ids[..ids.len() - 1], common_prefix(ids, &self.path));
            if keep < inner.len() {
                let ids = inner[keep..].to_vec();
                self.path.truncate(keep);
                self.path.extend(&ids);
                self.n_seen = keep + 1;
                return ChoiceStep::Walk { keep, ids };
            }
        }
        let texts = self.options.iter().map(|option| option.text.as_str());
        let chosen = if self.by_length {
            draw(&by_length(&self.logprobs, texts), sampling)
        } else {
            draw(&self.logprobs, sampling)
        };
        let option = self.options[chosen].clone();
        let choice = Choice { chosen, logprobs: std::mem::take(&mut self.logprobs) };
        let tokens = std::mem::take(&mut self.tokens[chosen]);
        ChoiceStep::Say {
            keep: common_prefix(&option.ids, &self.path),
            chosen: Chosen { option, choice, tokens },
        }
    }
}

/// The option with number `i` as ids.
fn spell(
    i: usize,
    text: &str,
    (prompt, lead): (&[Segment], &[u32]),
    tokenizer: &Tokenizer,
) -> Result<Spelling> {
    if text.is_empty() {
        return Err(Error::request(format!("option {} of a choice is empty", i + 1)));
    }
    let ids = reply_ids(prompt, lead, text, tokenizer)?;
    let (whole, spelled) = (tokenizer.decode(&ids), tokenizer.decode(&ids[lead.len()..]));
    if spelled != text && spelled.strip_prefix(' ') != Some(text) {
        let found =
            format!("the vocabulary can't encode the option `{text}` of a choice; it produces `{spelled}`");
        return Err(Error::request(found));
    }
    Ok(Spelling { text: text.to_owned(), ids, spelled: whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoring::distribution::logprob;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashSet};

    /// Ids of the made-up model: 0 to 2 are text, 3 and 4 end a turn.
    const EOG: [u32; 3] = [3, 4, 3];

    /// Logits that depend on every id before.
    fn logits(before: &[u32]) -> Vec<f32> {
        let number = |id: u32| blake3::hash(format!("{before:?} {id}").as_bytes()).as_bytes()[0];
        (0..5).map(|id| f32::from(number(id)) / 32.0).collect()
    }

    fn choosing(options: &[Vec<u32>]) -> ScoreOptions {
        let spelling = |ids: &Vec<u32>| Spelling {
            text: format!("{ids:?}"),
            ids: ids.clone(),
            spelled: format!("{ids:?}"),
        };
        let mut order: Vec<usize> = (0..options.len()).collect();
        order.sort_by_key(|i| &options[*i]);
        ScoreOptions {
            n_lead: 0,
            by_length: false,
            n_top: Some(2),
            tokens: vec![Vec::new(); options.len()],
            options: options.iter().map(spelling).collect(),
            logprobs: vec![0.0; options.len()],
            ahead: order.into_iter(),
            path: Vec::new(),
            n_seen: 0,
        }
    }

    /// Walks with a list in place of a sequence, a row at a time or branches as a whole; returns what was
    /// read, in order, and the result.
    fn walk(options: &[Vec<u32>], branches: bool) -> (Vec<Vec<u32>>, Chosen) {
        let mut choosing = choosing(options);
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let (mut sequence, mut read) = (Vec::new(), Vec::new());
        choosing.see(&Distribution::of(&logits(&[])), &EOG, |_| &[]);
        loop {
            match choosing.step(&greedy) {
                ChoiceStep::Wait => panic!("all was seen"),
                ChoiceStep::Say { keep, chosen } => {
                    assert_eq!(sequence[..keep], chosen.option.ids[..keep], "what is kept is the option's");
                    return (read, chosen);
                }
                ChoiceStep::Walk { keep, ids } => {
                    sequence.truncate(keep);
                    for (i, id) in ids.iter().enumerate() {
                        sequence.push(*id);
                        read.push(sequence.clone());
                        choosing.see(&Distribution::of(&logits(&sequence)), &EOG, |_| &[]);
                        if !branches && i + 1 < ids.len() {
                            assert!(matches!(choosing.step(&greedy), ChoiceStep::Wait));
                        }
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_inner_node_is_read_once_and_every_token_counted(
            options in prop::collection::btree_set(prop::collection::vec(0..3u32, 1..6), 1..12),
            turned in any::<prop::sample::Index>(),
        ) {
            let mut options: Vec<Vec<u32>> = options.into_iter().collect();
            let by = turned.index(options.len());
            options.rotate_left(by);
            let (read, Chosen { option, choice, tokens }) = walk(&options, by % 2 == 0);
            let inner: BTreeSet<_> = options.iter().flat_map(|o| (1..o.len()).map(|n| o[..n].to_vec())).collect();
            prop_assert_eq!(read.len(), inner.len());
            prop_assert_eq!(read.into_iter().collect::<BTreeSet<_>>(), inner);
            for (option, found) in options.iter().zip(&choice.logprobs) {
                let one = |n: usize| logprob(&logits(&option[..n]), option[n]);
                let mut expected = (0..option.len()).fold(0.0, |sum, n| sum + one(n));
                if options.iter().any(|other| other.len() > option.len() && other.starts_with(option)) {
                    let ends: f32 = [3, 4].map(|id| logprob(&logits(option), id).exp()).iter().sum();
                    expected += ends.ln();
                }
                prop_assert!((found - expected).abs() < 1e-5, "{option:?}: {found}, not {expected}");
            }
            prop_assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), &option.ids[..]);
            for (n, token) in tokens.iter().enumerate() {
                let next = logits(&option.ids[..n]);
                prop_assert_eq!(token.logprob.to_bits(), logprob(&next, token.id).to_bits());
                let best = next.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                prop_assert_eq!((token.top.len(), next[token.top[0].id as usize]), (2, best));
            }
            let total: f64 = choice.logprobs.iter().map(|x| f64::from(*x).exp()).sum();
            prop_assert!(total < 1.0 + 1e-5, "the options are no separate events: {total}");
            prop_assert_eq!(&option.ids, &options[choice.chosen]);
            let best = choice.logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(choice.logprobs[choice.chosen], best);
        }
    }

    #[test]
    fn options_of_one_token_need_no_more_than_the_prompt() {
        let options: Vec<Vec<u32>> = (0..3).map(|id| vec![id]).collect();
        let (read, chosen) = walk(&options, true);
        assert_eq!((read.len(), chosen.choice.logprobs.len()), (0, 3));
        let distinct: HashSet<u32> = chosen.choice.logprobs.iter().map(|x| x.to_bits()).collect();
        assert_eq!(distinct.len(), 3, "the test shows nothing");
    }
}
