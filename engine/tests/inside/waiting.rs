//! Turns that wait for a lock, a manifest, blocks, a tokenizer or a write: whoever is at work decodes on
//! meanwhile, and what they say in the end is what they would have said at once.

use crate::fault;
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::prompter::PromptEncoder;
use crate::tests::exactness::request;
use crate::tests::saving::{Asked, Door, Gate, Stage, and_then, committed, long, wait};
use crate::{Completion, Conversation, KvChoice, KvFormat, ModelSource, Request, SessionKey};
use std::sync::Arc;
use std::time::Instant;

/// Tokens that others say while one waits.
const TOKENS: usize = 30;

/// A model whose sessions take a block and some rows.
fn model() -> RandomModel {
    RandomModel::tiny(1)
}

impl Asked {
    /// Waits for so many pieces of text that were said after this call.
    fn says(&mut self, n: usize) {
        while self.events.try_recv().is_ok() {}
        (0..n).for_each(|_| self.text());
    }
}

/// A turn of an agent of a run.
fn turn(run: &str, agent: &str, conversation: &Conversation) -> Request {
    let (session, prompt) = (SessionKey::new(run, agent), conversation.clone().into());
    Request { session, prompt, max_tokens: 9, min_tokens: 9, ..request() }
}

/// Somebody who speaks for a while.
fn speaker(stage: &mut Stage) -> Asked {
    let mut speaker = stage.ask("speaker", &long("b"), 1_500);
    speaker.text();
    speaker
}

/// A store in which the agent `a` has a memory, and what `a` is asked next.
fn stored() -> (Gate, Conversation) {
    let (gate, mut conversation) = (Gate::default(), long("a"));
    let mut stage = Stage::new(&gate, &model(), u64::MAX);
    let mut first = stage.ask("a", &conversation, 9);
    and_then(&mut conversation, &first.done());
    committed(stage.commit(&first));
    (gate, conversation)
}

/// What can be told of a turn but its times.
fn account(done: &Completion) -> impl PartialEq + std::fmt::Debug {
    let usage = &done.usage;
    let counts = (usage.reused, usage.prefilled, usage.recomputed, usage.bytes_read, usage.bytes_written);
    (done.ids.clone(), done.digest.clone(), usage.kind, usage.source, counts, usage.reason.clone())
}

#[test]
fn others_decode_while_a_turn_waits_for_the_store() {
    let (before, next) = stored();
    let of_parent = |request| Request { parent: Some(SessionKey::new("r", "a")), ..request };
    let cases = [
        ("another machine's lease", Door::Lease, "runs/", turn("s", "c", &long("c"))),
        ("its manifest", Door::Read, "manifests/", turn("r", "a", &next)),
        ("its parent's manifest", Door::Read, "manifests/", of_parent(turn("r", "d", &next))),
        ("its blocks", Door::Read, "blocks/", turn("r", "a", &next)),
        ("its parent's blocks", Door::Read, "blocks/", of_parent(turn("r", "d", &next))),
        ("blocks of equal content", Door::Read, "blocks/", turn("r", "e", &long("a"))),
        ("its rows", Door::Read, "tails/", turn("r", "a", &next)),
        ("its own writes", Door::Write, "blocks/", turn("r", "f", &long("f"))),
    ];
    for (what, door, names, request) in cases {
        let at_once = Stage::new(&before.copy(), &model(), u64::MAX).ask_for(request.clone()).done();
        assert_eq!((at_once.usage.recomputed, &at_once.usage.reason), (0, &None), "{what}");
        let gate = before.copy();
        let mut stage = Stage::new(&gate, &model(), u64::MAX);
        let mut speaker = speaker(&mut stage);
        gate.close_door(door, names);
        let mut waits = stage.ask_for(request);
        gate.until_it_is_needed();
        speaker.says(TOKENS);
        assert!(gate.state().waiting > 0, "{what}: it is still waited for");
        gate.open();
        assert_eq!(account(&waits.done()), account(&at_once), "{what}");
        speaker.says(1);
        assert!(!gate.state().threads.contains("engine"), "{what}: the engine's thread asked the store");
    }
}

#[test]
fn others_decode_and_begin_while_a_prompt_is_tokenized() {
    let (gate, slow) = (Gate::default(), long("the slow one"));
    let at_once = Stage::new(&Gate::default(), &model(), u64::MAX).ask("slow to encode", &slow, 9).done();
    let mut stage = Stage::new(&gate, &model(), u64::MAX);
    let mut speaker = speaker(&mut stage);
    let held = fault::hold_encoding("slow to encode");
    let mut waits = stage.ask("slow to encode", &slow, 9);
    held.until_it_is_needed();
    speaker.says(TOKENS);
    stage.ask("another", &long("c"), 9).done();
    assert!(waits.events.try_recv().is_err());
    drop(held);
    assert_eq!(account(&waits.done()), account(&at_once));
}

/// A fork whose parent goes to work while the fork's prompt is tokenized begins with what is on disk of it.
#[test]
fn a_parent_may_go_to_work_meanwhile() {
    let (gate, mut next) = stored();
    let mut stage = Stage::new(&gate, &model(), u64::MAX);
    let mut second = stage.ask("a", &next, 9);
    and_then(&mut next, &second.done());
    committed(stage.commit(&second));
    let request = Request { parent: Some(SessionKey::new("r", "a")), ..turn("r", "a fork", &next) };
    let at_once = Stage::new(&gate.copy(), &model(), u64::MAX).ask_for(request.clone()).done();
    assert_eq!((at_once.usage.recomputed, &at_once.usage.reason), (0, &None));
    let held = fault::hold_encoding("a fork");
    let mut fork = stage.ask_for(request);
    held.until_it_is_needed();
    let mut parent = stage.ask("a", &next, 1_500);
    parent.text();
    drop(held);
    let found =
        |done: &Completion| (done.ids.clone(), done.usage.kind, done.usage.reused, done.usage.recomputed);
    assert_eq!(found(&fork.done()), found(&at_once));
    parent.says(1);
}

/// A lock that was asked for, for a turn that is cancelled: the run that was given up for it is claimed again.
#[test]
fn a_lock_that_nobody_needs_any_more_holds_nobody_up() {
    let (gate, mut held) = (Gate::default(), Vec::new());
    let mut stage = Stage::new(&gate, &model(), u64::MAX);
    for run in 0..32 {
        let mut turn = stage.ask_for(turn(&format!("run {run}"), "a", &Conversation::default()));
        turn.done();
        held.push(stage.commit(&turn));
    }
    held.into_iter().for_each(|commit| drop(committed(commit)));
    gate.close_door(Door::Lease, "runs/");
    let cancelled = stage.ask_for(turn("one more", "a", &Conversation::default()));
    gate.until_it_is_needed();
    drop(cancelled);
    gate.open();
    stage.ask_for(turn("run 0", "b", &Conversation::default())).done();
}

#[test]
fn a_session_that_is_removed_while_a_commit_waits_stays_removed() {
    let (gate, mut conversation) = (Gate::default(), long("a"));
    let mut stage = Stage::new(&gate, &model(), u64::MAX);
    let mut first = stage.ask("a", &conversation, 9);
    and_then(&mut conversation, &first.done());
    let mut second = stage.ask("a", &conversation, 9);
    second.done();
    gate.close_door(Door::Write, "manifests/");
    let first = stage.commit(&first);
    gate.until_it_is_needed();
    let (mut removed, second) = (stage.remove("a"), stage.commit(&second));
    gate.open();
    committed(first);
    assert_eq!(wait(|| removed.try_recv().ok()).expect("a removal").sessions, 1);
    committed(second);
    assert_eq!(gate.manifests(), [] as [String; 0]);
}

/// Two turns that just fit beside each other: one is being written, the other decodes, a third has no room.
#[test]
fn others_decode_in_a_tight_budget_while_a_turn_is_written() {
    let source = ModelSource::Bundled("random", model().bytes().leak());
    let spec =
        PromptEncoder::read(&Arc::new(Gguf::open(&source).expect("a model"))).expect("a prompter").spec;
    let layout = spec.kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout");
    let ample = Gate::default();
    let alone = |agent: &str| Stage::new(&ample, &model(), u64::MAX).ask(agent, &long(agent), 200).done();
    let (a, b) = (alone("a"), alone("b"));
    let need = |done: &Completion| layout.at_work(done.usage.prefilled + 200, 0) + 8 * 1024;
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &model(), need(&a) + need(&b));
    gate.close_door(Door::Write, "");
    let mut written = stage.ask("a", &long("a"), 200);
    gate.until_it_is_needed();
    let mut decodes = stage.ask("b", &long("b"), 200);
    decodes.text();
    let mut third = stage.ask("c", &long("c"), 200);
    decodes.says(TOKENS);
    assert!(gate.state().waiting > 0 && third.events.try_recv().is_err());
    gate.open();
    assert_eq!((written.done().ids, decodes.done().ids), (a.ids.clone(), b.ids.clone()));
    assert_eq!(third.done().usage.reason, None);
}

/// Tokens a second of one who speaks, while another waits for the store, to those while nobody does.
#[test]
#[ignore = "a measurement: cargo test --release -p greenroom-engine --lib -- --ignored --nocapture pace_beside"]
fn pace_beside_a_turn_that_waits() {
    let (before, next) = stored();
    let (mut free, mut beside) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let gate = before.copy();
        let mut stage = Stage::new(&gate, &model(), u64::MAX);
        let mut speaker = speaker(&mut stage);
        let paces = if round % 2 == 0 { &mut free } else { &mut beside };
        let _waits = (round % 2 == 1).then(|| {
            gate.close_door(Door::Read, "blocks/");
            let waits = stage.ask_for(turn("r", "a", &next));
            gate.until_it_is_needed();
            waits
        });
        speaker.says(1);
        let began = Instant::now();
        (0..600).for_each(|_| speaker.text());
        paces.push(600.0 / began.elapsed().as_secs_f64());
        gate.open();
    }
    let median = |paces: &mut Vec<f64>| {
        paces.sort_by(f64::total_cmp);
        paces[paces.len() / 2]
    };
    let (free, beside) = (median(&mut free), median(&mut beside));
    println!("{free:.0} tokens/s alone, {beside:.0} beside a turn that waits: {:.3}", beside / free);
}
