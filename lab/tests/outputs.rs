//! Outputs of `greenroom-lab`: they are written, or a failure is reported; anything but a regular file is
//! refused.

use super::Stage;
use greenroom::backend::{Embedded, EmbeddedConfig, ModelFile};
use greenroom::run::{RunOptions, perform};
use greenroom::stage::Unwatched;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

/// Each command, with arguments that make it print something. OUT is a placeholder for a new path.
const COMMANDS: &[&str] = &[
    "score --text text --threads 1",
    "perplexity --text text --ctx 16 --kv f16 --threads 1",
    "recall --hops 1 --distance 300 --probes 2 --kv f16 --threads 1",
    "kv-config --text long --tokens 300 --out OUT --threads 1",
    "bench prefill --tokens 8 --depth 0",
    "bench decode --tokens 4 --depth 0",
    "bench batch --tokens 4 --depth 16 --sequences 1",
    "bench ttft --context 300",
    "bench concurrent --context 64 --tokens 2 --late 32",
    "bench kernels --calls 1 --width 256 --depth 256",
    "bench limits --tokens 8 --depth 0 --decode 2",
    "bench sampling --vocabulary 1000 --draws 2 --tokens 8",
    "bench scenario --model understudy --file model.yaml --max-tokens 2",
    "bench routing --context 64 --experts 2 --tokens 2",
    "bench memory --context 600",
    "bench pressure --agents 3 --tokens 64 --fit 2 --rounds 1 --question 4 --reply 2",
    "bench gaps --context 64 --tokens 8",
    #[cfg(feature = "gpu")]
    "bench gpu-steps --depth 64",
    "bench growth --history 64 --idle 0,2 --tokens 2",
    "bench sharing --repeats 2 --model understudy --file model.yaml --max-tokens 2",
    "simulate run",
];

const SCENARIO: &str = "id: m\n\
    agents: { ann: { lifecycle: permanent } }\n\
    phases: [{ name: p, agents: [ann], prompt: Say hello. }]\n\
    ";

/// A folder with the commands' inputs.
fn furnished() -> Stage {
    let stage = Stage::new();
    let write = |name: &str, text: &str| std::fs::write(stage.path(name), text).unwrap();
    write("text", "Once there was a mill by the river, and it had a wheel that turned at night. ");
    write("long", &"Once there was a mill by the river, and it had a wheel. ".repeat(60));
    write("model.yaml", SCENARIO);
    record(&stage.path("run"));
    stage
}

/// A run of the scenario, played by the understudy.
fn record(folder: &Path) {
    let scenario = greenroom::scenario::load("model.yaml", SCENARIO, &[]).scenario.unwrap();
    let engine = Embedded::open(&EmbeddedConfig::new(ModelFile::Understudy), &mut |_| {}).unwrap();
    let options = RunOptions { max_tokens: 2, ..RunOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut watch, never) = (Unwatched, std::future::pending());
    let performed = perform(&scenario, Arc::new(engine), folder, &options, &mut watch, never);
    runtime.block_on(performed).unwrap();
}

/// The program in the stage's folder.
fn command(stage: &Stage, args: &str, out: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("greenroom-lab"));
    command.current_dir(stage.dir.path()).env("HOME", stage.dir.path()).env_remove("XDG_CACHE_HOME");
    command.args(args.split(' ').map(|arg| if arg == "OUT" { out } else { arg })).stdin(Stdio::null());
    if args.starts_with("bench") {
        command.args(["--repeat", "1", "--threads", "1"]);
        if !args.contains("--model") {
            command.args(["--shape", "tiny", "--shape-dir", "models"]);
        }
    }
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Names of the commands that `args --help` lists.
fn listed(stage: &Stage, args: &str) -> BTreeSet<String> {
    let help = Command::new(assert_cmd::cargo::cargo_bin!("greenroom-lab"))
        .args(args.split_whitespace())
        .arg("--help")
        .current_dir(stage.dir.path())
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let name = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    commands.lines().map(name).filter(|name| name != "help").collect()
}

#[test]
fn every_command_is_tried() {
    let stage = Stage::new();
    let tried = |at: usize, first: &str| -> BTreeSet<String> {
        let words = COMMANDS.iter().map(|args| args.split(' ').collect::<Vec<_>>());
        words
            .filter(|words| first.is_empty() || words[0] == first)
            .map(|words| words[at].to_owned())
            .collect()
    };
    assert_eq!(listed(&stage, ""), tried(0, ""));
    assert_eq!(listed(&stage, "bench"), tried(1, "bench"));
}

#[test]
fn output_that_is_lost_is_an_error_and_a_reader_that_goes_away_is_none() {
    let stage = furnished();
    for (at, args) in COMMANDS.iter().enumerate() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let lost = command(&stage, args, &format!("lost-{at}")).stdout(full).output().unwrap();
        assert_eq!(lost.status.code(), Some(4), "{args} to a full disk: {}", said(&lost));
        assert!(said(&lost).contains("can't write to standard output"), "{args}: {}", said(&lost));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let gone = command(&stage, args, &format!("gone-{at}")).stdout(writer).output().unwrap();
        let printed = said(&gone);
        assert_eq!(gone.status.code(), Some(0), "{args} to nobody: {printed}");
        assert!(
            !printed.contains("can't write") && !printed.contains("panicked"),
            "{args} to nobody: {printed}"
        );
    }
}

#[test]
fn what_can_not_be_read_or_written_is_named() {
    let stage = furnished();
    std::fs::create_dir(stage.path("folder")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", stage.path("zero")).unwrap();
    std::fs::create_dir(stage.path("bare")).unwrap();
    std::fs::copy(stage.path("run/transcript.jsonl"), stage.path("bare/transcript.jsonl")).unwrap();
    for args in ["score --text", "score --ids", "perplexity --text"] {
        for file in ["folder", "zero", "nothing"] {
            let output = command(&stage, &format!("{args} {file}"), "").output().unwrap();
            assert_eq!(output.status.code(), Some(4), "{args} {file}: {}", said(&output));
            assert!(said(&output).contains(file), "{args} {file}: {}", said(&output));
        }
    }
    for (run, missing) in [("nothing", "nothing"), ("folder", "transcript.jsonl"), ("bare", "trace.jsonl")] {
        let output = command(&stage, &format!("simulate {run}"), "").output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{run}: {}", said(&output));
        assert!(said(&output).contains(missing), "{run}: {}", said(&output));
    }
    let program = command(&stage, "kv-config --text long --tokens 300 --threads 1 --out OUT", "out");
    // No file may grow at all: a size limit acts like a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]).arg(program.get_program());
    limited.args(program.get_args()).current_dir(stage.dir.path()).env("HOME", stage.dir.path());
    let output = limited.output().unwrap();
    let printed = said(&output);
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("out: ") && !printed.contains("panicked"), "{printed}");
}
