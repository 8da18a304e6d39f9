//! The hostile corpus (`tests/hostile`) and special files through the program, each under 512 MB and 10 s: it
//! ends by itself with a documented exit code, without a panic, and nothing that it says steers a terminal or
//! quotes what is no scenario.

use super::limits::{Ended, Limits};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder of its own: a home, and a checkout in it with the corpus's files.
struct Den {
    dir: tempfile::TempDir,
}

/// The committed files of a kind, by name.
fn corpus(kind: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile").join(kind);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == ending)).collect();
    files.sort();
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

impl Den {
    fn new() -> Self {
        let den = Self { dir: crate::folder() };
        std::fs::create_dir_all(den.path(".git")).unwrap();
        den
    }

    /// A path in the checkout.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("checkout").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    fn link(&self, name: &str, to: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, self.path(name)).unwrap();
    }

    /// The program in the checkout, under limits.
    fn greenroom(&self, args: &[&str]) -> Command {
        let mut command = Limits::default().greenroom();
        command
            .current_dir(self.path("."))
            .env("HOME", self.dir.path())
            .env("RUST_BACKTRACE", "0")
            .env_remove("CI");
        command.args(args);
        command
    }

    /// Runs it, and holds it to what hostile input may never do.
    fn end(&self, args: &[&str]) -> Ended {
        let ended = Limits::default().wait(&mut self.greenroom(args));
        let what = format!("greenroom {}", args.join(" "));
        ended.check(&what);
        for text in [&ended.stdout, &ended.stderr] {
            let steers = text.chars().find(|c| c.is_control() && *c != '\n' && *c != '\t');
            assert_eq!(steers, None, "{what}: {text}");
        }
        ended
    }

    /// The same, for what can't be done.
    fn refused(&self, args: &[&str], message: &str) -> Ended {
        let ended = self.end(args);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(![Some(0), Some(1)].contains(&ended.code), "greenroom {}: {said}", args.join(" "));
        assert!(said.contains(message), "greenroom {}: expected {message}: {said}", args.join(" "));
        ended
    }
}

/// Does something with every file, two at a time.
fn each(files: &[PathBuf], work: impl Fn(&Path) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(file);
                }
            });
        }
    });
}

#[test]
fn hostile_scenarios_are_checked_drawn_and_played_to_an_end() {
    let files = corpus("scenarios", "yaml");
    assert!(files.len() >= 60);
    let files: Vec<_> = crate::some(files, 4).collect();
    let den = Den::new();
    for file in &files {
        std::fs::copy(file, den.path(&format!("{}.yaml", stem(file)))).unwrap();
    }
    let played = AtomicUsize::new(0);
    each(&files, |file| {
        let (name, out) = (format!("{}.yaml", stem(file)), stem(file));
        let checked = den.end(&["check", &name, "--dry-run"]);
        assert!(
            !checked.stdout.contains("root:x:0"),
            "{name} shows a file of the machine: {}",
            checked.stdout
        );
        for format in ["dot", "svg", "mermaid"] {
            den.end(&["graph", &name, "--format", format]);
        }
        if checked.code == Some(0) && !stem(file).contains("thousand") {
            let out = format!("runs/{out}");
            den.end(&[
                "run",
                &name,
                "--out",
                &out,
                "--max-tokens",
                "2",
                "--threads",
                "1",
                "--cache-memory",
                "16M",
            ]);
            den.end(&["replay", &out]);
            den.end(&["report", &out]);
            if stem(file).starts_with("payoff") {
                // Tables, intervals and plots of figures that nobody expects.
                let many = format!("{out}-many");
                den.end(&[
                    "run",
                    &name,
                    "--out",
                    &many,
                    "--repeat",
                    "2",
                    "--threads",
                    "1",
                    "--cache-memory",
                    "16M",
                ]);
            }
            played.fetch_add(1, Ordering::Relaxed);
        }
    });
    let expected = if crate::is_deep() { 20 } else { 2 };
    assert!(played.into_inner() >= expected, "hardly any of them was played");
    let leftovers = ["/tmp/owned-1", "/etc/passwd-1"].map(|path| Path::new(path).exists());
    assert_eq!(leftovers, [false, false], "an id led out of `runs`");
}

#[test]
fn hostile_transcripts_and_traces_are_replayed_shown_and_reviewed_to_an_end() {
    let files = corpus("transcripts", "jsonl");
    assert!(files.len() >= 30);
    let folder = files[0].with_file_name("");
    let files: Vec<_> = crate::some(files, 4).collect();
    let den = Den::new();
    std::fs::copy(folder.join("two-doors.yaml"), den.path("two-doors.yaml")).unwrap();
    std::fs::copy(folder.join("whole.jsonl"), den.path("good.jsonl")).unwrap();
    for file in &files {
        let run = den.path(&stem(file));
        std::fs::create_dir(&run).unwrap();
        std::fs::copy(file, run.join("transcript.jsonl")).unwrap();
        let trace = file.with_extension("trace");
        if trace.exists() {
            std::fs::copy(trace, run.join("trace.jsonl")).unwrap();
        }
    }
    assert_eq!(den.end(&["replay", "good.jsonl"]).code, Some(0));
    each(&files, |file| {
        let run = stem(file);
        for args in [
            &["replay", &run, "--junit", &format!("{run}.xml"), "--markdown", &format!("{run}.md")][..],
            &["replay", &run, "--json"],
            &["report", &run],
            &["explain", &run, "--agent", "ann"],
            &["explain", &run, "--agent", "\u{1b}[2J"],
            &["diff", &run, "good.jsonl", "--all"],
            &["fork", &run, "--at", "nowhere", "--out", &format!("{run}-nowhere")],
            &[
                "fork",
                &run,
                "--at",
                "door",
                "--out",
                &format!("{run}-fork"),
                "--threads",
                "1",
                "--cache-memory",
                "16M",
            ],
            &["replay", &run, "--score", "--threads", "1"],
            &["review", &run, "--accept"],
        ] {
            let ended = den.end(args);
            let said = ended.stdout + &ended.stderr;
            assert!(!said.contains("root:x:0"), "{run} shows a file of the machine: {said}");
        }
    });
}

#[test]
fn a_hostile_trace_is_summed_up_when_its_run_goes_on() {
    let den = Den::new();
    den.write("x.yaml", PLAYABLE);
    assert_eq!(den.end(&["run", "x.yaml", "--out", "run"]).code, Some(0));
    let whole = std::fs::read_to_string(den.path("run/transcript.jsonl")).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    den.write("run/transcript.jsonl", &lines[..lines.len() - 1].concat());
    let n = u64::MAX;
    let mut trace = "{\"type\":\"run\",\"run\":\"x-1\",\"model\":\"understudy\",\"started\":1}\n".to_string();
    for (round, agent) in [(1, "ann"), (1, "ben"), (2, "ann"), (2, "ben")] {
        trace += &format!(
            "{{\"type\":\"turn\",\"path\":\"p/{round}/{agent}\",\"agent\":\"{agent}\",\"match\":\"cold\",\"source\":\"disk\",\"tokens\":{{\
             \"reused\":{n},\"prefilled\":{n},\"recomputed\":{n},\"generated\":{n},\"layer0_rows\":{n}}},\"ttft_ms\":1e308,\"total_ms\":1e308,\
             \"bytes_read\":{n},\"bytes_written\":{n},\"saved_ms\":1e308,\"memory_bytes\":{n},\"reason\":null}}\n"
        );
    }
    den.write("run/trace.jsonl", &trace);
    let ended = den.end(&["run", "x.yaml", "--out", "run", "--resume"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(std::fs::read_to_string(den.path("run/summary.json")).unwrap().contains(&n.to_string()));
    assert_eq!(den.end(&["explain", "run", "--agent", "ann"]).code, Some(0));
}

/// Plays at once, without a model's word.
pub(super) const PLAYABLE: &str = "id: x
agents: { ann: { strategy: { always: one } }, ben: { strategy: { always: two } } }
phases:
  - { name: p, agents: [ann, ben], rounds: 2, answer: [one, two] }
";

/// Things that can be in the place of an expected file: their names, and the messages about them.
const SPECIAL: [(&str, &str); 5] = [
    ("pipe", "it is a named pipe"),
    ("zero", "it is a device"),
    ("folder", "it is a folder"),
    ("sparse", " at most"),
    ("nowhere", ""),
];

/// A checkout with all of them.
fn special() -> Den {
    let den = Den::new();
    assert!(Command::new("mkfifo").arg(den.path("pipe")).status().unwrap().success());
    den.link("zero", "/dev/zero");
    std::fs::create_dir(den.path("folder")).unwrap();
    std::fs::File::create(den.path("sparse")).unwrap().set_len(4 << 30).unwrap();
    den.write("x.yaml", PLAYABLE);
    assert_eq!(den.end(&["run", "x.yaml", "--out", "run"]).code, Some(0));
    den
}

#[test]
fn what_is_no_regular_file_is_refused_wherever_a_file_is_read() {
    let den = special();
    for (file, message) in SPECIAL {
        let include = format!("include-{file}.yaml");
        den.write(&include, &format!("include: [{file}]\n{PLAYABLE}"));
        for args in [
            &["check", file][..],
            &["graph", file],
            &["run", file, "--out", "o"],
            &["import", file],
            &["run", "x.yaml", "--out", "o", "--cache-key-file", file],
        ] {
            den.refused(args, message);
        }
        // The link leads out of the checkout, and is refused for that.
        let message_of_included = if file == "zero" { "leads out of" } else { message };
        for command in ["check", "graph", "run"] {
            den.refused(&[command, &include], message_of_included);
        }
        // A folder is a run's, whose transcript is not there.
        let message = if file == "folder" { "" } else { message };
        for args in [
            &["replay", file][..],
            &["report", file],
            &["explain", file, "--agent", "ann"],
            &["diff", file, "run"],
            &["diff", "run", file],
            &["fork", file, "--at", "p", "--out", "o"],
            &["replay", "run", "--scenario", file],
            &["explain", "run", "--agent", "ann", "--scenario", file],
            &["run", "x.yaml", "--out", "o", "--continue", file],
        ] {
            den.refused(args, message);
        }
        // A choice of formats, and a model, are looked for by more than their names.
        den.refused(&["run", "x.yaml", "--out", "o", "--kv", file], "");
        if file != "sparse" {
            den.refused(&["models", file], "");
        }
    }
}

#[test]
fn what_is_no_regular_file_in_a_runs_folder_is_refused_too() {
    for (what, (file, _)) in [
        "transcript.jsonl",
        "trace.jsonl",
        "summary.json",
        "report.html",
        "transcript.jsonl.new",
        "experiment.json",
    ]
    .into_iter()
    .flat_map(|what| SPECIAL[..4].iter().map(move |special| (what, special)))
    {
        let den = special();
        std::fs::remove_file(den.path("run").join(what)).ok();
        std::fs::rename(den.path(file), den.path("run").join(what)).unwrap();
        for args in [
            &["replay", "run"][..],
            &["report", "run"],
            &["explain", "run", "--agent", "ann"],
            &["review", "run", "--accept"],
            &["run", "x.yaml", "--out", "run", "--resume"],
            &["run", "x.yaml", "--out", "run", "--repeat", "1"],
            &["run", "x.yaml", "--out", "again", "--continue", "run"],
        ] {
            den.end(args);
        }
    }
}

#[test]
fn nothing_is_written_by_a_link() {
    let den = Den::new();
    den.write("x.yaml", PLAYABLE);
    assert_eq!(den.end(&["run", "x.yaml", "--out", "run"]).code, Some(0));
    let whole = std::fs::read_to_string(den.path("run/transcript.jsonl")).unwrap();
    let begun: String = whole.split_inclusive('\n').take(3).collect();
    for name in [
        "trace.jsonl",
        "summary.json",
        "report.html",
        "transcript.jsonl",
        "transcript.jsonl.new",
        "choices.csv",
    ] {
        den.write("precious", "mine\n");
        den.write("run/transcript.jsonl", &begun);
        std::fs::remove_file(den.path("run").join(name)).ok();
        den.link(&format!("run/{name}"), "../precious");
        for args in [
            &["run", "x.yaml", "--out", "run", "--resume"][..],
            &["report", "run"],
            &["replay", "run"],
            &["review", "run", "--accept"],
        ] {
            den.end(args);
        }
        std::fs::remove_file(den.path("run/transcript.jsonl")).ok();
        den.end(&["run", "x.yaml", "--out", "run", "--repeat", "2"]);
        assert_eq!(std::fs::read_to_string(den.path("precious")).unwrap(), "mine\n", "{name}");
        std::fs::remove_dir_all(den.path("run")).unwrap();
    }
}

#[test]
fn lines_that_never_end_and_values_that_swell_take_no_memory() {
    let den = Den::new();
    den.write("x.yaml", PLAYABLE);
    let header = "{\"type\":\"header\",\"variables\":{\"x\":[";
    for (name, unit, n) in
        [("long", "1,", 100 << 20), ("lists", "[1],", 7 << 20), ("mappings", "{\"a\":1},", 7 << 20)]
    {
        den.write(&format!("{name}.jsonl"), &(header.to_string() + &unit.repeat(n / unit.len()) + "1]}}\n"));
        for command in ["replay", "report"] {
            den.refused(&[command, &format!("{name}.jsonl")], "found ");
        }
    }
    // A human who never ends the line.
    den.write("human.yaml", "agents: { ann: { strategy: human } }\nphases: [{ name: p, agents: [ann] }]\n");
    let program = assert_cmd::cargo::cargo_bin!("greenroom").display().to_string();
    // Of address space each thread may have 64 MiB reserved, whatever it uses: what is in use is measured.
    let script = format!("ulimit -v 1048576; exec {program} run human.yaml --out human </dev/zero");
    let mut command = Command::new("sh");
    command.current_dir(den.path(".")).env("HOME", den.dir.path()).args(["-c", &script]);
    let ended = Limits::default().wait(&mut command);
    ended.check(&script);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
}

#[test]
fn no_file_leads_out_of_its_checkout() {
    let den = Den::new();
    let outside = |name: &str| den.dir.path().join(name);
    std::fs::write(outside("cast.yaml"), "TOPSECRET: 1\nagents: { cas: {} }\n").unwrap();
    std::fs::write(outside("secret"), "TOPSECRET\n").unwrap();
    den.write("secret", "TOPSECRET: [\n");
    den.write("other.yaml", "TOPSECRET: 1\n");
    den.link("link.yaml", "../cast.yaml");
    den.write("cast.yaml", "agents: { dan: {} }\n");
    let including = |name: &str| {
        den.write("deep/x.yaml", &format!("include: [\"{name}\"]\n{PLAYABLE}"));
        ["check", "graph", "run"].map(|command| {
            let ended = den.end(&[command, "deep/x.yaml"]);
            let said = ended.stdout + &ended.stderr;
            assert!(!said.contains("TOPSECRET"), "{name}: {said}");
            (ended.code, said)
        })
    };
    for (name, message) in [
        ("../../cast.yaml", "leads out of"),
        ("../../secret", "leads out of"),
        ("../../nothing-there", "leads out of"),
        ("../link.yaml", "leads out of"),
        ("../secret", "can't be read as YAML (line "),
        ("../other.yaml", "is not a scenario: it has none of a scenario's fields"),
        ("../nothing-there", "the file does not exist"),
    ] {
        for (code, said) in including(name) {
            assert!(code == Some(2) && said.contains(message), "{name}: {code:?} {said}");
        }
    }
    assert!(including("../cast.yaml").iter().all(|(code, _)| *code == Some(0)));
    // Where it is said, more is allowed, or less.
    den.write("deep/x.yaml", &format!("include: [../cast.yaml]\n{PLAYABLE}"));
    assert_eq!(den.end(&["check", "deep/x.yaml", "--root", ".."]).code, Some(0));
    assert_eq!(den.refused(&["check", "deep/x.yaml", "--root", "deep"], "leads out of").code, Some(2));
    den.refused(&["check", "deep/x.yaml", "--root", "nowhere"], "there is no folder nowhere");
}

#[test]
fn a_recording_finds_nothing_above_its_checkout() {
    let den = Den::new();
    let whole = corpus("transcripts", "jsonl")[0].with_file_name("whole.jsonl");
    let scenario = whole.with_file_name("two-doors.yaml");
    std::fs::create_dir_all(den.path("a/run")).unwrap();
    std::fs::create_dir_all(den.path("elsewhere")).unwrap();
    std::fs::copy(&whole, den.path("a/run/transcript.jsonl")).unwrap();
    std::fs::copy(&whole, den.path("a/run/transcript.jsonl.new")).unwrap();
    let with = |command: &'static [&'static str], more: &[&str]| {
        let args: Vec<&str> = command.iter().chain(more).copied().collect();
        let mut program = den.greenroom(&args);
        let ended = Limits::default().wait(program.current_dir(den.path("elsewhere")));
        ended.check(&args.join(" "));
        (ended.code, ended.stdout + &ended.stderr)
    };
    let commands: [&[&str]; 5] = [
        &["replay", "../a/run"],
        &["explain", "../a/run", "--agent", "ann"],
        &["fork", "../a/run", "--at", "door", "--out", "fork"],
        &["review", "../a/run/transcript.jsonl", "--reject"],
        &["run", "../../two-doors.yaml", "--out", "next", "--continue", "../a/run"],
    ];
    // Above the checkout, and through a link out of it.
    std::fs::copy(&scenario, den.dir.path().join("two-doors.yaml")).unwrap();
    den.link("a/two-doors.yaml", "../../two-doors.yaml");
    for command in commands {
        std::fs::copy(&whole, den.path("a/run/transcript.jsonl.new")).unwrap();
        let (_, said) = with(command, &[]);
        assert!(said.contains("was not found near the transcript"), "{command:?}: {said}");
        std::fs::copy(&whole, den.path("a/run/transcript.jsonl.new")).unwrap();
        let (code, said) = with(command, &["--root", "../.."]);
        assert!(code == Some(0) && !said.contains("was not found near"), "{command:?}: {code:?} {said}");
        for made in ["fork", "next"] {
            std::fs::remove_dir_all(den.path("elsewhere").join(made)).ok();
        }
    }
    let (_, said) = with(&["report", "../a/run"], &[]);
    assert!(said.contains("The scenario was not found"), "{said}");
    // In the checkout a file that is no scenario is named, never shown.
    std::fs::remove_file(den.path("a/two-doors.yaml")).unwrap();
    den.write("two-doors.yaml", "TOPSECRET: 1\n");
    let (code, said) = with(&["replay", "../a/run"], &[]);
    assert!(
        code == Some(4) && said.contains("is not a valid scenario") && !said.contains("TOPSECRET"),
        "{said}"
    );
    std::fs::copy(&scenario, den.path("two-doors.yaml")).unwrap();
    assert_eq!(with(&["replay", "../a/run"], &[]).0, Some(0));
}
