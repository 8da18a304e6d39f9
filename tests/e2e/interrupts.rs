//! Signals at any moment: a run ends soon, and is resumed to the transcript that it would have had.

use super::{Stage, signal};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that a run may take to end. It ends after the pass that it is in; the rest is for busy machines.
const SOON: Duration = Duration::from_secs(10);

/// A human, and others who speak without having heard what the human says.
const HUMAN: &str = "id: human
agents: {ann: {}, ben: {}, cy: {}, joe: {strategy: human}}
phases:
- { name: one, agents: [ann, ben, cy], order: broadcast, rounds: 2, prompt: Talk. }
- { name: ask, agents: [joe], prompt: What do you say? }
- { name: two, agents: [ann, ben], order: broadcast, prompt: Talk about the mill. }
- { name: three, agents: [cy], prompt: And you? }
";

/// A run to play, and what is done to it.
struct Play {
    name: &'static str,
    /// A shipped scenario; `None`: [`HUMAN`].
    scenario: Option<&'static str>,
    more: &'static [&'static str],
    /// A kind of `GREENROOM_FAULT`; its place changes from run to run.
    fault: Option<&'static str>,
}

const PLAYS: [Play; 6] = [
    Play { name: "broadcasts", scenario: Some("iterated-dilemma"), more: &[], fault: None },
    Play { name: "whispers", scenario: Some("council"), more: &[], fault: None },
    Play { name: "a human", scenario: None, more: &[], fault: None },
    Play { name: "a model that fails", scenario: Some("prisoners-dilemma"), more: &[], fault: Some("fail") },
    Play { name: "a disk that fills", scenario: Some("prisoners-dilemma"), more: &[], fault: Some("full") },
    Play { name: "many runs", scenario: Some("prisoners-dilemma"), more: &["--repeat", "2"], fault: None },
];

impl Play {
    fn command(&self, stage: &Stage, out: &str) -> Command {
        let file = match self.scenario {
            Some(name) => format!("scenarios/{name}.yaml"),
            None => {
                let file = stage.path("human.yaml");
                std::fs::write(&file, HUMAN).unwrap();
                file.display().to_string()
            }
        };
        // What a shell runs in the background inherits SIGINT as ignored, these tests too.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(assert_cmd::cargo::cargo_bin!("greenroom"));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("HOME", stage.dir.path());
        command.args(["run", &file, "--max-tokens", "12", "--seed", "5", "--quiet", "--threads", "1"]);
        command.arg("--out").arg(stage.path(out)).arg("--cache-dir").arg(stage.path("cache"));
        command.args(self.more).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// The transcripts of a complete run, or of all runs of an experiment; none where one is not complete.
    fn transcripts(&self, stage: &Stage, out: &str) -> Option<Vec<String>> {
        let folder = stage.path(out);
        let files: Vec<PathBuf> = match self.more {
            [] => vec![folder.join("transcript.jsonl")],
            _ => [5, 6].map(|seed| folder.join(format!("seed-{seed}/transcript.jsonl"))).to_vec(),
        };
        let read = |file: &PathBuf| std::fs::read_to_string(file).ok().filter(|t| t.contains("\"footer\""));
        files.iter().map(read).collect()
    }

    /// True if there is anything to go on from.
    fn begun(&self, stage: &Stage, out: &str) -> bool {
        let file = if self.more.is_empty() { "transcript.jsonl" } else { "experiment.json" };
        stage.path(out).join(file).exists()
    }

    /// Plays to the end.
    fn finish(&self, stage: &Stage, out: &str) -> Vec<String> {
        let mut command = self.command(stage, out);
        if self.begun(stage, out) {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        answer(&mut child);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        self.transcripts(stage, out).unwrap_or_else(|| panic!("{}: {} {said}", self.name, output.status))
    }
}

/// Answers as the human.
fn answer(child: &mut Child) {
    let _ = child.stdin.as_mut().unwrap().write_all(b"I say nothing.\n");
}

/// Waits for a child that should end soon; how long it took.
fn end(child: &mut Child, what: &str) -> Duration {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > SOON {
            let _ = child.kill();
            panic!("{what}: it did not end within {SOON:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    began.elapsed()
}

/// Interrupts runs of a play at `n` moments spread over it, up to five times a folder, and lets each go on to
/// its end.
fn interrupt(play: &Play, n: u32) {
    let whole = Stage::new();
    let began = Instant::now();
    let expected = play.finish(&whole, "run");
    let length = began.elapsed();
    let (mut sent, mut slowest) = (0, Duration::ZERO);
    while sent < n {
        let stage = Stage::new();
        for _ in 0..5 {
            sent += 1;
            let mut command = play.command(&stage, "run");
            if let Some(kind) = play.fault {
                command.env("GREENROOM_FAULT", format!("{kind}:{}", 1 + sent * 7 % 60));
            }
            if play.begun(&stage, "run") {
                command.arg("--resume");
            }
            let mut child = command.spawn().unwrap();
            // Moments of the golden ratio: never twice the same stage of a turn. Every third human answers.
            std::thread::sleep(length.mul_f64((f64::from(sent) * 0.618_034).fract()));
            if sent % 3 == 0 {
                answer(&mut child);
            }
            let name = if sent % 2 == 0 { "INT" } else { "TERM" };
            signal(&child, name);
            slowest = slowest.max(end(&mut child, &format!("{}, SIG{name} {sent}", play.name)));
            let status = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&status.stderr);
            assert!(!said.contains("panicked"), "{}: {said}", play.name);
            if play.transcripts(&stage, "run").is_some() {
                break;
            }
        }
        let found = match play.transcripts(&stage, "run") {
            Some(found) => found,
            None => play.finish(&stage, "run"),
        };
        assert_eq!(found, expected, "{}, after {sent} signals", play.name);
    }
    eprintln!("{}: {sent} signals, the slowest end after {slowest:.1?}", play.name);
}

#[test]
fn an_interrupted_run_ends_soon_and_goes_on() {
    let n = if crate::is_deep() { 5 } else { 1 };
    PLAYS.iter().for_each(|play| interrupt(play, n));
}

#[test]
#[ignore = "some minutes: cargo test --test e2e -- --ignored interrupted_two_hundred --nocapture"]
fn interrupted_two_hundred_times() {
    PLAYS.iter().for_each(|play| interrupt(play, 35));
}

/// A second signal stops a run that does not respond to the first.
#[test]
fn a_second_signal_always_ends_it() {
    for name in ["INT", "TERM"] {
        let stage = Stage::new();
        let mut child = PLAYS[0].command(&stage, "run").env("GREENROOM_FAULT", "stall:9").spawn().unwrap();
        while !stage.path("run/transcript.jsonl").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, name);
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "it was not stuck");
        signal(&child, name);
        end(&mut child, "a second signal");
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(PLAYS[0].finish(&stage, "run"), PLAYS[0].finish(&Stage::new(), "run"));
    }
}

/// A turn that fails while later ones are answered already: the run says so and ends.
#[test]
fn a_human_who_leaves_ends_the_run() {
    let stage = Stage::new();
    let mut child = PLAYS[2].command(&stage, "run").spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2)); // the others have answered
    drop(child.stdin.take());
    end(&mut child, "the terminal was closed");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the terminal was closed"), "{said}");
    assert_eq!(PLAYS[2].finish(&stage, "run"), PLAYS[2].finish(&Stage::new(), "run"));
}

/// A pass that fails is taken again turn by turn; a panic is reported, and nothing is lost.
#[test]
fn a_model_that_breaks_loses_nothing() {
    let play = &PLAYS[0];
    let expected = play.finish(&Stage::new(), "run");
    for fault in ["trip:20", "trip:33", "fail:25", "panic:12", "panic:30"] {
        let stage = Stage::new();
        let mut child = play.command(&stage, "run").env("GREENROOM_FAULT", fault).spawn().unwrap();
        end(&mut child, fault);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(0) {
            assert_eq!(output.status.code(), Some(4), "{fault}: {said}");
            assert!(said.contains("on demand"), "{fault}: {said}");
        }
        let found = match play.transcripts(&stage, "run") {
            Some(found) => found,
            None => play.finish(&stage, "run"),
        };
        assert_eq!(found, expected, "{fault}");
    }
}

/// The command that an interrupted run shows, pasted into a shell, continues it with all its settings.
#[test]
fn the_command_that_is_shown_continues_the_run() {
    let play = &PLAYS[0];
    let expected = play.finish(&Stage::new(), "a run, or two");
    let stage = Stage::new();
    let stopped = play.command(&stage, "a run, or two").env("GREENROOM_FAULT", "fail:25").output().unwrap();
    let said = String::from_utf8_lossy(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(4), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("continue with: "));
    let line = line.unwrap_or_else(|| panic!("no command to continue with: {said}"));
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(env!("CARGO_MANIFEST_DIR")).env("HOME", stage.dir.path());
    let continued = shell.output().unwrap();
    let said = String::from_utf8_lossy(&continued.stderr);
    assert!(continued.status.success(), "{line}: {said}");
    assert_eq!(play.transcripts(&stage, "a run, or two"), Some(expected));
}
