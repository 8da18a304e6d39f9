//! Everything that the program says and writes arrives, or it says so: full disks, readers that go away, many
//! at once.

use super::Stage;
use super::hostile::PLAYABLE;
use clap::CommandFactory as _;
use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Each command, with arguments that make it print something on standard output in a folder that is
/// [`furnished`]. OUT is replaced by a new path, ID by the one memory there.
const COMMANDS: &[&str] = &[
    "run x.yaml --out OUT --threads 1",
    "check x.yaml two-doors.yaml",
    "completions bash",
    "man OUT",
    "new OUT",
    "graph x.yaml",
    "merge part-1 part-2 --out OUT",
    "fork run --at p/2/ann --out OUT --threads 1",
    "explain run --agent ann",
    "import arena.json",
    "migrate --check x.yaml two-doors.yaml",
    "replay run whole.jsonl",
    "report run -o OUT",
    "review",
    "diff run whole.jsonl --all",
    "schema",
    "cache ls --cache-dir cache",
    "cache show ID --cache-dir cache",
    "cache rm --all --cache-dir no-cache",
    "cache gc --max-bytes 1G --cache-dir cache",
    "cache verify --cache-dir cache",
    "pull",
    "models",
    "devices",
];

/// A folder with what the commands read.
fn furnished() -> Stage {
    let stage = Stage::new();
    let hostile = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/transcripts");
    for file in ["whole.jsonl", "two-doors.yaml"] {
        std::fs::copy(hostile.join(file), stage.path(file)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(stage.path(name), text).unwrap();
    write("x.yaml", PLAYABLE);
    write(
        "arena.json",
        "{\"name\": \"A\", \"players\": [{\"name\": \"Ann\", \"role_desc\": \"Be kind.\"}], \"environment\": \
         {\"env_type\": \"conversation\"}}",
    );
    write(
        "model.yaml",
        "id: m\n\
         agents: { ann: { lifecycle: permanent } }\n\
         phases: [{ name: p, agents: [ann], prompt: Say hello. }]\n\
         ",
    );
    let play = |args: &str| {
        let output = command(&stage, args, "made").stdout(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    };
    play("run x.yaml --out run --quiet");
    for shard in [1, 2] {
        play(&format!("run x.yaml --repeat 2 --shard {shard}/2 --out part-{shard} --quiet"));
    }
    play("run model.yaml --out memory --quiet --max-tokens 2 --threads 1 --cache-dir cache");
    stage
}

/// The program in the stage's folder; `OUT` in its arguments is a new path.
fn command(stage: &Stage, args: &str, out: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("greenroom"));
    command
        .current_dir(stage.dir.path())
        .env("HOME", stage.dir.path())
        .env_remove("CI")
        .env_remove("XDG_CACHE_HOME");
    command.args(args.split(' ').map(|arg| if arg == "OUT" { out } else { arg }));
    command
}

/// Names of all commands that do something, as they are typed.
fn leaves(command: &clap::Command, before: &str, found: &mut BTreeSet<String>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{before}{} ", sub.get_name());
        if sub.has_subcommands() {
            leaves(sub, &name, found);
        } else {
            found.insert(name);
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_is_tried() {
    let mut all = BTreeSet::new();
    leaves(&greenroom::commands::Cli::command(), "", &mut all);
    assert!(all.remove("serve "), "it goes on until it is stopped: `serve.rs` tries it");
    assert!(all.remove("lsp "), "an editor talks with it: `lsp.rs` tries it");
    let missing: Vec<_> = all
        .iter()
        .filter(|name| !COMMANDS.iter().any(|args| format!("{args} ").starts_with(*name)))
        .collect();
    assert!(missing.is_empty() && all.len() == COMMANDS.len(), "say how these are run: {missing:?}");
}

#[test]
fn output_that_is_lost_is_an_error_and_a_reader_that_goes_away_is_none() {
    let stage = furnished();
    let memories = command(&stage, "cache ls --cache-dir cache", "").output().unwrap();
    let memories = String::from_utf8(memories.stdout).unwrap();
    let id = memories.lines().nth(1).and_then(|row| row.split_whitespace().next()).unwrap();
    for (at, args) in COMMANDS.iter().chain(&["--help", "--version", "run --help"]).enumerate() {
        let args = &args.replace("ID", id);
        let usual = command(&stage, args, &format!("usual-{at}")).stdin(Stdio::null()).output().unwrap();
        assert!(!usual.stdout.is_empty(), "{args} says nothing: {}", said(&usual));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let lost =
            command(&stage, args, &format!("lost-{at}")).stdin(Stdio::null()).stdout(full).output().unwrap();
        assert_eq!(lost.status.code(), Some(4), "{args} to a full disk: {}", said(&lost));
        assert!(said(&lost).contains("can't write to standard output"), "{args}: {}", said(&lost));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let gone = command(&stage, args, &format!("gone-{at}"))
            .stdin(Stdio::null())
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!(gone.status.code(), usual.status.code(), "{args} to nobody: {}", said(&gone));
        let printed = said(&gone);
        assert!(
            !printed.contains("can't write") && !printed.contains("panicked"),
            "{args} to nobody: {printed}"
        );
    }
}

#[test]
fn a_standard_error_that_is_full_ends_nothing() {
    let stage = furnished();
    std::fs::write(stage.path("warned.yaml"), PLAYABLE.replace("rounds: 2", "until: p.votes.one >= 1"))
        .unwrap();
    let warned = command(&stage, "graph warned.yaml", "").output().unwrap();
    assert!(said(&warned).contains("no-effect"), "{}", said(&warned));
    std::fs::write(stage.path("run/trace.jsonl"), "garbage\n").unwrap();
    for (args, code) in [
        ("explain run --agent ann", 0),
        ("check warned.yaml nowhere.yaml", 4),
        ("graph warned.yaml", 0),
        ("run --nonsense", 2),
        ("run x.yaml --out run --resume", 4),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(&stage, args, "").stdin(Stdio::null()).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args}");
    }
}

/// Everything that writes files, with the file that can't be written first.
#[test]
fn a_file_that_can_not_be_written_is_named() {
    let stage = furnished();
    std::fs::write(stage.path("x2.yaml"), PLAYABLE.replace("always: two", "always: one")).unwrap();
    for (at, (args, file)) in [
        ("run x.yaml --out OUT --cache-dir cache", "OUT/scenario/x.yaml"),
        ("run x.yaml --out OUT --repeat 2 --cache-dir cache", "OUT/experiment.json"),
        ("fork run --at p --out OUT --cache-dir cache", "OUT/scenario/x.yaml"),
        ("new OUT", "OUT.yaml"),
        ("report run -o OUT", "OUT"),
        ("replay run --junit OUT", "OUT"),
        ("replay run --markdown OUT", "OUT"),
        ("import arena.json -o OUT", "OUT"),
        ("man OUT", "OUT/greenroom-run.1"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("out-{at}");
        let program = command(&stage, args, &out);
        // No file may grow at all: what a full disk does, a limit does.
        let mut limited = Command::new("sh");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]).arg(program.get_program());
        limited.args(program.get_args()).current_dir(stage.dir.path()).env("HOME", stage.dir.path());
        let output = limited.output().unwrap();
        let (printed, file) = (said(&output), file.replace("OUT", &out));
        assert_eq!(output.status.code(), Some(4), "{args}: {printed}");
        assert!(printed.contains(&format!("{file}: ")) && !printed.contains("panicked"), "{args}: {printed}");
    }
}

#[test]
fn a_failure_of_the_play_is_reported_before_one_of_writing() {
    let stage = Stage::new();
    std::fs::write(
        stage.path("human.yaml"),
        "agents: { ann: { strategy: human } }\nphases: [{ name: p, agents: [ann] }]\n",
    )
    .unwrap();
    std::fs::create_dir_all(stage.path("out/summary.json")).unwrap();
    let output = command(&stage, "run human.yaml --out out", "").stdin(Stdio::null()).output().unwrap();
    let printed = said(&output);
    let (play, summary) = (printed.find("the terminal was closed"), printed.find("out/summary.json"));
    assert!(output.status.code() == Some(4) && play.is_some() && play < summary, "{printed}");
}

#[test]
fn runs_that_begin_at_once_have_folders_of_their_own() {
    let stage = Stage::new();
    std::fs::write(stage.path("x.yaml"), PLAYABLE).unwrap();
    let start =
        |_| command(&stage, "run x.yaml --quiet --threads 1", "").stdout(Stdio::piped()).spawn().unwrap();
    let running: Vec<_> = (0..6).map(start).collect();
    let outputs: Vec<Output> = running.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let folders: BTreeSet<_> = outputs.iter().map(|output| output.stdout.clone()).collect();
    let runs = std::fs::read_dir(stage.path("runs")).unwrap().count();
    assert_eq!((folders.len(), runs), (6, 6));
    // A run that never begins leaves none, and the latest is resumed.
    let failed = command(&stage, "run x.yaml --model nowhere.gguf", "").output().unwrap();
    assert_eq!(failed.status.code(), Some(4));
    let resumed = command(&stage, "run x.yaml --resume", "").output().unwrap();
    assert!(said(&resumed).contains("runs/x-6/"), "{}", said(&resumed));
}

#[test]
fn a_run_that_is_complete_has_nothing_to_go_on_with() {
    let stage = furnished();
    for args in ["run x.yaml --out run --resume", "fork run --at p --out run --resume"] {
        let output = command(&stage, args, "").output().unwrap();
        let printed = said(&output);
        assert!(printed.contains("complete") && !printed.contains("continue with:"), "{args}: {printed}");
    }
}

#[test]
fn humans_answer_one_run_after_the_other() {
    let stage = Stage::new();
    let text = "id: h\n\
                agents: { ann: { strategy: human } }\n\
                phases: [{ name: p, agents: [ann], answer: [one, two], prompt: Which? }]\n\
                ";
    std::fs::write(stage.path("h.yaml"), text).unwrap();
    std::fs::write(stage.path("answers"), "neither\none\n".repeat(3)).unwrap();
    let answers = || File::open(stage.path("answers")).unwrap();
    let alone = command(&stage, "run h.yaml --quiet --out alone", "").stdin(answers()).output().unwrap();
    let many =
        command(&stage, "run h.yaml --quiet --out many --repeat 3", "").stdin(answers()).output().unwrap();
    assert!(alone.status.success() && many.status.success(), "{}", said(&many));
    assert!(
        said(&alone).contains("Which?") && said(&alone).contains("`neither` is not an option"),
        "{}",
        said(&alone)
    );
    assert_eq!(said(&many), said(&alone).repeat(3));
    let refused =
        command(&stage, "run h.yaml --out more --repeat 3 --jobs 2", "").stdin(answers()).output().unwrap();
    assert!(refused.status.code() == Some(2) && said(&refused).contains("--jobs"), "{}", said(&refused));
}

#[test]
fn numbers_out_of_range_are_refused() {
    let stage = Stage::new();
    std::fs::write(stage.path("x.yaml"), PLAYABLE).unwrap();
    let numbers = ["nan", "inf", "-inf", "-1", "-0.001", "1e999"];
    for (flag, more) in [
        ("--temperature", &[][..]),
        ("--top-p", &["2", "1.001"]),
        ("--min-p", &["2", "1.001"]),
        ("--repetition-penalty", &["0", "-0"]),
        ("--dry-multiplier", &[]),
        ("--dry-base", &["0", "0.999"]),
        ("--dry-allowed-length", &["0.5"]),
        ("--max-tokens", &["0", "99999999999"]),
        ("--repeat", &["0"]),
        ("--jobs", &["0"]),
        ("--threads", &["0"]),
    ] {
        for number in numbers.iter().chain(more) {
            let output =
                command(&stage, &format!("run x.yaml --out OUT {flag}={number}"), "out").output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{flag} {number}: {}", said(&output));
        }
    }
    for number in ["0", "1", "0.5"] {
        let args = format!("run x.yaml --out OUT --top-p={number} --min-p={number} --temperature={number}");
        assert!(
            command(&stage, &args, &format!("fits-{number}")).output().unwrap().status.success(),
            "{number}"
        );
    }
}

#[test]
fn what_is_mistyped_is_answered_in_words() {
    let stage = Stage::new();
    for (args, printed) in [
        ("check scenarios/prisoner-dilemma.yaml", "(did you mean scenarios/prisoners-dilemma.yaml?)"),
        ("check prisoners-dilema", "(did you mean scenarios/prisoners-dilemma.yaml?)"),
        (
            "check scenarios/nothing-like-it.yaml",
            "can't read the scenario scenarios/nothing-like-it.yaml: No such",
        ),
        ("run scenarios/gossip.yaml --seed abc", "expected a whole number of at least 0"),
        ("run scenarios/gossip.yaml --repeat 7.5", "expected a whole number of at least 0"),
        ("run scenarios/gossip.yaml --seed 99999999999999999999", "the number is too large"),
        ("run scenarios/prisoners-dilemma.yaml --sweep only_silnt=1,2", "did you mean `only_silent`?"),
    ] {
        let output = stage.greenroom(&args.split(' ').collect::<Vec<_>>()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(printed), "{args}: {text}");
        assert!(!text.contains("digit") && !text.contains("--set"), "{args}: {text}");
    }
}

/// A program that embeds the engine gets the error as well.
#[test]
fn the_engine_refuses_numbers_out_of_range() {
    use greenroom_engine::Sampling;
    assert!(Sampling::default().validate().is_ok());
    type Set = fn(&mut Sampling, f32);
    let dry = |dry| Some(greenroom_engine::Dry { multiplier: dry, ..Default::default() });
    assert!(Sampling { dry: dry(0.0), ..Sampling::default() }.validate().is_ok());
    let set: [(&str, Set); 6] = [
        ("temperature", |sampling, number| sampling.temperature = number),
        ("top_p", |sampling, number| sampling.top_p = number),
        ("min_p", |sampling, number| sampling.min_p = number),
        ("repetition_penalty", |sampling, number| sampling.repetition_penalty = number),
        ("dry.multiplier", |sampling, number| sampling.dry.get_or_insert_default().multiplier = number),
        ("dry.base", |sampling, number| sampling.dry.get_or_insert_default().base = number),
    ];
    for (name, set) in set {
        for number in [-1.0, f32::NAN, f32::INFINITY, -f32::MIN_POSITIVE] {
            let mut sampling = Sampling::default();
            set(&mut sampling, number);
            let printed = sampling.validate().unwrap_err().to_string();
            assert!(printed.contains(name), "{printed}");
        }
    }
    assert!(Sampling { top_p: 1.5, ..Sampling::default() }.validate().is_err());
    assert!(Sampling { repetition_penalty: 0.0, ..Sampling::default() }.validate().is_err());
}
