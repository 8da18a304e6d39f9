//! Choices within turns, from outside: what an option is given is what the model gives it, and a choice
//! leaves the cache as a reply of the same ids would.

use super::some;
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::tests::exactness::files_with;
use crate::text::chat::{Chat, reply_ids};
use crate::text::prefix::flatten;
use crate::text::tokenizer::Tokenizer;
use crate::turns::schedule::Guessing;
use crate::*;
use std::path::{Path, PathBuf};

/// Tokens of prompts: around the borders of the first blocks.
const LENGTHS: [usize; 4] = [255, 256, 257, 511];

/// An engine, and what tells its ids.
struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    chat: Chat,
}

/// No option begins with another; from any of [`LENGTHS`] some end in the block after the next.
fn options() -> Vec<String> {
    let long = |n: usize, end: &str| "w".repeat(n) + end;
    vec![long(530, "b"), "yes".into(), long(3, "yes"), "yeti".into(), long(540, "no"), "a".into()]
}

/// Settings that draw option `i` of `n`, whatever their probabilities.
fn drawing(i: usize, n: usize) -> Sampling {
    let sampling = |seed| Sampling { temperature: f32::MAX, seed, ..Sampling::default() };
    let seeds = (0..).map(sampling);
    seeds.into_iter().find(|sampling| draw(&vec![-1.0; n], sampling) == i).expect("such a seed")
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

fn finished(mut turn: Turn) -> Result<(String, Completion)> {
    let mut streamed = String::new();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Text(text) => streamed += &text,
            Event::Failed(e) => return Err(e),
            Event::Prefill { done, total } => assert!(done < total, "{done} of {total}"),
            Event::Thought(_) | Event::Logprobs(_) | Event::Call(_) => panic!("nobody asked for them"),
            Event::Done(_) => {}
        }
    }
    turn.blocking_commit().map(|completion| (streamed, *completion))
}

impl Bench {
    fn new(model: &RandomModel, format: KvFormat, dir: Option<&Path>, prefill_chunk: usize) -> Self {
        let source = ModelSource::Bundled("random", model.bytes().leak());
        let gguf = Gguf::open(&source).expect("a model");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let chat = Chat::new(gguf.text("tokenizer.chat_template"), &tokenizer).expect("a template");
        let (kv, cache_dir) = (KvChoice::Uniform(format), dir.map(Path::to_path_buf));
        let config = EngineConfig {
            kv,
            cache_dir,
            prefill_chunk,
            guessing: Guessing::NEAR_AND_FAR,
            ..EngineConfig::new(source)
        };
        Self { engine: Engine::open(config).expect("an engine"), tokenizer, chat }
    }

    fn prompt(&self, conversation: &Conversation) -> Vec<u32> {
        flatten(&self.chat.prompt(conversation, &self.tokenizer).expect("a prompt"))
    }

    fn ids(&self, conversation: &Conversation, option: &str) -> Vec<u32> {
        let prompt = self.chat.prompt(conversation, &self.tokenizer).expect("a prompt");
        reply_ids(&prompt, &[], option, &self.tokenizer).expect("ids")
    }

    /// A conversation after `exchanges` whose prompt has `n` tokens.
    fn of_length(&self, exchanges: &[Exchange], n: usize) -> Conversation {
        let exchanges = exchanges.to_vec();
        let mut conversation = Conversation { exchanges, next: String::new(), ..Conversation::default() };
        conversation.next = "z".repeat(n - self.prompt(&conversation).len());
        assert_eq!(self.prompt(&conversation).len(), n);
        conversation
    }

    fn submit(
        &self,
        agent: &str,
        conversation: &Conversation,
        options: &[String],
        sampling: Sampling,
    ) -> Turn {
        let constraint = (!options.is_empty()).then(|| Constraint::OneOf(options.to_vec()));
        let request = Request {
            retention: Retention::Persistent,
            sampling,
            max_tokens: 50,
            min_tokens: 50,
            stop: vec!["es".into()],
            whole_sentences: true,
            constraint,
            ..Request::new(SessionKey::new("r", agent), conversation.clone())
        };
        self.engine.submit(request).expect("a turn")
    }

    /// A choice, with everything known about it except its figures.
    fn choose(&self, agent: &str, conversation: &Conversation, options: &[String], i: usize) -> Completion {
        let turn = self.submit(agent, conversation, options, drawing(i, options.len()));
        let (streamed, said) = finished(turn).expect("a reply");
        assert_eq!((&said.text, &streamed), (&options[i], &options[i]));
        assert_eq!(said.ids, self.ids(conversation, &options[i]));
        assert_eq!(said.stop, StopReason::EndOfTurn);
        assert_eq!(said.choice.as_ref().map(|choice| choice.chosen), Some(i));
        let usage = &said.usage;
        assert_eq!(usage.prefilled + usage.recomputed + usage.generated, usage.layer0_rows);
        assert_eq!(usage.reused + usage.prefilled + usage.recomputed, self.prompt(conversation).len());
        said
    }

    /// The options' log-probabilities from an empty cache: ranked, and scored token by token.
    fn expected(&self, conversation: &Conversation, options: &[String]) -> Vec<f32> {
        let ranking = self.engine.rank(conversation, options, None).expect("a ranking");
        let ranked: Vec<f32> = ranking.options.iter().map(|option| option.logprob).collect();
        let prompt = self.prompt(conversation);
        for (option, ranked) in options.iter().zip(&ranked) {
            let mut sum = 0.0;
            let ids = [&prompt[..], &self.ids(conversation, option)].concat();
            let mut add =
                |score: TokenScore| sum += if score.pos < prompt.len() { 0.0 } else { score.logprob };
            self.engine.score(&ids, None, &mut add).expect("scores");
            assert_eq!(sum, *ranked, "`{option}`");
        }
        ranked
    }
}

fn logprobs(said: &Completion) -> &[f32] {
    &said.choice.as_ref().expect("a choice").logprobs
}

fn answered(conversation: &Conversation, said: &Completion) -> Vec<Exchange> {
    let reply = ReplyContent::Ids(said.ids.clone().into());
    let last = Exchange::new(conversation.next.clone(), reply);
    [&conversation.exchanges[..], &[last]].concat()
}

/// The next turn reads nothing again, and finds what a cold one would: a choice's figures show any bit that
/// differs.
fn check_next(bench: &Bench, agent: &str, conversation: &Conversation, said: &Completion) -> Completion {
    let known = bench.prompt(conversation).len() + said.ids.len();
    let exchanges = answered(conversation, said);
    let next = Conversation { exchanges, next: "And now?".into(), ..Conversation::default() };
    let again = bench.choose(agent, &next, &options(), 2);
    assert_eq!((again.usage.kind, again.usage.reused), (MatchKind::Extend, known));
    assert_eq!(again.usage.recomputed, 0);
    let ranking = bench.engine.rank(&next, &options(), None).expect("a ranking");
    let ranked: Vec<f32> = ranking.options.iter().map(|option| option.logprob).collect();
    assert_eq!(logprobs(&again), ranked, "`{agent}`: the turn after a choice");
    again
}

/// Plain layers, and layers with a window.
fn models() -> [RandomModel; 2] {
    [RandomModel::tiny(5), RandomModel::tiny_of("gemma3", 5)]
}

#[test]
fn an_option_is_as_likely_as_it_is_from_an_empty_cache() {
    for (m, model) in some(models().iter().enumerate(), 2) {
        for format in [KvFormat::F16, KvFormat::Q4] {
            let dir = tempfile::tempdir().expect("a folder");
            let dir = (m == 1).then(|| dir.path());
            let bench = Bench::new(model, format, dir, if m == 0 { 512 } else { 48 });
            for n in LENGTHS {
                let conversation = bench.of_length(&[], n);
                let expected = bench.expected(&conversation, &options());
                for i in [1, 4] {
                    let agent = format!("{n} {i}");
                    let said = bench.choose(&agent, &conversation, &options(), i);
                    assert_eq!(logprobs(&said), expected, "{format:?}, a prompt of {n}");
                    check_next(&bench, &agent, &conversation, &said);
                }
            }
        }
    }
}

#[test]
fn so_it_is_beside_other_turns() {
    let bench = Bench::new(&RandomModel::tiny(5), KvFormat::Q4, None, 100);
    let conversations = LENGTHS.map(|n| bench.of_length(&[], n));
    let expected = conversations.each_ref().map(|c| bench.expected(c, &options()));
    let free = |agent: &str| bench.submit(agent, &conversations[0], &[], greedy());
    let alone = finished(free("alone")).expect("a reply").1;
    let beside = free("beside");
    let turns = conversations.each_ref();
    let turns = turns.map(|c| bench.submit(&c.next, c, &options(), drawing(4, options().len())));
    assert_eq!(finished(beside).expect("a reply").1.ids, alone.ids);
    for ((turn, expected), conversation) in turns.into_iter().zip(expected).zip(&conversations) {
        let (_, said) = finished(turn).expect("a reply");
        assert_eq!(logprobs(&said), expected);
        check_next(&bench, &conversation.next, conversation, &said);
    }
}

#[test]
fn so_it_is_after_a_restart() {
    for (model, format) in models().iter().zip([KvFormat::Q4, KvFormat::F16]) {
        for n in LENGTHS {
            let dir = tempfile::tempdir().expect("a folder");
            let open = || Bench::new(model, format, Some(dir.path()), 512);
            let bench = open();
            let first = bench.of_length(&[], 100);
            let said = bench.choose("a", &first, &options(), 3);
            let (exchanges, known) = (answered(&first, &said), 100 + said.ids.len());
            drop(bench);
            let bench = open();
            let conversation = bench.of_length(&exchanges, n);
            let said = bench.choose("a", &conversation, &options(), 0);
            assert_eq!((said.usage.reused, said.usage.source), (known, CacheSource::Disk));
            assert_eq!(logprobs(&said), bench.expected(&conversation, &options()), "a prompt of {n}");
            drop(bench);
            let again = check_next(&open(), "a", &conversation, &said);
            assert_eq!(again.usage.source, CacheSource::Disk);
        }
    }
}

/// Layers with a window write as they go: not while options are weighed.
#[test]
fn what_is_not_chosen_is_not_written() {
    let [_, windowed] = models();
    let blocks = |options: &[String], i: usize| {
        let dir = tempfile::tempdir().expect("a folder");
        let bench = Bench::new(&windowed, KvFormat::Q4, Some(dir.path()), 512);
        bench.choose("a", &bench.of_length(&[], 257), options, i);
        drop(bench);
        let folders = ["/blocks/", "/windows/"].map(|part| files_with(dir.path(), part));
        let name = |path: &PathBuf| path.strip_prefix(dir.path()).expect("a file of the folder").to_owned();
        folders.iter().flatten().map(name).collect::<Vec<_>>()
    };
    let (many, few) = (blocks(&options(), 5), blocks(&["b".into(), "a".into()], 1));
    assert_eq!((many.len(), many == few), (2, true), "{many:?}, {few:?}");
}

#[test]
fn an_option_that_another_begins_with_ends_there() {
    let bench = Bench::new(&RandomModel::tiny(5), KvFormat::Q4, None, 512);
    let conversation = bench.of_length(&[], 255);
    let options = ["qz", "q", "a", "qzz", "qzza"].map(str::to_owned);
    let prompt = bench.prompt(&conversation);
    let score = |ids: &[u32]| {
        let mut sum = 0.0;
        let mut add = |s: TokenScore| sum += if s.pos < prompt.len() { 0.0 } else { f64::from(s.logprob) };
        bench.engine.score(&[&prompt[..], ids].concat(), None, &mut add).expect("scores");
        sum
    };
    let mut eog = bench.chat.eog().to_vec();
    eog.sort_unstable();
    eog.dedup();
    assert!(eog.len() > 1, "{eog:?}");
    for (i, inner) in [true, true, false, true, false].into_iter().enumerate() {
        let said = bench.choose(&options[i], &conversation, &options, i);
        // Inner nodes are `q`, `qz` and `qzz`; of what is chosen the rest follows, or all.
        assert_eq!(said.usage.generated, 3 + if inner { 0 } else { 1 }, "`{}`", options[i]);
        let ids = bench.ids(&conversation, &options[i]);
        let ended = eog.iter().map(|id| score(&[&ids[..], &[*id]].concat()).exp()).sum::<f64>().ln();
        let expected = if inner { ended } else { score(&ids) };
        let found = f64::from(logprobs(&said)[i]);
        assert!((found - expected).abs() < 1e-4, "`{}`: {found}, not {expected}", options[i]);
        check_next(&bench, &options[i], &conversation, &said);
    }
}

#[test]
fn inner_nodes_are_read_once() {
    let bench = Bench::new(&RandomModel::tiny(5), KvFormat::Q4, None, 512);
    let conversation = bench.of_length(&[], 100);
    let rows = |options: &[&str], i: usize| {
        let texts: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let said = bench.choose(&format!("{options:?} {i}"), &conversation, &texts, i);
        assert_eq!(said.usage.reused + said.usage.prefilled, 100);
        said.usage.generated
    };
    assert_eq!(rows(&["a", "b", "c"], 1), 1);
    assert_eq!((rows(&["qa", "qb", "qc"], 0), rows(&["qa", "qb", "qc"], 2)), (2, 2));
    // `q`, `qq`, `z`, `zz`; then the leaf, or all of the option again.
    assert_eq!((rows(&["zza", "qqa", "qqb"], 0), rows(&["zza", "qqa", "qqb"], 2)), (5, 7));
}

#[test]
fn draws_follow_the_probabilities_and_temperature_0_takes_the_best() {
    let bench = Bench::new(&RandomModel::tiny(5), KvFormat::Q4, None, 512);
    let conversation = bench.of_length(&[], 60);
    let options = ["ab", "ac", "ba", "cc", "zq"].map(str::to_owned);
    let (temperature, n) = (1.7, 400);
    let mut counts = [0; 5];
    let mut weights = Vec::new();
    for seed in 0..n {
        // Filters and penalties have no part in it.
        let sampling =
            Sampling { temperature, seed, top_k: 1, top_p: 0.1, min_p: 0.9, ..Sampling::default() };
        let turn = bench.submit(&format!("{seed}"), &conversation, &options, sampling.clone());
        let choice = finished(turn).expect("a reply").1.choice.expect("a choice");
        assert_eq!(
            choice.chosen,
            crate::draw(&choice.logprobs, &sampling),
            "a turn draws by the rule that is public"
        );
        counts[choice.chosen] += 1;
        weights = choice.logprobs.iter().map(|x| f64::from(x / temperature).exp()).collect();
    }
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(&weights) {
        let (n, p) = (n as f64, weight / total);
        let off = (f64::from(*count) - n * p).abs() / (n * p * (1.0 - p)).sqrt();
        assert!(off < 3.5, "{counts:?}, {weights:?}");
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}: the test shows little");
    let best = weights.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("options").0;
    let turn = bench.submit("best", &conversation, &options, greedy());
    assert_eq!(finished(turn).expect("a reply").1.choice.expect("a choice").chosen, best);
}

#[test]
fn a_choice_that_is_none_is_refused_by_name() {
    let bench = Bench::new(&RandomModel::tiny(5), KvFormat::Q4, None, 512);
    let conversation = bench.of_length(&[], 60);
    let long = "w".repeat(5000);
    for (options, expected) in [
        (&[][..], "a reply"),
        (&["yes", ""], "option 2 of a choice is empty"),
        (&["yes", "no", "yes"], "the option `yes` of a choice is given twice"),
        (&["yes", &long], "a reply of up to 5000 do not fit in the model's context of 4096"),
    ] {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let turn = bench.submit("a", &conversation, &options, greedy());
        let found = match finished(turn) {
            Ok(_) => "a reply".to_owned(),
            Err(e) => e.to_string(),
        };
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
    let mut agent = bench.engine.agent("r", "b");
    let none: [&str; 0] = [];
    let found =
        agent.choose("Well?", none).and_then(Reply::blocking_finish).expect_err("no options").to_string();
    assert!(found.contains("a choice needs options"), "{found}");
}
