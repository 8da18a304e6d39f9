//! Writes that take long or fail: decoding does not wait for them, the disk is complete at any moment, and
//! what could not be written is reported.

use crate::device::Device;
use crate::device::cpu::Cpu;
use crate::fixtures::RandomModel;
use crate::memory::Memory;
use crate::memory::saver::Written;
use crate::memory::session::CacheContext;
use crate::model::gguf::Gguf;
use crate::prompter::PromptEncoder;
use crate::store::in_memory::InMemory;
use crate::store::medium::{Blobs, Lease, Logs};
use crate::store::source::Input;
use crate::store::{Failure, Found, Removed, Store};
use crate::tests::exactness::{Bench, N, request};
use crate::turns::schedule::Guessing;
use crate::turns::worker::{Command, Worker};
use crate::{
    CacheSource, Completion, Conversation, Error, Event, Exchange, KvChoice, KvFormat, MatchKind,
    ModelSource, ReplyContent, Request, Result, SessionKey,
};
use greenroom_kernels::Isa;
use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

/// A store in memory that can be held up, or whose writes fail; a clone is the same store.
#[derive(Clone, Default)]
pub(super) struct Gate {
    things: InMemory,
    state: Arc<(Mutex<State>, Condvar)>,
}

/// What may be held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Read,
    Write,
    Lease,
}

#[derive(Default)]
pub(super) struct State {
    /// What can't be done for now, with the beginning of the names of the things.
    closed: Option<(Door, &'static str)>,
    /// Beginning of the names of things that can't be written at all.
    failing: Option<&'static str>,
    /// Calls that wait.
    pub(super) waiting: usize,
    /// Names of what was written, in order, with the bytes, and what there was then.
    written: Vec<(String, u64, InMemory)>,
    /// Names of the threads that asked it for something.
    pub(super) threads: BTreeSet<String>,
}

impl Gate {
    /// An open one of the same things.
    pub(super) fn copy(&self) -> Self {
        Self { things: self.things.copy(), state: Arc::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.0.lock().expect("a gate");
        state.threads.extend(std::thread::current().name().map(str::to_owned));
        state
    }

    fn close(&self, names: &'static str) {
        self.close_door(Door::Write, names);
    }

    pub(super) fn close_door(&self, door: Door, names: &'static str) {
        self.state().closed = Some((door, names));
    }

    pub(super) fn open(&self) {
        self.state().closed = None;
        self.state.1.notify_all();
    }

    fn fail(&self, names: Option<&'static str>) {
        self.state().failing = names;
    }

    /// Waits until something waits.
    pub(super) fn until_it_is_needed(&self) {
        wait(|| (self.state().waiting > 0).then_some(()));
    }

    /// Names of the manifests that there are.
    pub(super) fn manifests(&self) -> Vec<String> {
        self.things.list("manifests").expect("a list").into_iter().map(|(name, _)| name).collect()
    }

    /// Bytes written so far.
    fn bytes(&self) -> u64 {
        self.state().written.iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Waits while a door is closed for a thing.
    fn pass(&self, door: Door, name: &str) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.waiting += 1;
        while state.closed.is_some_and(|(closed, names)| closed == door && name.starts_with(names)) {
            state = self.state.1.wait(state).expect("a gate");
        }
        state.waiting -= 1;
        state
    }

    fn write(&self, name: &str, bytes: &[u8], write: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.pass(Door::Write, name);
        if state.failing.is_some_and(|names| name.starts_with(names)) {
            return Err(Error::store(format!("{name} is not to be written")));
        }
        write()?;
        state.written.push((name.to_owned(), bytes.len() as u64, self.things.copy()));
        Ok(())
    }
}

impl Blobs for Gate {
    fn open(&self, name: &str) -> Result<Input, Failure> {
        drop(self.pass(Door::Read, name));
        self.things.open(name)
    }

    fn size(&self, name: &str) -> Option<u64> {
        drop(self.pass(Door::Read, name));
        self.things.size(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write(name, bytes, || self.things.put(name, bytes))
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        self.things.list(folder)
    }

    fn remove(&self, name: &str) -> Result<u64> {
        self.things.remove(name)
    }

    fn set_aside(&self, name: &str) -> Result<()> {
        self.things.set_aside(name)
    }
}

impl Logs for Gate {
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(name, bytes, || self.things.append(name, at, bytes))
    }

    fn can_append(&self, name: &str, at: u64) -> bool {
        drop(self.pass(Door::Read, name));
        self.things.can_append(name, at)
    }

    fn lease(&self, name: &str) -> Result<Option<Lease>> {
        drop(self.pass(Door::Lease, name));
        self.things.lease(name)
    }

    fn alone(&self) -> Result<Option<Lease>> {
        self.things.alone()
    }
}

/// Asks again and again until there is an answer, for a minute.
pub(super) fn wait<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An engine's thread over a gate.
pub(super) struct Stage {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    next_id: u64,
}

/// A requested turn.
pub(super) struct Asked {
    id: u64,
    pub(super) events: UnboundedReceiver<Event>,
}

impl Stage {
    pub(super) fn new(gate: &Gate, model: &RandomModel, budget: u64) -> Self {
        let bytes: &'static [u8] = model.bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let prompter = PromptEncoder::read(&gguf).expect("a prompter");
        let device = Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        let layout = device.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout");
        let (device, context): (Arc<dyn Device>, _) =
            (Arc::new(device), CacheContext::of_test(Arc::new(layout)));
        let store = Store::on(Arc::new(gate.clone()), None);
        let memory = Memory::new(&device, context, Some(store), budget);
        let (commands, receiver) = channel();
        let line = commands.clone();
        memory.wake_by(move || drop(line.send(Command::Woken)));
        let worker = Worker::new(
            device,
            prompter.tokenizer.clone(),
            prompter.chat.clone(),
            memory,
            512,
            Some(Guessing::NEAR_AND_FAR),
            None,
        );
        let body = move || worker.run(&receiver, &OnceLock::new());
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(body).expect("a thread");
        Self { commands, thread: Some(thread), next_id: 0 }
    }

    pub(super) fn ask(&mut self, agent: &str, conversation: &Conversation, n: usize) -> Asked {
        let (session, prompt) = (SessionKey::new("r", agent), conversation.clone().into());
        self.ask_for(Request { session, prompt, max_tokens: n, min_tokens: n, ..request() })
    }

    pub(super) fn ask_for(&mut self, request: Request) -> Asked {
        let ((sender, events), id) = (unbounded_channel(), self.next_id);
        self.next_id += 1;
        self.commands
            .send(Command::Turn { id, request: Box::new(request), events: sender })
            .expect("a thread");
        Asked { id, events }
    }

    pub(super) fn commit(&self, turn: &Asked) -> oneshot::Receiver<Result<Box<Completion>>> {
        let (answer, receiver) = oneshot::channel();
        self.commands.send(Command::Commit { id: turn.id, answer }).expect("a thread");
        receiver
    }

    /// Asks for the removal of an agent's session.
    pub(super) fn remove(&self, agent: &str) -> oneshot::Receiver<Result<Removed>> {
        let ((answer, receiver), session) = (oneshot::channel(), SessionKey::new("r", agent));
        self.commands.send(Command::Remove { session, to_make_room: false, answer }).expect("a thread");
        receiver
    }

    fn close(&mut self) {
        let _ = self.commands.send(Command::Close);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("an end"));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.close();
    }
}

impl Asked {
    /// Waits for some text.
    pub(super) fn text(&mut self) {
        let text = |event| match event {
            Event::Text(_) => Some(()),
            Event::Prefill { .. } | Event::Logprobs(_) => None,
            event => panic!("it ended before it said anything: {event:?}"),
        };
        wait(|| self.events.try_recv().ok().and_then(text));
    }

    /// Tells whether the turn has ended.
    fn has_ended(&mut self) -> bool {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .any(|event| matches!(event, Event::Done(_) | Event::Failed(_)))
    }

    /// Waits for the end.
    pub(super) fn done(&mut self) -> Box<Completion> {
        wait(|| match self.events.try_recv().ok()? {
            Event::Done(completion) => Some(completion),
            Event::Failed(e) => panic!("{e}"),
            _ => None,
        })
    }
}

/// Waits for the end of a commit.
pub(super) fn committed(mut answer: oneshot::Receiver<Result<Box<Completion>>>) -> Box<Completion> {
    wait(|| answer.try_recv().ok()).expect("a commit")
}

/// A conversation that takes more than a block.
pub(super) fn long(agent: &str) -> Conversation {
    Conversation { next: format!("{agent}, tell me of the mill. ").repeat(14), ..Conversation::default() }
}

pub(super) fn and_then(conversation: &mut Conversation, said: &Completion) {
    let user = std::mem::replace(&mut conversation.next, "And then what? ".repeat(5));
    conversation.exchanges.push(Exchange::new(user, ReplyContent::Ids(said.ids.clone().into())));
}

#[test]
fn others_decode_while_a_session_is_written() {
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX);
    gate.close("");
    let mut first = stage.ask("a", &long("a"), 4);
    gate.until_it_is_needed();
    let mut second = stage.ask("b", &long("b"), 60);
    second.text();
    assert!(!first.has_ended(), "it is not on disk yet");
    assert_eq!(gate.bytes(), 0);
    gate.open();
    let ends = [(&mut first, "a"), (&mut second, "b")].map(|(turn, agent)| {
        let done = turn.done();
        assert_eq!(done.usage.reason, None, "{agent}");
        let manifest = committed(stage.commit(turn)).usage.bytes_written - done.usage.bytes_written;
        assert!(done.usage.bytes_written > 0 && manifest > 0, "{agent}");
        done.usage.bytes_written + manifest
    });
    assert_eq!(ends.iter().sum::<u64>(), gate.bytes(), "all that was written is accounted for");
    assert!(!gate.state().threads.contains("engine"), "the engine's thread read or wrote");
}

#[test]
fn decoding_waits_for_no_commit() {
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX);
    let mut conversation = long("a");
    let mut first = stage.ask("a", &conversation, 9);
    let said = first.done();
    gate.close("manifests/");
    let mut answer = stage.commit(&first);
    gate.until_it_is_needed();
    let mut other = stage.ask("b", &long("b"), 40);
    other.text();
    // The session's own next turn begins with what is in memory.
    and_then(&mut conversation, &said);
    let mut second = stage.ask("a", &conversation, 9);
    second.text();
    assert!(answer.try_recv().is_err(), "the manifest is not on disk yet");
    assert!(!second.has_ended(), "its own save comes after the manifest");
    gate.open();
    assert_eq!(committed(answer).usage.reason, None);
    let again = second.done();
    assert_eq!((again.usage.kind, again.usage.source), (MatchKind::Extend, CacheSource::Memory));
    assert_eq!(committed(stage.commit(&second)).usage.reason, None);
    drop(stage);
    let names: Vec<String> = gate.state().written.iter().map(|(name, ..)| name.clone()).collect();
    let first_manifest = names.iter().position(|name| name.starts_with("manifests/")).expect("a manifest");
    assert!(names[first_manifest + 1..].iter().any(|name| name.starts_with("tails/")), "{names:?}");
    and_then(&mut conversation, &again);
    let third = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX).ask("a", &conversation, 9).done();
    assert_eq!((third.usage.kind, third.usage.recomputed, third.usage.reason), (MatchKind::Extend, 0, None));
}

/// Whenever the process is killed, each manifest names what is there, and each block and tail that it names
/// is whole.
#[test]
fn whatever_is_written_by_then_is_complete() {
    let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 7) };
    for model in [RandomModel::tiny(1), windowed] {
        let gate = Gate::default();
        let mut stage = Stage::new(&gate, &model, u64::MAX);
        let mut agents = ["a", "b", "c"].map(|agent| (agent, long(agent)));
        for _ in 0..3 {
            let mut turns = agents.each_ref().map(|(agent, conversation)| stage.ask(agent, conversation, 90));
            let mut answers = Vec::new();
            for (turn, (_, conversation)) in turns.iter_mut().zip(&mut agents) {
                and_then(conversation, &turn.done());
                answers.push(stage.commit(turn));
            }
            answers.into_iter().for_each(|answer| assert_eq!(committed(answer).usage.reason, None));
        }
        drop(stage);
        let bytes: &'static [u8] = model.bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let device = Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        let layout = device.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout");
        let state = gate.state();
        let mut manifests = 0;
        for (name, _, then) in &state.written {
            let store = Store::on(Arc::new(then.clone()), None);
            for (agent, _) in &agents {
                let manifest = match store.read_manifest(&SessionKey::new("r", *agent)) {
                    Found::Missing => continue,
                    Found::Whole((manifest, _, None)) => manifest,
                    _ => panic!("after {name}: {agent}'s manifest is damaged"),
                };
                manifests += 1;
                let parts = |hash| layout.parts().map(move |part| (hash, part));
                let mut blocks = manifest.blocks.iter().copied().flat_map(parts);
                assert!(
                    blocks.all(|key| store.has_block(key)),
                    "after {name}: a block of {agent} is missing"
                );
                for tail in manifest.tails() {
                    let found = store.read_tail(tail, &layout);
                    assert!(matches!(found, Found::Whole(_)), "after {name}: {agent}'s tail");
                }
            }
        }
        assert!(manifests > 20, "only {manifests}");
    }
}

#[test]
fn what_could_not_be_written_is_said_and_written_later() {
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX);
    let mut conversation = long("a");
    for (failing, at_its_end) in [("blocks/", true), ("tails/", true), ("manifests/", false)] {
        gate.fail(Some(failing));
        let mut turn = stage.ask("a", &conversation, 9);
        let done = turn.done();
        let end = committed(stage.commit(&turn));
        assert_eq!(done.usage.reason.is_some(), at_its_end, "{failing}");
        assert!(end.usage.reason.as_ref().is_some_and(|reason| reason.contains("not saved")), "{failing}");
        and_then(&mut conversation, &done);
        let store = Store::on(Arc::new(gate.clone()), None);
        assert!(matches!(store.read_manifest(&SessionKey::new("r", "a")), Found::Missing), "{failing}");
    }
    gate.fail(None);
    let mut turn = stage.ask("a", &conversation, 9);
    let done = turn.done();
    assert_eq!((done.usage.kind, done.usage.source), (MatchKind::Extend, CacheSource::Memory));
    assert_eq!(committed(stage.commit(&turn)).usage.reason, None);
    drop(stage);
    and_then(&mut conversation, &done);
    let next = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX).ask("a", &conversation, 9).done();
    assert_eq!((next.usage.kind, next.usage.recomputed, next.usage.reason), (MatchKind::Extend, 0, None));
}

/// A turn that has no room beside one that is being written waits for it, as it would if that were at work.
#[test]
fn what_is_being_written_keeps_its_room() {
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &RandomModel::tiny(1), 0);
    gate.close("");
    let mut first = stage.ask("a", &long("a"), 4);
    gate.until_it_is_needed();
    let mut second = stage.ask("b", &long("b"), 4);
    std::thread::sleep(Duration::from_millis(50));
    assert!(second.events.try_recv().is_err() && !first.has_ended());
    gate.open();
    first.done();
    assert_eq!(second.done().usage.reason, None);
}

#[test]
fn the_requester_of_a_commit_learns_its_end_though_the_engine_closes() {
    let gate = Gate::default();
    let mut stage = Stage::new(&gate, &RandomModel::tiny(1), u64::MAX);
    let mut first = stage.ask("a", &long("a"), 4);
    first.done();
    gate.close("");
    let answer = stage.commit(&first);
    let mut second = stage.ask("b", &long("b"), 1);
    gate.until_it_is_needed();
    let opens = gate.clone();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        opens.open();
    });
    stage.close();
    assert_eq!(committed(answer).usage.reason, None);
    assert!(second.has_ended());
    late.join().expect("an end");
    let store = Store::on(Arc::new(gate), None);
    assert!(matches!(store.read_manifest(&SessionKey::new("r", "a")), Found::Whole(_)));
}

/// Windowed layers leave memory when they are on disk, not before; a session that has diverged meanwhile
/// counts what it still has.
#[test]
fn nothing_leaves_memory_before_it_is_on_disk() {
    for goes_back in [false, true] {
        let mut benches = Bench::all().filter(|bench| bench.context.layout.window().is_some());
        let bench = benches.next().expect("a model with a window");
        let (gate, request) = (Gate::default(), request());
        let store = Store::on(Arc::new(gate.clone()), None);
        let mut memory = Memory::new(&bench.device, bench.context.clone(), Some(store), u64::MAX);
        let mut session = memory.recall(&request, &[bench.segment(0..N)]).expect("one").session;
        session.sequence.begin_turn();
        bench.feed(&mut session.sequence, &mut memory.arena, N, 256);
        let before = memory.arena.sealed_bytes();
        gate.close("");
        memory.flush(0, &request, &mut session);
        gate.until_it_is_needed();
        assert!(memory.written().is_none());
        assert_eq!((session.stored_blocks, memory.arena.sealed_bytes()), (0, before));
        if goes_back {
            session.truncate(300, &mut memory.arena);
            let mut other = Bench::all().find(|other| other.context.layout.window().is_some()).expect("one");
            other.change(280);
            other.feed(&mut session.sequence, &mut memory.arena, N, 256);
            assert!(memory.arena.sealed_bytes() > before, "what is being written stays, and counts");
        }
        gate.open();
        assert!(memory.wait_for_a_write());
        let Some(Written::Blocks(stored)) = memory.written().map(|answer| answer.written) else {
            panic!("blocks are written");
        };
        memory.note(&mut session, &stored);
        assert_eq!(session.stored_blocks, if goes_back { 1 } else { N / 256 });
        assert!(memory.arena.sealed_bytes() < before || goes_back);
        session.sequence.clear(&mut memory.arena);
        assert_eq!(memory.arena.bytes(), 0, "all blocks were given back");
    }
}
