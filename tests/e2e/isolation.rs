//! Memories of one agent, run, tenant or key are isolated, and removed memories are gone.

use super::Stage;
use std::path::{Path, PathBuf};

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push(path),
        }
    }
    found
}

/// True if any file of the folder holds the text, in its content or its name.
fn mentions(dir: &Path, text: &str) -> bool {
    files(dir).iter().any(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
            || path.to_string_lossy().contains(text)
    })
}

fn cache(stage: &Stage, args: &[&str]) -> String {
    let dir = stage.path("cache").display().to_string();
    let all: Vec<&str> = ["cache"].iter().chain(args).copied().chain(["--cache-dir", &dir]).collect();
    let output = stage.greenroom(&all).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn what_is_removed_is_gone() {
    let stage = Stage::new();
    stage.play("gossip", "first", &[]);
    stage.play("prisoners-dilemma", "second", &[]);
    let dir = stage.path("cache");
    assert!(mentions(&dir, "Copper Kettle") && mentions(&dir, "gossip-"));
    let listed = cache(&stage, &["ls"]);
    for word in ["gossip", "prisoners-dilemma", "alice", "marco", "understudy", "now"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let id = listed.lines().find(|line| line.contains("alice")).unwrap().split_whitespace().next().unwrap();
    let shown = cache(&stage, &["show", id]);
    assert!(
        shown.contains("You are Alice") && shown.contains("gossip") && shown.contains("-- reply"),
        "{shown}"
    );
    // One agent of three: only what it alone has read is removed.
    assert!(cache(&stage, &["rm", "--agent", "alice"]).contains("removed 1 memory"));
    assert!(!mentions(&dir, "You are Alice") && mentions(&dir, "You are Bob"));
    cache(&stage, &["verify"]);
    assert!(cache(&stage, &["rm", "--scenario", "gossip"]).contains("removed 2 memories"));
    assert!(!mentions(&dir, "Copper Kettle") && !mentions(&dir, "gossip"));
    let again = stage.play("prisoners-dilemma", "third", &[]);
    assert!(again.summary()["agents"]["marco"]["match"]["extend"].as_u64().unwrap() > 0);
    cache(&stage, &["rm", "--older-than", "1d"]);
    assert!(cache(&stage, &["ls"]).contains("marco"));
    cache(&stage, &["rm", "--all"]);
    let left: Vec<_> = files(&dir).into_iter().filter(|p| !p.to_string_lossy().contains("checks")).collect();
    assert!(left.iter().all(|path| path.metadata().unwrap().len() == 0), "{left:?}");
}

#[test]
fn a_bound_on_disk_is_kept_and_the_worthiest_stay() {
    let stage = Stage::new();
    stage.play("gossip", "first", &[]);
    let dir = stage.path("cache");
    let size = |dir: &Path| files(dir).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    let whole = size(&dir);
    // Rows that only serve to go back into a block go first: they are most of these memories, and none of
    // them is lost.
    let bound = whole * 2 / 3;
    cache(&stage, &["gc", "--max-bytes", &bound.to_string()]);
    assert!(size(&dir) <= bound, "{} of {bound}", size(&dir));
    let listed = cache(&stage, &["ls"]);
    assert!(["alice", "bob", "eve"].iter().all(|agent| listed.contains(agent)), "{listed}");
    cache(&stage, &["verify"]);
    let bound = whole / 4;
    cache(&stage, &["gc", "--max-bytes", &bound.to_string()]);
    assert!(size(&dir) <= bound, "{} of {bound}", size(&dir));
    let listed = cache(&stage, &["ls"]);
    // Alice has spoken most, and would take longest to compute again.
    assert!(listed.contains("alice") && !(listed.contains("bob") && listed.contains("eve")), "{listed}");
    cache(&stage, &["verify"]);
    stage.play("gossip", "second", &["--cache-disk", &bound.to_string()]);
    assert!(size(&dir) <= bound);
}

#[test]
fn tenants_share_nothing() {
    let stage = Stage::new();
    let one = stage.play("prisoners-dilemma", "one", &["--tenant", "one"]);
    let same = stage.play("prisoners-dilemma", "same", &["--tenant", "one"]);
    let other = stage.play("prisoners-dilemma", "other", &["--tenant", "two"]);
    assert_eq!(one.transcript(), other.transcript());
    assert_eq!(same.summary()["agents"]["marco"]["match"]["prefix"], 1);
    assert_eq!(other.summary()["agents"]["marco"]["match"]["prefix"], 0);
    assert_eq!(other.summary()["agents"]["marco"]["match"]["cold"], 1);
}

#[test]
fn with_a_key_nothing_on_disk_can_be_read() {
    let stage = Stage::new();
    let key = stage.path("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let key = key.display().to_string();
    let plain = stage.play("gossip", "plain", &[]);
    let words = ["Copper Kettle", "You are", "alice", "gossip", "L0_B0_K", "safetensors\":"];
    assert!(words.iter().take(5).all(|word| mentions(&stage.path("cache"), word)));
    cache(&stage, &["rm", "--all"]);
    let coded = stage.play("gossip", "coded", &["--cache-key-file", &key]);
    assert_eq!(plain.transcript(), coded.transcript());
    for word in words {
        assert!(!mentions(&stage.path("cache"), word), "`{word}` can be read");
    }
    // With the key the memories are there, without it or with another one they are not.
    let path = coded.dir.display().to_string();
    let more = ["--continue", &path, "--cache-memory", "0"];
    let with = stage.play("gossip", "with", &[&more[..], &["--cache-key-file", &key]].concat());
    assert_eq!(with.summary()["agents"]["alice"]["match"]["extend"], 9);
    let without = stage.play("gossip", "without", &more);
    assert_eq!(without.summary()["agents"]["alice"]["match"]["cold"], 1);
    assert_eq!(with.transcript(), without.transcript());
    let listed = cache(&stage, &["ls", "--cache-key-file", &key]);
    assert!(listed.contains("alice") && listed.contains("1 part"), "{listed}");
    cache(&stage, &["verify", "--cache-key-file", &key]);
    cache(&stage, &["rm", "--all"]);
    assert!(files(&stage.path("cache")).iter().all(|path| !path.ends_with("blocks")));
}

#[cfg(unix)]
#[test]
fn files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let stage = Stage::new();
    stage.play("prisoners-dilemma", "run", &[]);
    let root = stage.path("cache").join("v4");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for path in files(&root) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        assert_eq!(mode(path.parent().unwrap()), 0o700, "{}", path.display());
    }
    assert_eq!(mode(&root), 0o700);
}

#[test]
fn two_processes_do_not_write_one_runs_memories() {
    let stage = Stage::new();
    let run = stage.play("prisoners-dilemma", "run", &[]);
    // A lock as another process would hold it: `cache rm` and a second run of the same name keep off.
    let lock = std::fs::File::open(stage.path("cache").join("v4/lock")).unwrap();
    lock.lock_shared().unwrap();
    let dir = stage.path("cache").display().to_string();
    let refused = stage.greenroom(&["cache", "rm", "--all", "--cache-dir", &dir]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("in use by a running greenroom"), "{text}");
    for path in files(&stage.path("cache").join("v4/runs")) {
        let file = std::fs::File::open(path).unwrap();
        file.lock().unwrap();
        std::mem::forget(file); // held until the test's process ends
    }
    // Cut the record short, so that there is a turn to play.
    let transcript = run.dir.join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&transcript, lines[..lines.len() - 3].join("\n") + "\n").unwrap();
    let args = stage.args("prisoners-dilemma", "run");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--resume"]).collect();
    let refused = stage.greenroom(&args).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("in use by another process"), "{text}");
}
