//! Memories that are looked up and speakers that are picked, on the bundled model: whole runs, replayed,
//! resumed, forked and played again.

use super::{Run, Stage};
use std::path::Path;

/// The memories of Ann and Cas are full once; a question goes to the agents who have read what is near.
fn scenario() -> String {
    let lines =
        ["The river rose to the third step", "Bread needs salt", "The bees are asleep", "A boat came by"];
    let said: Vec<String> =
        lines.iter().map(|line| format!("\"{}\"", format!("{line}, day after day. ").repeat(48))).collect();
    format!(
        "
id: looked_up
agents:
  ann: {{ display_name: Ann, memory: {{ keep: retrieve, recent: 2, nearest: 3 }} }}
  cas: {{ display_name: Cas, memory: {{ keep: window }} }}
  ben: {{ display_name: Ben, strategy: {{ list: [{}] }} }}
phases:
  - {{ name: story, agents: [ben, ann], rounds: 20, prompt: Tell the story of the river. }}
  - {{ name: other, agents: [ben, cas], rounds: 16, prompt: Tell another story. }}
  - name: ask
    agents: [ann, cas]
    prompt: How high did the river rise?
    route: {{ query: How high did the river rise?, take: 1 }}
  - {{ name: after, agents: [ann, cas], prompt: The end. }}
",
        said.join(", ")
    )
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path.join("transcript.jsonl")).unwrap()
}

#[test]
fn retrieved_memories_replay_resume_fork_and_are_played_again() {
    let stage = Stage::new();
    let file = stage.path("looked_up.yaml");
    std::fs::write(&file, scenario()).unwrap();
    let (file, out) = (file.display().to_string(), stage.path("run").display().to_string());
    let cache = stage.path("cache").display().to_string();
    let fixed = ["--max-tokens", "12", "--quiet", "--threads", "2"];
    let run = |out: &str, more: &[&str]| {
        let args = [&["run", file.as_str(), "--out", out], &fixed[..], more].concat();
        stage.greenroom(&args).assert().success();
    };
    run(&out, &["--cache-dir", &cache]);
    let played = Run { dir: out.clone().into() };
    let turns = played.turns("transcript.jsonl");
    let kept: Vec<_> = turns.iter().filter(|turn| turn["kept"].is_array()).collect();
    let of = |agent: &str| kept.iter().filter(|turn| turn["agent"] == agent).count();
    eprintln!("{} epochs of Ann, {} of Cas, {} turns", of("ann"), of("cas"), turns.len());
    assert!(of("ann") > 0 && of("cas") > 0);
    assert!(kept.iter().all(|turn| !turn["kept"].as_array().unwrap().is_empty()));
    let whole = played.transcript();
    assert_eq!(whole.lines().filter(|line| line.contains("\"type\":\"route\"")).count(), 1);
    stage.greenroom(&["replay", &out]).assert().success();
    // By a model that plays it again, and one that reads it.
    for how in ["--rerun=exact", "--score"].into_iter().filter(|_| crate::is_deep()) {
        stage.greenroom(&["replay", &out, how, "--threads", "2"]).assert().success();
    }
    // Interrupted right after the line of an epoch, and after the route.
    let at = |found: &dyn Fn(&str) -> bool| whole.lines().position(found).unwrap() + 1;
    let cuts = [at(&|line| line.contains("\"kept\":")), at(&|line| line.contains("\"type\":\"route\""))];
    for n in crate::some(cuts, 2) {
        let cut = stage.path(&format!("cut-{n}"));
        std::fs::create_dir(&cut).unwrap();
        let lines: String = whole.split_inclusive('\n').take(n).collect();
        std::fs::write(cut.join("transcript.jsonl"), lines).unwrap();
        let cut = cut.display().to_string();
        run(&cut, &["--resume"]);
        assert!(text(Path::new(&cut)) == whole, "resumed behind line {n}");
    }
    // A fork across an epoch, and one after the route, say the same until something else is said.
    for at in crate::some(["story/19/ann", "after/1/ann"], 2) {
        let fork = stage.path(&at.replace('/', "-")).display().to_string();
        let args = [&["fork", out.as_str(), "--at", at, "--out", fork.as_str()], &fixed[..]].concat();
        stage.greenroom(&args).assert().success();
        let lines = |text: &str| {
            text.lines()
                .skip(1)
                .map(|line| line.split(",\"hash\"").next().unwrap().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&text(Path::new(&fork))), lines(&whole), "{at}");
        stage.greenroom(&["replay", &fork]).assert().success();
    }
}
