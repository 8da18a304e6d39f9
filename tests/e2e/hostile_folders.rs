//! Cache folders as a failing disk or somebody hostile would leave them: whatever is in the place of any
//! file, every command ends in time, within its memory, with an exit code of its own, and the play is the one
//! of an empty folder.

use crate::Stage;
use crate::limits::{Ended, Limits};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something that is done to a file or folder; `outside` is a file that the store must neither show nor
/// change.
type Damage = fn(path: &Path, outside: &Path);

/// Damage to files.
const TO_FILES: [(&str, Damage); 15] = [
    ("a named pipe", |path, _| {
        replace(path);
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }),
    ("a socket", |path, _| {
        // A socket's path has at most 108 bytes.
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let short = Path::new("/tmp").join(format!("greenroom-{process}-{thread:?}"));
        symlink(path.parent().unwrap(), &short).unwrap();
        drop(std::os::unix::net::UnixListener::bind(short.join("socket")).unwrap());
        std::fs::remove_file(short).unwrap();
        std::fs::rename(path.with_file_name("socket"), path).unwrap();
    }),
    ("a link to /dev/zero", |path, _| {
        replace(path);
        symlink("/dev/zero", path).unwrap();
    }),
    ("a link out of the folder", |path, outside| {
        replace(path);
        symlink(outside, path).unwrap();
    }),
    ("a link to nothing", |path, _| {
        replace(path);
        symlink("nowhere", path).unwrap();
    }),
    ("a link to itself", |path, _| {
        replace(path);
        symlink(path, path).unwrap();
    }),
    ("a folder", |path, _| {
        replace(path);
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("x.log"), "mine").unwrap();
    }),
    ("a second name outside", |path, outside| {
        std::fs::hard_link(path, twin(path, outside)).unwrap();
    }),
    ("a terabyte of zeros behind it", |path, _| {
        std::fs::OpenOptions::new().append(true).open(path).unwrap().set_len(1 << 40).unwrap();
    }),
    ("a terabyte of zeros", |path, _| {
        std::fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    }),
    ("nothing in it", |path, _| std::fs::write(path, "").unwrap()),
    ("half of it", |path, _| change(path, |bytes| bytes.truncate(bytes.len() / 2))),
    ("a flipped bit", |path, _| {
        change(path, |bytes| {
            let middle = bytes.len() * 2 / 3;
            bytes.get_mut(middle).into_iter().for_each(|byte| *byte ^= 8);
        });
    }),
    ("garbage behind it", |path, _| change(path, |bytes| bytes.extend(b"garbage ".repeat(9)))),
    ("a name that is not UTF-8", |path, _| {
        std::fs::rename(path, path.with_file_name(OsStr::from_bytes(b"caf\xe9.log"))).unwrap();
    }),
];

/// Damage to folders.
const TO_FOLDERS: [(&str, Damage); 6] = [
    ("a file", |path, _| {
        replace(path);
        std::fs::write(path, "in the way").unwrap();
    }),
    ("a named pipe", TO_FILES[0].1),
    ("a link out of the folder", |path, outside| {
        replace(path);
        symlink(outside.parent().unwrap(), path).unwrap();
    }),
    ("a link to itself", TO_FILES[5].1),
    ("gone", |path, _| replace(path)),
    ("a thousand unknown files", |path, _| {
        for i in 0..1000 {
            std::fs::write(path.join(format!("{i:064x}.x")), "mine").unwrap();
        }
    }),
];

/// The path at which a file gets its second name.
fn twin(path: &Path, outside: &Path) -> PathBuf {
    outside.with_file_name("twins").join(path.file_name().unwrap())
}

/// Removes whatever is there.
fn replace(path: &Path) {
    if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// Files below a folder; the folder itself is no file.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Puts all loose blocks into one pack, as the store does with some hundred: images, index, its length, its
/// checksum, a magic.
fn pack(root: &Path) {
    let (mut images, mut index) = (Vec::new(), Vec::new());
    for path in files(&root.join("blocks")) {
        let image = std::fs::read(&path).unwrap();
        let hash = blake3::Hash::from_hex(path.file_stem().unwrap().as_bytes()).unwrap();
        index.extend_from_slice(hash.as_bytes());
        index.push(0);
        index.extend((images.len() as u64).to_le_bytes());
        index.extend((image.len() as u64).to_le_bytes());
        images.extend(image);
        std::fs::remove_file(path).unwrap();
    }
    let sum = blake3::hash(&index);
    let footer = [&(index.len() as u64).to_le_bytes()[..], sum.as_bytes(), b"GRPACK01"].concat();
    let name = format!("{}.pack", &sum.to_hex()[..40]);
    std::fs::write(root.join("packs").join(name), [images, index, footer].concat()).unwrap();
}

/// A folder that a real run left, the run cut short, and what is played in it.
struct Theatre {
    stage: Stage,
    /// Transcripts of a run that continues, and of one that begins with its memories.
    expected: [String; 2],
}

const STORY: &str = "The old mill by the river has a wheel that turns at night although nobody lives there. ";

impl Theatre {
    fn new(packed: bool) -> Self {
        let stage = Stage::new();
        let agent = |name: &str| {
            let story = STORY.repeat(12);
            format!("  {name}:\n    lifecycle: permanent\n    system_prompt: You are {name}. {story}\n")
        };
        let scenario = format!(
            "id: mill\ntitle: The mill\nagents:\n\
             {}{}phases:\n  - {{name: talk, order: round_robin, agents: [ada, rolf], rounds: 2, \
             prompt: Talk about the mill.}}\n",
            agent("ada"),
            agent("rolf")
        );
        std::fs::write(stage.path("mill.yaml"), scenario).unwrap();
        std::fs::write(stage.path("outside"), "nobody's business").unwrap();
        let mut theatre = Self { stage, expected: Default::default() };
        let first = theatre.run("first", "cache", &[]);
        assert_eq!(first.code, Some(0), "{first:?}");
        let root = theatre.stage.path("cache/v4");
        if packed {
            pack(&root);
        }
        // The locks that a run leaves are empty files; `cut` lacks its last turn.
        let transcript = theatre.transcript("first");
        copy(&theatre.stage.path("first"), &theatre.stage.path("cut"));
        let lines: Vec<&str> = transcript.split_inclusive('\n').collect();
        std::fs::write(theatre.stage.path("cut/transcript.jsonl"), lines[..lines.len() - 2].concat())
            .unwrap();
        copy(&theatre.stage.path("cache"), &theatre.stage.path("clean"));
        let first = theatre.stage.path("first").display().to_string();
        assert_eq!(theatre.run("then", "clean", &["--continue", &first]).code, Some(0));
        theatre.expected = [transcript, theatre.transcript("then")];
        theatre
    }

    fn transcript(&self, run: &str) -> String {
        std::fs::read_to_string(self.stage.path(run).join("transcript.jsonl")).unwrap()
    }

    fn greenroom(&self, args: &[&str]) -> Ended {
        let limits = Limits::default();
        limits.wait(limits.greenroom().env("HOME", self.stage.path("home")).args(args))
    }

    fn run(&self, out: &str, cache: &str, more: &[&str]) -> Ended {
        let paths = ["mill.yaml", out, cache].map(|name| self.stage.path(name).display().to_string());
        let fixed = ["--max-tokens", "6", "--seed", "5", "--quiet", "--threads", "1"];
        let mut args = vec!["run", &paths[0], "--out", &paths[1], "--cache-dir", &paths[2]];
        args.extend(fixed.iter().chain(more));
        self.greenroom(&args)
    }

    /// Damages what `targets` picks of a copy of the folder, then does everything that can be done with one.
    fn perform(&self, what: &str, targets: &[PathBuf], damage: Damage) {
        let [here, outside] = ["here", "outside"].map(|name| self.stage.path(name));
        for name in ["here", "run", "next", "twins"] {
            let _ = std::fs::remove_dir_all(self.stage.path(name));
        }
        std::fs::create_dir(self.stage.path("twins")).unwrap();
        copy(&self.stage.path("cache"), &here);
        copy(&self.stage.path("cut"), &self.stage.path("run"));
        for target in targets {
            damage(&here.join(target), &outside);
        }
        let dir = here.display().to_string();
        let cache = |args: &[&str]| {
            let ended = self.greenroom(&[&["cache"], args, &["--cache-dir", &dir]].concat());
            ended.check(&format!("{what}: cache {args:?}"));
            assert!(!ended.stdout.contains("nobody's business"), "{what}: {args:?}");
            ended
        };
        cache(&["ls"]);
        cache(&["show", "0"]);
        let printed = cache(&["verify"]);
        // (A manifest that ends within a record is what a crash leaves.)
        let harmless =
            ["second name", "gone", "manifests: half"].iter().any(|harmless| what.contains(harmless));
        let verdict = (printed.code == Some(4) && !printed.stdout.contains(" 0 problems")) || harmless;
        assert!(verdict, "{what}: {printed:?}");
        let play = |out: &str, expected: &str, more: &[&str]| {
            let ended = self.run(out, "here", more);
            ended.check(&format!("{what}: run {more:?}"));
            assert_eq!(ended.code, Some(0), "{what}: run {more:?}: {}", ended.stderr);
            assert!(self.transcript(out) == expected, "{what}: run {more:?} played something else");
        };
        play("run", &self.expected[0], &["--resume", "--cache-disk", "1G"]);
        cache(&["gc", "--max-bytes", "1G"]);
        let first = self.stage.path("first").display().to_string();
        play("next", &self.expected[1], &["--continue", &first]);
        cache(&["rm", "--agent", "ada"]);
        cache(&["rm", "--all"]);
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "nobody's business", "{what}");
        for target in targets {
            let [before, after] =
                [self.stage.path("cache").join(target), twin(target, &outside)].map(std::fs::read);
            assert!(
                after.is_err() || before.unwrap() == after.unwrap(),
                "{what}: its other name was written to"
            );
        }
    }

    /// Files or folders of the clean folder whose paths begin so, relative to it.
    fn targets(&self, beginning: &str) -> Vec<PathBuf> {
        let dir = self.stage.path("cache");
        let all = files(&dir.join("v4")).into_iter().filter(|path| path.starts_with(dir.join(beginning)));
        let found: Vec<PathBuf> = all.map(|path| path.strip_prefix(&dir).unwrap().to_owned()).collect();
        assert!(!found.is_empty(), "{beginning}");
        found
    }

    fn damage_files(&self, beginning: &str) {
        let targets = self.targets(beginning);
        for (name, damage) in crate::some(TO_FILES, 4) {
            // Of files that lie in one folder only one can have a given name; an empty file has no half.
            let one = name.contains("UTF-8") || beginning == "v4/runs";
            let targets = if one { &targets[..1] } else { &targets[..] };
            let empty = std::fs::metadata(self.stage.path("cache").join(&targets[0])).unwrap().len() == 0;
            if !(empty && ["nothing in it", "half of it", "a flipped bit"].contains(&name)) {
                self.perform(&format!("{beginning}: {name}"), targets, damage);
            }
        }
    }
}

#[test]
fn hostile_manifests() {
    Theatre::new(false).damage_files("v4/manifests");
}

#[test]
fn hostile_tails() {
    Theatre::new(false).damage_files("v4/tails");
}

#[test]
fn hostile_blocks() {
    Theatre::new(false).damage_files("v4/blocks");
}

#[test]
fn hostile_packs() {
    Theatre::new(true).damage_files("v4/packs");
}

#[test]
fn hostile_verdicts_and_locks() {
    let theatre = Theatre::new(false);
    for beginning in ["v4/checks", "v4/lock", "v4/packs.lock", "v4/runs"] {
        theatre.damage_files(beginning);
    }
}

#[test]
fn hostile_folders() {
    let theatre = Theatre::new(false);
    let root = theatre.stage.path("cache/v4");
    let folder = files(&root.join("blocks")).remove(0).parent().unwrap().to_owned();
    let inner = folder.strip_prefix(theatre.stage.path("cache")).unwrap().to_owned();
    let named = ["v4", "v4/runs", "v4/blocks", "v4/packs", "v4/tails", "v4/manifests", "v4/checks"];
    let targets: Vec<PathBuf> = named.iter().map(PathBuf::from).chain([inner]).collect();
    let cases = targets.iter().flat_map(|target| TO_FOLDERS.map(|damage| (target, damage)));
    for (target, (name, damage)) in crate::some(cases, 5) {
        theatre.perform(&format!("{}: {name}", target.display()), std::slice::from_ref(target), damage);
    }
}
