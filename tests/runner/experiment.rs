//! Experiments: the same runs whatever is played at once, each played once, and resumed where they stopped.

use crate::play::Backwards;
use greenroom::backend::{Backend, Scripted};
use greenroom::experiment::{
    Design, PlayedCounts, Shard, Tuning, Variant, combinations, merge, missing, parse_sweep,
    play as play_design, transcripts,
};
use greenroom::run::RunOptions;
use greenroom::scenario::load;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const TEXT: &str = "
id: swept
variables: {prize: 1, place: {name: barn}}
agents: {a: {display_name: Ann}, b: {display_name: Ben}}
phases:
  - { name: talk, agents: [a, b], rounds: 3, prompt: 'For {{ prize }} gold in the {{ place.name }}.' }
";

fn design(sweeps: &[&str], seeds: std::ops::Range<u64>) -> Design {
    let sweeps: Vec<_> = sweeps.iter().map(|sweep| parse_sweep(sweep).unwrap()).collect();
    let cell = |values: Vec<_>| {
        let scenario = load("s.yaml", TEXT, &values).scenario.unwrap();
        Variant { scenario, values, tuning: Tuning::default() }
    };
    let cells = combinations(&sweeps).into_iter().map(cell).collect();
    Design { cells, seeds: seeds.collect(), options: RunOptions::default(), shard: None }
}

/// Says its seed and how much it has read; counts how often it was asked.
fn counted(asked: Arc<AtomicUsize>) -> Arc<dyn Backend> {
    Arc::new(Backwards(Arc::new(Scripted::new(move |request| {
        asked.fetch_add(1, Ordering::SeqCst);
        Some(format!("{} {}", request.sampling.seed, request.conversation.next.len()))
    }))))
}

fn run(
    design: &Design,
    folder: &Path,
    jobs: usize,
    backend: Arc<dyn Backend>,
    stop_after: usize,
) -> anyhow::Result<PlayedCounts> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (tell, failure) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let mut n = 0;
    let mut on_step = |_: &greenroom::experiment::EndedRun| {
        n += 1;
        if n == stop_after {
            let _ = tell.take().unwrap().send(());
        }
    };
    let stop = async {
        if failure.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    runtime.block_on(play_design(design, backend, folder, jobs, &mut on_step, stop))
}

/// All files below a folder, but those that say how long things took.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.unwrap();
        let name = entry.path().strip_prefix(folder).unwrap().display().to_string();
        if entry.file_type().is_file() && !name.ends_with("trace.jsonl") && !name.ends_with("summary.json") {
            found.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    found
}

#[test]
fn how_many_are_played_at_once_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let design = design(&["prize=1,2", "place.name=barn,'a, b'"], 5..9);
    let mut all = Vec::new();
    for jobs in [1, 3, 100] {
        let (folder, asked) = (dir.path().join(jobs.to_string()), Arc::default());
        let played = run(&design, &folder, jobs, counted(Arc::clone(&asked)), 0).unwrap();
        assert_eq!((played.n_new, played.n_before, played.failed.len()), (16, 0, 0));
        assert_eq!(asked.load(Ordering::SeqCst), 16 * 6);
        all.push(files(&folder));
    }
    assert!(all[0] == all[1] && all[0] == all[2], "equal files");
    let names: Vec<&String> = all[0].keys().collect();
    insta::assert_debug_snapshot!(names);
    let found = transcripts(&design, &dir.path().join("1")).unwrap();
    assert_eq!(found.len(), 16);
    for (cell, seed, folder, transcript) in &found {
        assert_eq!(transcript.header.record.seed, *seed);
        let (name, value) = &transcript.header.record.overrides[0];
        assert_eq!((name.as_str(), value), ("prize", &serde_json::json!(1 + cell / 2)), "{folder:?}");
    }
    // Runs of one seed share their turns' seeds in all cells.
    let first =
        |cell: usize| found.iter().find(|run| (run.0, run.1) == (cell, 5)).unwrap().3.turns[0].record.seed;
    assert_eq!(first(0), first(3));
}

#[test]
fn an_experiment_that_was_stopped_goes_on_and_plays_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let design = design(&["prize=1,2"], 0..6);
    let whole = dir.path().join("whole");
    run(&design, &whole, 1, counted(Arc::default()), 0).unwrap();
    for stop_after in [1, 3, 6] {
        let (folder, asked) = (dir.path().join(format!("stop-{stop_after}")), Arc::default());
        let first = run(&design, &folder, 2, counted(Arc::clone(&asked)), stop_after).unwrap();
        assert!(first.stopped && first.n_new >= stop_after && first.n_new < 12, "{first:?}");
        // A run that was killed in the middle of a line.
        let torn = folder.join("1-prize=2/seed-5/transcript.jsonl");
        std::fs::create_dir_all(torn.parent().unwrap()).unwrap();
        let text = std::fs::read(whole.join("1-prize=2/seed-5/transcript.jsonl")).unwrap();
        std::fs::write(&torn, &text[..text.len() * 2 / 3]).unwrap();
        let before = asked.load(Ordering::SeqCst);
        let second = run(&design, &folder, 2, counted(Arc::clone(&asked)), 0).unwrap();
        let n_left = 12 - first.n_new;
        assert!(asked.load(Ordering::SeqCst) - before <= n_left * 6, "no complete run was played again");
        assert_eq!((second.n_before, second.n_before + second.n_new), (first.n_new, 12), "{second:?}");
        assert!(files(&folder) == files(&whole), "equal files");
        let third = run(&design, &folder, 2, counted(Arc::clone(&asked)), 0).unwrap();
        assert_eq!((third.n_new, third.n_before), (0, 12));
    }
}

#[test]
fn an_experiment_may_grow_but_not_become_another() {
    let dir = tempfile::tempdir().unwrap();
    let play = |design: &Design| run(design, dir.path(), 4, counted(Arc::default()), 0);
    assert_eq!(play(&design(&["prize=1,2"], 0..2)).unwrap().n_new, 4);
    assert_eq!(play(&design(&["prize=1,2,3"], 0..3)).unwrap().n_new, 5);
    for (sweeps, seeds, says) in [
        (&["prize=2,1,3"][..], 0..3, "its cell 0 has prize=1"),
        (&[], 0..3, "its cell 0 has prize=1"),
        (&["prize=1,2,3"], 1..3, "runs with seed 0"),
    ] {
        let error = play(&design(sweeps, seeds)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let mut other = design(&["prize=1,2,3"], 0..3);
    other.options.max_tokens = 7;
    let error = format!("{:#}", play(&other).unwrap_err());
    assert!(error.contains("`max_tokens`") && error.contains("seed-0"), "{error}");
    std::fs::write(dir.path().join("experiment.json"), "{}").unwrap();
    let error = play(&design(&["prize=1,2,3"], 0..3)).unwrap_err().to_string();
    assert!(error.contains("is not an experiment record"), "{error}");
}

#[test]
fn a_run_that_fails_keeps_no_other_from_being_played() {
    let dir = tempfile::tempdir().unwrap();
    let design = design(&["prize=1,2"], 0..3);
    let bad = Arc::new(Mutex::new(true));
    let state = bad.clone();
    let backend: Arc<dyn Backend> = Arc::new(Scripted::new(move |request| {
        let fails = *state.lock().unwrap() && request.conversation.exchanges.len() == 1;
        let of = request.conversation.exchanges.first().is_some_and(|first| first.user.contains("For 2"));
        (!(fails && of)).then(|| "Yes.".to_string())
    }));
    let first = run(&design, dir.path(), 2, backend.clone(), 0).unwrap();
    assert_eq!((first.n_new, first.failed.len()), (3, 3), "{first:?}");
    *bad.lock().unwrap() = false;
    let second = run(&design, dir.path(), 2, backend, 0).unwrap();
    assert_eq!((second.n_new, second.n_before, second.failed.len()), (3, 3, 0));
}

#[test]
fn sweeps_are_lists_of_yaml_values() {
    let (name, values) = parse_sweep("a.b=1, 2.5,x,'y, z',true").unwrap();
    assert_eq!((name.as_str(), values.len()), ("a.b", 5));
    for (bad, says) in [("a", "NAME=VALUE"), ("a=", "at least one"), ("a=1,1", "twice"), ("a=[", "YAML")] {
        let error = parse_sweep(bad).unwrap_err();
        assert!(error.contains(says), "{bad}: {error}");
    }
}

#[test]
fn parts_that_are_merged_are_what_one_machine_would_have_written() {
    let dir = tempfile::tempdir().unwrap();
    for (name, seeds) in [("by-seed", 0..7), ("by-run", 0..2)] {
        let whole = design(&["prize=1,2"], seeds);
        let one = dir.path().join(format!("{name}-one"));
        run(&whole, &one, 2, counted(Arc::default()), 0).unwrap();
        let mut parts = Vec::new();
        for number in 1..=3 {
            let shard = Some(Shard { number, of: 3 });
            let (design, folder) =
                (Design { shard, ..whole.clone() }, dir.path().join(format!("{name}-{number}")));
            // One of them is stopped, and resumed.
            let stop_after = usize::from(number == 2);
            run(&design, &folder, 1, counted(Arc::default()), stop_after).unwrap();
            run(&design, &folder, 1, counted(Arc::default()), 0).unwrap();
            parts.push(folder);
        }
        let third = Design { shard: Some(Shard { number: 3, of: 3 }), ..whole.clone() };
        assert_eq!(missing(&parts[..2]).unwrap().len(), third.runs().count());
        assert_eq!(missing(&parts).unwrap().len(), 0);
        let joined = dir.path().join(format!("{name}-joined"));
        assert_eq!(merge(&parts, &joined).unwrap(), whole.runs().count());
        let (one, two) = (files(&one), files(&joined));
        let differs: Vec<&String> = one
            .iter()
            .chain(&two)
            .filter(|(name, _)| one.get(*name) != two.get(*name))
            .map(|(name, _)| name)
            .collect();
        assert!(differs.is_empty(), "{name}: {differs:?}");
        assert!(merge(&parts, &joined).unwrap_err().to_string().contains("already exists"));
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let says =
        |text: &'static str| -> Arc<dyn Backend> { Arc::new(Scripted::new(move |_| Some(text.to_string()))) };
    run(&design(&[], 0..2), &at("a"), 1, says("Yes."), 0).unwrap();
    run(&design(&[], 0..2), &at("b"), 1, says("No."), 0).unwrap();
    run(&design(&[], 0..3), &at("c"), 1, says("Yes."), 0).unwrap();
    let failure = |parts: &[&str]| {
        let parts: Vec<_> = parts.iter().map(|name| at(name)).collect();
        format!("{:#}", merge(&parts, &at("out")).unwrap_err())
    };
    assert!(failure(&["a", "b"]).contains("differ in what was said"));
    assert!(failure(&["a", "c"]).contains("different experiments"));
    assert!(failure(&["a", "nowhere"]).contains("can't read"));
    assert_eq!(missing(&[at("a"), at("a")]).unwrap().len(), 0, "the same part twice is no mistake");
    for text in ["0/2", "3/2", "1", "a/b", "1/0"] {
        assert!(text.parse::<Shard>().is_err(), "{text}");
    }
    assert_eq!(" 2 / 8".parse(), Ok(Shard { number: 2, of: 8 }));
}
