//! Agents who call tools, on random models that write calls in their templates' forms: whole runs, replayed,
//! resumed, forked and played again.

use super::{Run, Stage};
use greenroom_engine::fixtures::RandomModel;

const TEXT: &str = "id: calls
models: { random: random.gguf }
model: random
sampling: { temperature: 1.0 }
tools:
  sums: calculator
  roll: { built_in: dice, about: Rolls dice. }
  diary: notes
  town: { command: [sh, town.sh], about: The weather in a town., arguments: { type: object, properties: { town: { enum: [Ulm, Bonn] } }, required: [town], additionalProperties: false } }
agents:
  ann: { display_name: Ann, tools: [roll, town], max_calls: 2, memory: { keep: window } }
  ben: { display_name: Ben, tools: [town], lifecycle: ephemeral, memory: { keep: window } }
  cas: { display_name: Cas, tools: [roll, town, sums, diary], memory: { keep: window, recent: 2 } }
phases:
  - name: talk
    agents: [ann, ben, cas]
    rounds: 8
    prompt: Talk.
  - name: apart
    agents: [ann, cas]
    rounds: 8
    order: broadcast
  - { name: end, agents: [ann, cas], answer: [left, right] }
outcome:
  rolled: talk.calls.ann | length + apart.calls.ann | length
  heard: talk.calls.cas | length + apart.calls.cas | length
";

/// The id of `<call>`: after bytes, merges, and the tokens of ChatML.
const CALL: usize = 270;

/// Takes note of each time it is called.
const PROGRAM: &str = "read asked\necho called >> called.txt\necho \"sunny, said $asked\"\n";

/// What differs between turns played and turns resumed, forked or played again: nothing, but for the chain
/// after a fork.
fn lines(text: &str) -> Vec<String> {
    text.lines().skip(1).map(|line| line.split(",\"hash\"").next().unwrap().to_string()).collect()
}

struct Theatre {
    stage: Stage,
    file: String,
}

impl Theatre {
    /// A model that likes to say the token which calls begin with.
    fn new(template: Option<&str>, begins_with: usize) -> Self {
        let stage = Stage::new();
        let read = |name| std::fs::read_to_string(format!("tests/fixtures/templates/{name}.jinja")).unwrap();
        let tiny = RandomModel::tiny_of("qwen2", 7);
        let model = RandomModel {
            context_length: 3584,
            template: template.map(read).or(tiny.template.clone()),
            control: vec!["<call>".into(), "</call>".into()],
            ..tiny
        };
        let width = model.d_model;
        let bytes = model.bytes_with(&|name, weights| {
            if name == "output.weight" {
                weights[begins_with * width..][..width].iter_mut().for_each(|weight| *weight *= -9.0);
            }
        });
        std::fs::write(stage.path("random.gguf"), bytes).unwrap();
        std::fs::write(stage.path("town.sh"), PROGRAM).unwrap();
        std::fs::write(stage.path("calls.yaml"), TEXT).unwrap();
        let file = stage.path("calls.yaml").display().to_string();
        Self { stage, file }
    }

    fn run(&self, out: &str, more: &[&str]) -> Run {
        self.run_with("3", out, more)
    }

    fn run_with(&self, seed: &str, out: &str, more: &[&str]) -> Run {
        let dir = self.stage.path(out);
        let shown = dir.display().to_string();
        let fixed = [
            "run",
            &self.file,
            "--out",
            &shown,
            "--seed",
            seed,
            "--max-tokens",
            "24",
            "--threads",
            "1",
            "--quiet",
        ];
        self.stage.greenroom(&[&fixed, more].concat()).assert().success();
        Run { dir }
    }

    fn replay(&self, run: &Run, more: &[&str]) {
        let dir = run.dir.display().to_string();
        let output = self.stage.greenroom(&[&["replay", &dir], more].concat()).output().unwrap();
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stdout));
    }

    fn n_called(&self) -> usize {
        std::fs::read_to_string(self.stage.path("called.txt")).map_or(0, |text| text.lines().count())
    }
}

/// Calls that have to be made, before speech, a choice and a structured reply; choices of several options.
#[test]
fn demanded_calls_are_made_and_played_again() {
    let stage = Stage::new();
    let out = stage.path("sets").display().to_string();
    let args =
        ["run", "tests/scenarios/sets.yaml", "--out", &out, "--seed", "3", "--threads", "1", "--quiet"];
    stage.greenroom(&args).assert().success();
    let text = std::fs::read_to_string(stage.path("sets/transcript.jsonl")).unwrap();
    let n_calls = text.lines().filter(|line| line.contains("\"call\":{\"tool\":\"sums\"")).count();
    assert_eq!(n_calls, 4, "{text}");
    for more in [&[][..], &["--score"], &["--rerun=exact"]] {
        stage.greenroom(&[&["replay", &out, "--threads", "1"][..], more].concat()).assert().success();
    }
}

#[test]
fn calls_replay_resume_fork_and_are_played_again() {
    let theatre = Theatre::new(None, usize::from(b'{'));
    let cache = theatre.stage.path("cache").display().to_string();
    let played = theatre.run("run", &["--allow-tools", "--cache-dir", &cache]);
    let whole = played.transcript();
    let turns = played.turns("transcript.jsonl");
    assert!(whole.contains("\"kept\":"), "a memory that is full starts over");
    let of = |tool: &str| turns.iter().filter(|turn| turn["call"]["tool"] == tool).count();
    let n_town = of("town");
    eprintln!("{} lines: {n_town} of a program", turns.len());
    assert!(n_town > 1);
    assert_eq!(theatre.n_called(), n_town);
    // From records, by a model that reads it, by one that says it again: no program runs.
    for more in [&[][..], &["--score"], &["--rerun"], &["--rerun=exact"]] {
        theatre.replay(&played, &[more, if more.is_empty() { &[] } else { &["--threads", "1"] }].concat());
    }
    assert_eq!(theatre.n_called(), n_town, "a replay called a program");
    // Played again by programs that say the same: no cache, a cache that is always read from disk.
    for (out, more) in [("cold", vec!["--cold"]), ("disk", vec!["--cache-memory", "0"])] {
        let again = theatre.run(out, &[&["--allow-tools"], &more[..]].concat());
        assert!(again.transcript() == whole, "{out}");
    }
    // Interrupted after each line of a call and before it: what is on record is not called again.
    let calls = whole.lines().enumerate().filter(|(_, line)| line.contains("\"call\":{"));
    let calls: Vec<usize> = calls.map(|(at, _)| at).collect();
    for at in calls.iter().step_by(calls.len().div_ceil(4)).flat_map(|at| [*at, at + 1]) {
        let name = format!("cut-{at}");
        std::fs::create_dir(theatre.stage.path(&name)).unwrap();
        let kept: String = whole.split_inclusive('\n').take(at).collect();
        let on_record = kept.matches("\"tool\":\"town\",\"arguments\"").count();
        std::fs::write(theatre.stage.path(&name).join("transcript.jsonl"), kept).unwrap();
        let before = theatre.n_called();
        let resumed = theatre.run(&name, &["--resume", "--allow-tools"]);
        assert!(resumed.transcript() == whole, "resumed behind line {at}");
        assert_eq!(theatre.n_called() - before, n_town - on_record, "resumed behind line {at}");
    }
    // A fork says the same until something else is said.
    let dir = played.dir.display().to_string();
    for at in ["talk/6/cas", "apart/3/ann"] {
        let fork = theatre.stage.path(&at.replace('/', "-")).display().to_string();
        let args = ["fork", &dir, "--at", at, "--out", &fork, "--allow-tools", "--threads", "1", "--quiet"];
        let elsewhere = theatre.stage.greenroom(&args).output().unwrap();
        let printed = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
        assert!(
            printed.contains("programs start in the folder of calls.yaml, which was not found"),
            "{printed}"
        );
        theatre.stage.greenroom(&args).current_dir(theatre.stage.dir.path()).assert().success();
        let forked = Run { dir: fork.into() };
        assert_eq!(lines(&forked.transcript()), lines(&whole), "{at}");
        theatre.replay(&forked, &[]);
    }
}

/// A seed with which each tool is called, and a call is cut.
const SEED: &str = "2";

#[test]
fn calls_after_markup_are_exact_too() {
    let theatre = Theatre::new(Some("calls-as-markup"), CALL);
    let played = theatre.run_with(SEED, "run", &["--allow-tools"]);
    let turns = played.turns("transcript.jsonl");
    for tool in ["town", "roll", "sums", "diary", ""] {
        let n = turns.iter().filter(|turn| turn["call"]["tool"] == tool).count();
        eprintln!("{n} calls of `{tool}`");
        assert!(n > 0, "{tool}");
    }
    theatre.replay(&played, &["--rerun=exact", "--threads", "1"]);
    if crate::is_deep() {
        let cold = theatre.run_with(SEED, "cold", &["--allow-tools", "--cold"]);
        assert_eq!(cold.transcript(), played.transcript());
    }
}
