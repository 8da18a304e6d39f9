//! Memories that one device computed and another continues: only on request, marked, and separate from what
//! either computes alone.

use super::exactness::{Bench, N, files_with, models, request};
use super::some;
use crate::device::cpu::Cpu;
use crate::device::reference::Reference;
use crate::device::{Device, measure};
use crate::fixtures::RandomModel;
use crate::kv::layout::{BLOCK, Part};
use crate::memory::{Memory, Recalled};
use crate::scoring::fastest::{self, Opening};
use crate::store::inventory::Folder;
use crate::{
    CacheSource, DeviceChoice, Engine, EngineConfig, Exchange, KvFormat, MatchKind, ModelSource, Request,
    Result, SessionKey, Usage,
};
use greenroom_kernels::Isa;
use std::path::Path;
use std::sync::Arc;

const DEVICES: [&str; 2] = ["lanes16/5", "reference/1"];

/// A model on the processor and on the reference, with the processor's constants.
fn devices(model: &RandomModel, format: KvFormat) -> [Bench; 2] {
    let cpu = |gguf: &_| -> Box<dyn Device> {
        Box::new(Cpu::load(gguf, Isa::detect(), &mut |_, _| {}).expect("a device"))
    };
    let mut benches = [
        Bench::on(model, format, cpu),
        Bench::on(model, format, |gguf| Box::new(Reference::load(gguf).expect("a device"))),
    ];
    let tokens: Vec<u32> = (0..N as u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect();
    let constants = measure(&*benches[0].device, &tokens).expect("a calibration");
    for (bench, device) in benches.iter_mut().zip(DEVICES) {
        Arc::get_mut(&mut bench.device).expect("nobody else's").calibrate(&constants);
        bench.context.identity.numerics = format!("{device}, keys by these");
    }
    benches
}

impl Bench {
    /// A memory that adopts.
    fn adopting(&self, dir: &Path) -> Memory {
        let mut memory = self.memory(dir);
        memory.context.adopt = true;
        memory
    }

    /// Recalls a session for the prompt whose segments end at `ends`.
    fn recall_at(&self, memory: &mut Memory, ends: &[usize]) -> Recalled {
        let starts = std::iter::once(&0).chain(ends);
        let prompt: Vec<_> = starts.zip(ends).map(|(start, end)| self.segment(*start..*end)).collect();
        memory.recall(&request(), &prompt).expect("a session")
    }

    /// Logits of all tokens after the first `n`, whose keys and values are another device's, as bytes.
    fn logits_after(&self, other: &Self, n: usize) -> Vec<f32> {
        let (mut there, mut theirs) = (other.sequence(), other.arena());
        other.feed(&mut there, &mut theirs, n, 256);
        let (mut here, mut ours) = (self.sequence(), self.arena());
        for (hash, parts) in there.table().hashes().zip(there.table().parts()) {
            let mut take = |part: Part| {
                let id = parts[part as usize]?;
                Some(ours.insert((hash, part), theirs.export(id).expect("a block")))
            };
            here.push_block(hash, Part::OF_BLOCKS.map(&mut take));
        }
        if let Some(rows) = there.open_rows() {
            let rows = ours.insert_rows(&theirs.export_rows(rows, 0..n % BLOCK).expect("rows"));
            here.push_rows(rows, n % BLOCK);
        }
        self.feed(&mut here, &mut ours, N, 100)
    }
}

/// A memory of `n` tokens that one device computed and another continues, and the result.
fn check(there: &Bench, here: &Bench, names: [&str; 2], n: usize) {
    // (The reference gives other bits in other chunks.)
    let m = n + 100;
    let dir = tempfile::tempdir().expect("a folder");
    there.store(&mut there.memory(dir.path()), n);
    let recalled = here.recall_at(&mut here.memory(dir.path()), &[n, N]);
    assert_eq!((recalled.kind, recalled.reused, recalled.adopted), (MatchKind::Cold, 0, None));
    let reason = recalled.reason.expect("a reason");
    assert!(reason.contains(names[0]) && reason.contains(names[1]), "{reason}");

    // It continues as if it had been given the bytes.
    let expected = here.logits_after(there, n);
    let mut memory = here.adopting(dir.path());
    let mut recalled = here.recall_at(&mut memory, &[n, N]);
    assert_eq!((recalled.kind, recalled.source, recalled.reused), (MatchKind::Extend, CacheSource::Disk, n));
    assert_eq!((recalled.recomputed, recalled.reason), (0, None));
    assert_eq!(recalled.adopted.as_deref(), Some(names[0]));
    let mut logits = here.feed(&mut recalled.session.sequence, &mut memory.arena, m, 100);
    recalled.session.segments = vec![here.segment(0..n), here.segment(n..m)];
    recalled.session.tokens.truncate(m);
    recalled.session.sequence.end_turn(&mut memory.arena);
    let (pending, _) = memory.save_now(&request().session, &mut recalled.session).expect("a save");
    memory.commit_now(pending).expect("a commit");
    drop(memory);

    // Later, and after a restart, it still is what it was; without a leave it is another's again.
    let mut memory = here.adopting(dir.path());
    let mut recalled = here.recall_at(&mut memory, &[n, m, N]);
    assert_eq!((recalled.kind, recalled.reused, recalled.reason), (MatchKind::Extend, m, None));
    assert_eq!(recalled.adopted.as_deref(), Some(names[0]));
    logits.extend(here.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100));
    assert!(logits == expected, "{names:?} at {n}");
    drop(memory);
    let recalled = here.recall_at(&mut here.memory(dir.path()), &[n, m, N]);
    assert_eq!((recalled.kind, recalled.adopted), (MatchKind::Cold, None));
    let expected = format!("after {n} tokens of {}", names[0]);
    assert!(recalled.reason.is_some_and(|reason| reason.contains(&expected)), "no reason");

    // Back to the end of what it was given, whose block has sealed since: the tail of that turn has its rows.
    let mut memory = here.adopting(dir.path());
    let mut recalled = here.recall_at(&mut memory, &[n, 650, N]);
    assert_eq!((recalled.kind, recalled.reused), (MatchKind::Diverge, n));
    assert_eq!(recalled.adopted.as_deref(), Some(names[0]));
    let logits = here.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
    assert!(logits == here.logits_after(there, n), "{names:?} back to {n}");
    drop((recalled, memory));

    // The other device adopts it back.
    let recalled = there.recall_at(&mut there.adopting(dir.path()), &[n, m, N]);
    assert_eq!((recalled.kind, recalled.reused), (MatchKind::Extend, m));
    assert_eq!(recalled.adopted, Some(format!("{}, after {n} tokens of {}", names[1], names[0])));

    // What each computes alone is apart from all that.
    for (bench, known) in [(here, 0), (there, n / BLOCK * BLOCK)] {
        let mut memory = bench.memory(dir.path());
        let key = SessionKey { agent: "b".to_owned(), ..request().session };
        let fresh = Request { session: key, ..request() };
        let mut recalled = memory.recall(&fresh, &[bench.segment(0..N)]).expect("a session");
        assert_eq!((recalled.reused, recalled.adopted), (known, None), "{names:?}");
        let logits = bench.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
        let (mut alone, mut arena) = (bench.sequence(), bench.arena());
        bench.feed(&mut alone, &mut arena, known, 256);
        assert!(logits == bench.feed(&mut alone, &mut arena, N, 100), "{names:?}");
    }
    assert_eq!(Folder::new(dir.path(), None).verify().expect("a verdict").problems, Vec::<String>::new());
}

#[test]
fn another_devices_memory_is_adopted() {
    let [plain, _, _, _, _, windowed, latent, ..] = models();
    for (model, there, back) in some([(plain, 300, 512), (windowed, 600, 512), (latent, 512, 300)], 3) {
        let [cpu, reference] = devices(&model, KvFormat::Q4);
        check(&cpu, &reference, DEVICES, there);
        check(&reference, &cpu, [DEVICES[1], DEVICES[0]], back);
    }
}

/// What can't be read of it is computed again; what others hold stays theirs.
#[test]
fn what_is_damaged_of_it_is_computed_again() {
    let [plain, ..] = models();
    let [cpu, reference] = devices(&plain, KvFormat::Q4);
    let dir = tempfile::tempdir().expect("a folder");
    cpu.store(&mut cpu.memory(dir.path()), 600);
    let second = files_with(dir.path(), "blocks").into_iter().nth(1).expect("a second block");
    let bytes = std::fs::read(&second).expect("a file");
    std::fs::write(&second, &bytes[..bytes.len() - 1]).expect("a write");
    let mut memory = reference.adopting(dir.path());
    let mut recalled = reference.recall_at(&mut memory, &[600, N]);
    let kept = recalled.reused;
    assert!((kept == 0 || kept == BLOCK) && recalled.reason.is_some(), "{kept}");
    assert_eq!(recalled.recomputed, 600 - kept);
    let logits = reference.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
    assert!(logits == reference.logits_after(&cpu, kept));
}

/// Two that begin with one memory, while it is at rest under the other device's addresses: each has it, and
/// so has the disk.
#[test]
fn a_memory_is_adopted_by_several() {
    let [plain, ..] = models();
    let [cpu, reference] = devices(&plain, KvFormat::Q4);
    let dir = tempfile::tempdir().expect("a folder");
    cpu.store(&mut cpu.memory(dir.path()), 600);
    let mut memory = reference.adopting(dir.path());
    memory.hint_next_use(&request().session, 1);
    let expected = reference.logits_after(&cpu, 600);
    for agent in ["b", "c"] {
        let key = SessionKey { agent: agent.to_owned(), ..request().session };
        let fork = Request { session: key.clone(), parent: Some(request().session), ..request() };
        let prompt = [reference.segment(0..600), reference.segment(600..N)];
        let mut recalled = memory.recall(&fork, &prompt).expect("a session");
        assert_eq!((recalled.kind, recalled.reused), (MatchKind::Extend, 600), "{agent}");
        assert_eq!(recalled.adopted.as_deref(), Some(DEVICES[0]));
        let logits = reference.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
        assert!(logits == expected, "{agent}");
        memory.take_back(key, recalled.session, None);
    }
    drop(memory);
    let recalled = cpu.recall_at(&mut cpu.memory(dir.path()), &[600, N]);
    assert_eq!((recalled.kind, recalled.reused), (MatchKind::Extend, 600), "what began it is still there");
}

#[test]
fn keys_by_other_constants_are_not_adopted() {
    let [plain, ..] = models();
    let [cpu, mut reference] = devices(&plain, KvFormat::Q4);
    let dir = tempfile::tempdir().expect("a folder");
    cpu.store(&mut cpu.memory(dir.path()), 600);
    reference.context.identity.numerics = format!("{}, keys by others", DEVICES[1]);
    let recalled = reference.recall_at(&mut reference.adopting(dir.path()), &[600, N]);
    assert_eq!((recalled.kind, recalled.reused), (MatchKind::Cold, 0));
    assert!(recalled.reason.is_some_and(|reason| reason.contains("keys by others")));
}

/// A process: an engine on the reference or on the processor, in which an agent with a past speaks some
/// turns. Returns the engine's numerics and what the turns cost.
fn talk(
    dir: &Path,
    (on_reference, adopt): (bool, bool),
    agent: &str,
    past: &mut Vec<Exchange>,
    n_turns: usize,
) -> (String, Vec<Usage>) {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(2).bytes().leak());
    let cache_dir = Some(dir.to_owned());
    let config = EngineConfig { cache_dir, adopt, threads: Some(1), ..EngineConfig::new(model) };
    let load = |opening: Opening<'_>| -> Result<Box<dyn Device>> {
        match on_reference {
            true => Ok(Box::new(Reference::load(opening.gguf)?)),
            false => fastest::open(&DeviceChoice::Cpu, opening),
        }
    };
    let engine = Engine::open_on(config, load, &mut |_| {}).expect("an engine");
    let mut agent = engine.agent("r", agent).system("Go on. ".repeat(60)).max_tokens(8).replace();
    agent = agent.history(std::mem::take(past));
    let mut turn = |_| agent.extend("Go on.").expect("a turn").blocking_finish().expect("a reply").usage;
    let usages = (0..n_turns).map(&mut turn).collect();
    past.clone_from(&agent.conversation().exchanges);
    (engine.model().numerics.clone(), usages)
}

const CPU: (bool, bool) = (false, true);
const REFERENCE: (bool, bool) = (true, true);
const REFERENCE_ALONE: (bool, bool) = (true, false);

/// From the processor to the reference and back: constants, marks and files.
#[test]
fn an_engine_codes_by_the_constants_of_what_it_adopts() {
    let (folder, mut past) = (tempfile::tempdir().expect("a folder"), Vec::new());
    let dir = folder.path();
    let (here, usages) = talk(dir, CPU, "a", &mut past, 1);
    assert_eq!((usages[0].kind, &usages[0].adopted, here.as_str()), (MatchKind::Cold, &None, DEVICES[0]));

    // From disk, then in memory.
    let (numerics, usages) = talk(dir, REFERENCE, "a", &mut past, 2);
    assert!(numerics.starts_with("reference/1, keys by "), "{numerics}");
    let [first, second] = &usages[..] else { panic!("two turns") };
    assert_eq!((first.kind, first.source, first.recomputed), (MatchKind::Extend, CacheSource::Disk, 0));
    assert_eq!((second.kind, second.source, second.recomputed), (MatchKind::Extend, CacheSource::Memory, 0));
    assert!(first.reused > 0 && second.reused > first.reused, "{usages:?}");
    assert!(usages.iter().all(|usage| usage.adopted.as_ref() == Some(&here) && usage.reason.is_none()));
    // Who is new finds none of it.
    let (_, usages) = talk(dir, REFERENCE, "b", &mut Vec::new(), 1);
    assert_eq!((usages[0].kind, usages[0].reused, &usages[0].adopted), (MatchKind::Cold, 0, &None));

    // After a restart, though its own memories are the newest by now.
    let (again, usages) = talk(dir, REFERENCE, "a", &mut past, 1);
    assert_eq!(again, numerics);
    assert_eq!((usages[0].kind, usages[0].adopted.as_ref()), (MatchKind::Extend, Some(&here)));

    // The processor takes it back, with its own constants.
    let (again, usages) = talk(dir, CPU, "a", &mut past, 1);
    assert_eq!((again, usages[0].kind, usages[0].recomputed), (here.clone(), MatchKind::Extend, 0));
    let origin = usages[0].adopted.as_ref().expect("a mark");
    assert!(origin.starts_with("reference/1, after ") && origin.ends_with(&here), "{origin}");

    // Unless requested, the reference continues none of that.
    for (agent, kind) in [("a", MatchKind::Cold), ("b", MatchKind::Prefix)] {
        let (numerics, usages) = talk(dir, REFERENCE_ALONE, agent, &mut past.clone(), 1);
        assert_eq!((numerics.as_str(), usages[0].kind), (DEVICES[1], kind));
        let reason = usages[0].reason.as_ref().expect("a reason");
        assert!(usages[0].adopted.is_none() && reason.contains("keys by"), "{reason}");
    }
}

/// Where the constants of a memory's keys are lost, it is a miss, as without adoption.
#[test]
fn without_its_constants_a_memory_is_not_adopted() {
    let (folder, mut past) = (tempfile::tempdir().expect("a folder"), Vec::new());
    talk(folder.path(), CPU, "a", &mut past, 1);
    for file in files_with(folder.path(), "/checks/") {
        std::fs::remove_file(file).expect("a file");
    }
    let (numerics, usages) = talk(folder.path(), REFERENCE, "a", &mut past, 1);
    assert_eq!((numerics.as_str(), usages[0].kind, &usages[0].adopted), (DEVICES[1], MatchKind::Cold, &None));
    assert!(usages[0].reason.as_ref().is_some_and(|reason| reason.contains("keys by")));
}
