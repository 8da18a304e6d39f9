//! A small model that guesses what a larger one of the same vocabulary says next (speculative decoding:
//! Leviathan et al. 2023).
//!
//! It draws from its own logits as the sampler would, with the same noise, so that its guesses are those of
//! the larger model as often as the two agree. Guesses are checked as all are (see
//! [`drafting`](super::drafting)): what it says changes no reply.
//!
//! What it has read of each session stays in memory, within a bound; the rest of a history is read in pieces,
//! between passes of the larger model. It guesses as long as that pays, judged by its accuracy and the time
//! of its tokens.

use crate::kv::layout::KvLayout;
use crate::kv::table::BlockHash;
use crate::memory::arena::Arena;
use crate::memory::pass::{Span, Wanted, forward};
use crate::memory::sequence::Sequence;
use crate::text::prefix::common_prefix;
use crate::{Result, SessionKey};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of tokens in a guess.
const MAX_GUESS: usize = 8;
/// Maximum number of tokens of history that are read between two passes.
const MAX_READ_TOKENS: usize = 64;
/// Share of one more guess in what is known of its guesses; and of a token that was not guessed in forgetting
/// it.
const LEARNING_RATE: f64 = 0.05;
const FORGETTING_RATE: f64 = 0.01;
/// How often its guesses are right before any was seen.
const INITIAL_ACCURACY: f64 = 0.7;
/// Time of one of its tokens before one was measured, in tokens of the larger model.
const INITIAL_COST: f64 = 0.25;

/// The small model, with what it has read.
pub(crate) struct DraftModel {
    arena: Arena,
    layout: Arc<KvLayout>,
    /// Ids that both models have.
    n_vocab: usize,
    /// Bytes that its keys and values may take.
    budget: u64,
    /// By session, the latest one last.
    read: VecDeque<Read>,
    /// How often its guesses are right.
    rate: f64,
    /// Seconds that one of its tokens takes.
    token_s: Option<f64>,
}

/// What it has read of a session.
struct Read {
    session: SessionKey,
    tokens: Vec<u32>,
    sequence: Sequence,
    /// Its last guess after this many tokens.
    guessed: (usize, Vec<u32>),
}

/// What a guess costs, and how far it may go.
pub(crate) struct Terms {
    /// Time of one more row in a pass of the larger model, in passes of one row.
    pub(crate) row: f64,
    /// Seconds of such a pass.
    pub(crate) token_s: f64,
    /// Maximum number of tokens.
    pub(crate) most: usize,
}

impl DraftModel {
    /// A model that has read nothing; `budget` in bytes.
    pub(crate) fn new(arena: Arena, layout: Arc<KvLayout>, n_vocab: usize, budget: u64) -> Self {
        Self { arena, layout, n_vocab, budget, read: VecDeque::new(), rate: INITIAL_ACCURACY, token_s: None }
    }

    /// Bytes that its keys and values take.
    pub(crate) fn bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Bytes that they may take.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Releases what it has read of a session.
    pub(crate) fn forget(&mut self, session: &SessionKey) {
        if let Some(at) = self.read.iter().position(|read| read.session == *session) {
            self.read.remove(at).into_iter().for_each(|mut read| read.sequence.clear(&mut self.arena));
        }
    }

    /// The tokens that are likely to follow those of a session; `draw` chooses one by the logits and the
    /// number of guesses before it.
    pub(crate) fn guess(
        &mut self,
        session: &SessionKey,
        tokens: &[u32],
        terms: &Terms,
        draw: impl Fn(&[f32], &[u32]) -> Option<u32>,
    ) -> Vec<u32> {
        let mut read = self.take(session);
        self.learn(&mut read, tokens);
        let guesses = self.guess_after(&mut read, tokens, terms, draw).unwrap_or_else(|e| {
            tracing::debug!("the draft model makes no guesses: {e}");
            Vec::new()
        });
        if guesses.is_empty() {
            self.rate += FORGETTING_RATE * (INITIAL_ACCURACY - self.rate); // it is tried again some time
        }
        read.guessed = (tokens.len(), guesses.clone());
        self.read.push_back(read);
        while self.arena.bytes() > self.budget && self.read.len() > 1 {
            self.read.pop_front().into_iter().for_each(|mut read| read.sequence.clear(&mut self.arena));
        }
        guesses
    }

    fn take(&mut self, session: &SessionKey) -> Read {
        let at = self.read.iter().position(|read| read.session == *session);
        at.and_then(|at| self.read.remove(at)).unwrap_or_else(|| {
            // No two tenants share anything.
            let root = BlockHash::root(&format!("draft\n{}", session.tenant));
            Read {
                session: session.clone(),
                tokens: Vec::new(),
                sequence: Sequence::new(self.layout.clone(), root),
                guessed: (0, Vec::new()),
            }
        })
    }

    /// Compares what was guessed with what was said.
    fn learn(&mut self, read: &mut Read, tokens: &[u32]) {
        let (guessed_at, guesses) = std::mem::take(&mut read.guessed);
        for (guess, said) in guesses.iter().zip(tokens.get(guessed_at..).unwrap_or_default()) {
            self.rate += LEARNING_RATE * (f64::from(u8::from(guess == said)) - self.rate);
            if guess != said {
                break; // what was guessed after it says nothing
            }
        }
    }

    /// Guesses that pay: each is right if all before it are, and then saves the time of a token.
    fn worth(&self, terms: &Terms) -> usize {
        let cost = terms.row + self.token_s.map_or(INITIAL_COST, |token_s| token_s / terms.token_s);
        let mut likely = 1.0;
        let pays = |_: &usize| {
            likely *= self.rate;
            likely > cost
        };
        (0..terms.most.min(MAX_GUESS)).take_while(pays).count()
    }

    fn guess_after(
        &mut self,
        read: &mut Read,
        tokens: &[u32],
        terms: &Terms,
        draw: impl Fn(&[f32], &[u32]) -> Option<u32>,
    ) -> Result<Vec<u32>> {
        let n = self.worth(terms);
        let context = self.arena.device().spec().context_length;
        if n == 0 || tokens.len() + n > context {
            return Ok(Vec::new());
        }
        let common = common_prefix(&read.tokens, tokens);
        if tokens[common..].iter().any(|id| *id as usize >= self.n_vocab) {
            return Ok(Vec::new());
        }
        read.tokens.truncate(common);
        read.tokens.extend(&tokens[common..]);
        // The last token's logits are needed.
        read.sequence.truncate(common.min(tokens.len() - 1), &mut self.arena);
        read.sequence.begin_turn();
        let mut guesses = Vec::new();
        while guesses.len() < n {
            let (lacks, began) = (read.tokens.len() - read.sequence.len(), Instant::now());
            let end = read.sequence.len() + lacks.min(MAX_READ_TOKENS);
            let logits = if lacks > MAX_READ_TOKENS { Wanted::None } else { Wanted::Last };
            let span = Span { sequence: &mut read.sequence, tokens: &read.tokens, end, certain: end, logits };
            let logits = forward(vec![span], &mut self.arena)?.pop().unwrap_or_default();
            read.sequence.trim_window(usize::MAX, &mut self.arena);
            if lacks > MAX_READ_TOKENS {
                break;
            }
            if lacks == 1 {
                let took = began.elapsed().as_secs_f64();
                self.token_s = Some(self.token_s.map_or(took, |before| 0.9 * before + 0.1 * took));
            }
            let Some(id) = draw(&logits, &guesses).filter(|id| (*id as usize) < self.n_vocab) else { break };
            guesses.push(id);
            read.tokens.push(id);
        }
        Ok(guesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::cpu::Cpu;
    use crate::fixtures::RandomModel;
    use crate::model::gguf::Gguf;
    use crate::scoring::distribution::argmax;
    use crate::{KvChoice, KvFormat, ModelSource};
    use greenroom_kernels::Isa;

    fn opened(model: &RandomModel, budget: u64) -> DraftModel {
        let gguf = Gguf::open(&ModelSource::Bundled("tiny", model.bytes().leak())).expect("a model");
        let device = Cpu::load(&Arc::new(gguf), Isa::detect(), &mut |_, _| {}).expect("a device");
        let device: Arc<dyn Device> = Arc::new(device);
        let layout = device.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout");
        let (layout, n_vocab) = (Arc::new(layout), device.n_vocab());
        DraftModel::new(Arena::new(&device, &layout, u64::MAX), layout, n_vocab, budget)
    }

    fn guessed(model: &mut DraftModel, agent: &str, tokens: &[u32]) -> Vec<u32> {
        let terms = Terms { row: 0.0, token_s: 1e9, most: 4 };
        model.guess(&SessionKey::new("r", agent), tokens, &terms, |logits, _| Some(argmax(logits)))
    }

    /// Whatever wrong guesses it made before, whatever other session it guesses for, and however little it
    /// may keep.
    #[test]
    fn a_guess_is_that_of_the_tokens_alone() {
        let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) };
        for model in [RandomModel::tiny(3), windowed] {
            for budget in [u64::MAX, 0] {
                let (mut drafts, mut alone) = (opened(&model, budget), opened(&model, u64::MAX));
                let mut tokens: Vec<u32> = (0..180).map(|i| i * 7 % 250).collect();
                let mut n_guesses = 0;
                for step in 0..120_u32 {
                    // A history is read in pieces, before anything is guessed.
                    let again = |drafts: &mut DraftModel, agent: &str, tokens: &[u32]| {
                        (0..20).map(|_| guessed(drafts, agent, tokens)).find(|guess| !guess.is_empty())
                    };
                    let found = again(&mut drafts, "a", &tokens).expect("a guess");
                    if step % 7 == 0 {
                        let key = SessionKey::new("r", "a");
                        alone.forget(&key);
                        assert_eq!(Some(&found), again(&mut alone, "a", &tokens).as_ref(), "step {step}");
                        n_guesses += found.len();
                    }
                    let n_right = step as usize % (found.len() + 1);
                    tokens.extend(&found[..n_right]);
                    tokens.push(step * 31 % 250); // another one than was guessed, as a rule
                    drafts.rate = 0.9;
                    alone.rate = 0.9;
                    if step % 5 == 0 {
                        drop(again(&mut drafts, "b", &tokens[..150]));
                    }
                }
                assert!(n_guesses > 40 && tokens.len() > 256 + 64, "{n_guesses} guesses");
                assert!(budget > 0 || drafts.read.len() == 1);
            }
        }
    }
}
