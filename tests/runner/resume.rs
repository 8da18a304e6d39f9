//! Interrupted runs go on, and episodes carry on the memories of earlier ones.

use crate::play::{SMALL, echo, play, scenario};
use greenroom::backend::{Scripted, Session};
use greenroom::replay::{brought_along, replay, transcript_file};
use greenroom::run::RunOptions;
use greenroom::scenario::load;
use greenroom::transcript::Transcript;
use std::sync::{Arc, Mutex};

#[test]
fn a_run_resumed_anywhere_writes_the_same_file() {
    let folder = crate::play::checkout();
    let scenario = scenario(SMALL);
    let whole = play(&scenario, echo(), &folder.path().join("whole"), &RunOptions::default()).unwrap();
    let whole = std::fs::read(whole.transcript).unwrap();
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    for cut in (0..whole.len()).step_by(97) {
        let run = folder.path().join(format!("cut-{cut}"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(transcript_file(&run), &whole[..cut]).unwrap();
        let played = play(&scenario, echo(), &run, &resume).unwrap_or_else(|e| panic!("cut at {cut}: {e:#}"));
        assert!(std::fs::read(played.transcript).unwrap() == whole, "cut at {cut}");
    }
    // A power cut can leave zeros in place of what was not synced, before lines that are whole.
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    for (line, with_its_end) in (1..ends.len() - 2).flat_map(|line| [(line, 0), (line, 1)]) {
        let run = folder.path().join(format!("zeros-{line}-{with_its_end}"));
        std::fs::create_dir(&run).unwrap();
        let mut left = whole[..=ends[line + 1]].to_vec();
        left[ends[line - 1] + 1..ends[line] + with_its_end].fill(0);
        std::fs::write(transcript_file(&run), &left).unwrap();
        let played = play(&scenario, echo(), &run, &resume).unwrap_or_else(|e| panic!("line {line}: {e:#}"));
        assert!(std::fs::read(played.transcript).unwrap() == whole, "line {line}");
        assert!(std::fs::read(run.join("transcript.torn.jsonl")).unwrap() == left, "nothing of it is lost");
    }
    // Zeros in a run that has ended come from something else: nothing is cut off.
    let run = folder.path().join("damaged");
    std::fs::create_dir(&run).unwrap();
    let mut damaged = whole.clone();
    damaged[ends[2] + 9] = 0;
    std::fs::write(transcript_file(&run), &damaged).unwrap();
    assert!(play(&scenario, echo(), &run, &resume).is_err());
    assert!(std::fs::read(transcript_file(&run)).unwrap() == damaged);
    let error = play(&scenario, echo(), &folder.path().join("whole"), &resume).unwrap_err();
    assert!(error.to_string().contains("complete"), "{error}");
}

#[test]
fn a_resumed_run_keeps_its_name_and_asks_only_for_what_is_missing() {
    let folder = crate::play::checkout();
    let scenario = scenario(SMALL);
    let first = Scripted::new(|request| (request.index < 3).then(|| "yes".to_string()));
    play(&scenario, Arc::new(first), folder.path(), &RunOptions::default()).unwrap_err();
    let trace = || std::fs::read_to_string(folder.path().join("trace.jsonl")).unwrap();
    let name = trace().lines().next().unwrap().to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let note = asked.clone();
    let second = Scripted::new(move |request| {
        note.lock().unwrap().push(request.index);
        Some("yes".into())
    });
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    play(&scenario, Arc::new(second), folder.path(), &resume).unwrap();
    assert_eq!(*asked.lock().unwrap(), (3..10).collect::<Vec<_>>());
    assert_eq!(trace().lines().next().unwrap(), name);
    assert_eq!(trace().lines().count(), 11);
}

#[test]
fn other_settings_are_refused_by_name() {
    let folder = crate::play::checkout();
    let scenario = scenario(SMALL);
    let first = Scripted::new(|request| (request.index < 3).then(|| "yes".to_string()));
    play(&scenario, Arc::new(first), folder.path(), &RunOptions::default()).unwrap_err();
    let other = RunOptions { resume: true, seed: 1, ..RunOptions::default() };
    let error = play(&scenario, echo(), folder.path(), &other).unwrap_err();
    assert!(error.to_string().contains("`seed`"), "{error}");
}

#[test]
fn a_second_episode_begins_with_the_first() {
    let folder = crate::play::checkout();
    let file = folder.path().join("small.yaml");
    std::fs::write(&file, SMALL).unwrap();
    let scenario = load(&file.display().to_string(), SMALL, &[]).scenario.unwrap();
    play(&scenario, echo(), &folder.path().join("one"), &RunOptions::default()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let second = Scripted::new(move |request| {
        note.lock().unwrap().push((
            request.path.clone(),
            request.conversation.clone(),
            request.parent.clone(),
        ));
        Some("again".into())
    });
    let options = RunOptions { continues: Some(folder.path().join("one")), ..RunOptions::default() };
    let played = play(&scenario, Arc::new(second), &folder.path().join("two"), &options).unwrap();
    let seen = seen.lock().unwrap();
    let (_, ann, parent) = seen.iter().find(|(path, ..)| path == "private/1/a").unwrap();
    assert_eq!(ann.exchanges.len(), 4, "Ann spoke four times in the first episode");
    assert!(
        ann.next.starts_with("Cas: This is together/2/c"),
        "what she had not read yet comes first: {}",
        ann.next
    );
    assert!(matches!(parent, Some(Session { agent, .. }) if agent == "a"));
    let (_, cas, parent) = seen.iter().find(|(path, ..)| path == "together/1/c").unwrap();
    assert!(cas.exchanges.is_empty() && parent.is_none(), "an ephemeral agent brings nothing");
    let text = std::fs::read_to_string(&played.transcript).unwrap();
    assert!(text.lines().next().unwrap().contains("\"continues\":{\"path\":\"one/transcript.jsonl\""));
    let transcript = Transcript::open(&played.transcript).unwrap();
    let brought = brought_along(&played.transcript, &transcript.header.record, None).unwrap();
    replay(&scenario, &transcript, brought).unwrap();
}
