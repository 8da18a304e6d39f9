//! What releases contain, and that scripts and workflows that make them call for what exists.

use clap::CommandFactory as _;
use greenroom::commands::Cli;
use serde_yaml::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RELEASE: &str = ".github/workflows/release.yml";
const WHEELS: &str = ".github/workflows/wheels.yml";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn workflow(file: &str) -> Value {
    serde_yaml::from_str(&read(file)).unwrap()
}

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin("greenroom")
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// All commands with the words that lead to each, the program itself first.
fn commands() -> BTreeMap<Vec<String>, clap::Command> {
    fn collect(command: &clap::Command, before: &[String], found: &mut BTreeMap<Vec<String>, clap::Command>) {
        let words = [before, &[command.get_name().to_owned()]].concat();
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            collect(below, &words, found);
        }
        found.insert(words, command.clone());
    }
    let (mut program, mut found) = (Cli::command(), BTreeMap::new());
    program.build();
    collect(&program, &[], &mut found);
    found
}

/// The release files, written by the script that releases use.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    succeeds(Command::new(root().join(".ci/release-files")).arg(program()).arg(folder.path()));
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_command_has_a_man_page_with_its_flags() {
    let folder = files();
    let pages = folder.path().join("man");
    let commands = commands();
    let expected: BTreeSet<String> = commands.keys().map(|words| format!("{}.1", words.join("-"))).collect();
    assert_eq!(names(&pages), expected);
    for (words, command) in &commands {
        let page = std::fs::read_to_string(pages.join(format!("{}.1", words.join("-")))).unwrap();
        let plain = page.replace('\\', "");
        assert!(plain.contains(".SH NAME") && plain.contains(".SH SYNOPSIS"), "{words:?}: {page}");
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()).filter_map(clap::Arg::get_long)
        {
            assert!(plain.contains(&format!("--{flag}")), "{words:?} lacks --{flag}");
        }
    }
}

#[test]
fn completions_of_every_shell_know_every_command() {
    let folder = files();
    let scripts = folder.path().join("completions");
    let commands = commands();
    let last: BTreeSet<&String> = commands.keys().filter_map(|words| words.last()).collect();
    assert_eq!(names(&scripts).len(), 5);
    for name in names(&scripts) {
        let script = std::fs::read_to_string(scripts.join(&name)).unwrap();
        let missing: Vec<_> = last.iter().filter(|command| !script.contains(command.as_str())).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

#[test]
fn help_lists_every_command_once() {
    let help = String::from_utf8(succeeds(Command::new(program()).arg("--help")).stdout).unwrap();
    let listed = |name: &str| help.lines().filter(|line| line.starts_with(&format!("  {name} "))).count();
    for (words, _) in commands().iter().filter(|(words, _)| words.len() == 2) {
        assert_eq!(listed(&words[1]), 1, "{words:?}\n{help}");
    }
}

#[test]
fn scenarios_of_an_archive_have_all_that_they_read() {
    let folder = files();
    let scenarios = folder.path().join("scenarios");
    let yaml: BTreeSet<String> =
        names(&scenarios).into_iter().filter(|name| name.ends_with(".yaml")).collect();
    assert!(yaml.len() > 10, "{yaml:?}");
    succeeds(Command::new(program()).arg("check").args(yaml).current_dir(&scenarios));
}

#[test]
fn archives_include_what_is_written_for_them() {
    let folder = files();
    let written: BTreeSet<String> =
        names(folder.path()).into_iter().map(|name| format!("dist/{name}/")).collect();
    assert_eq!(list("include"), written);
}

/// A list of texts in dist-workspace.toml.
fn list(key: &str) -> BTreeSet<String> {
    let text = read("dist-workspace.toml");
    let (_, rest) = text.split_once(&format!("\n{key} = [")).unwrap_or_else(|| panic!("{key}"));
    let (items, _) = rest.split_once(']').unwrap();
    let lines = items.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The targets that a job is run for.
fn targets(workflow: &Value, job: &str) -> BTreeSet<String> {
    let rows = workflow["jobs"][job]["strategy"]["matrix"]["include"].as_sequence().unwrap();
    rows.iter().map(|row| row["target"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn workflows_build_all_targets_of_dist_with_its_version() {
    let targets_of_dist = list("targets");
    assert_eq!(targets(&workflow(RELEASE), "archive"), targets_of_dist);
    let mut of_wheels = targets(&workflow(WHEELS), "build");
    assert!(of_wheels.remove("sdist"));
    assert_eq!(of_wheels, targets_of_dist);

    let (settings, release) = (read("dist-workspace.toml"), read(RELEASE));
    let (_, version) = settings.split_once("cargo-dist-version = \"").unwrap();
    let version = version.split('"').next().unwrap();
    let installed = release.split("cargo-dist@").skip(1).filter_map(|rest| rest.lines().next());
    assert!(installed.clone().count() >= 2 && installed.clone().all(|found| found == version), "{version}");
    assert!(read("docs/releasing.md").contains(&format!("cargo-dist@{version}\n")), "{version}");

    let archives =
        release.split("release/greenroom-").skip(1).filter_map(|rest| rest.split(".tar.gz").next());
    let archives: Vec<&str> = archives.collect();
    assert!(!archives.is_empty() && archives.iter().all(|target| targets_of_dist.contains(*target)));
}

#[test]
fn binstall_unpacks_each_archive_as_dist_packs_it() {
    let manifest = read("Cargo.toml");
    let overrides = manifest.split("[package.metadata.binstall.overrides.").skip(1);
    let zipped: BTreeSet<String> =
        overrides.filter_map(|rest| Some(rest.split_once(']')?.0.to_owned())).collect();
    let windows = list("targets").into_iter().filter(|target| target.contains("windows")).collect();
    assert_eq!(zipped, windows);
    assert!(read("dist-workspace.toml").contains("unix-archive = \".tar.gz\""), "binstall's pkg-fmt is tgz");
}

/// Scripts in workflows and in `.ci`, each with where it stands.
fn scripts() -> Vec<(String, String)> {
    let mut scripts = Vec::new();
    for folder in [".github/workflows", "examples/ci", ".ci"] {
        for name in names(&root().join(folder)) {
            let file = format!("{folder}/{name}");
            if name.ends_with(".yml") {
                let jobs = workflow(&file)["jobs"].clone();
                for (name, job) in jobs.as_mapping().unwrap() {
                    let steps = job["steps"].as_sequence().into_iter().flatten();
                    let runs = steps.filter_map(|step| step["run"].as_str());
                    let place = format!("{file}, {}", name.as_str().unwrap());
                    scripts.extend(runs.map(|run| (place.clone(), run.to_owned())));
                }
            } else if folder == ".ci" || name.ends_with(".sh") {
                scripts.push((file.clone(), read(&file)));
            }
        }
    }
    scripts
}

#[test]
fn commands_in_workflows_and_scripts_are_understood() {
    let mut n = 0;
    for (place, script) in scripts() {
        let script = script.replace("\\\n", " ");
        for line in script.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let Some(words) = shlex::split(line) else { continue };
            let Some((program, args)) = words.split_first() else { continue };
            let is_ours =
                program == "$program" || Path::new(program).ends_with("greenroom") && !program.contains('=');
            // A line of a script may end with what the shell does with the output.
            let ends =
                |word: &String| ["|", "||", "&&", ";"].contains(&word.as_str()) || word.starts_with('>');
            let args = args.iter().take_while(|word| !ends(word));
            if is_ours {
                n += 1;
                let parsed =
                    Cli::command().try_get_matches_from([&"greenroom".to_owned()].into_iter().chain(args));
                let shown = parsed.as_ref().err().is_some_and(|error| !error.use_stderr());
                assert!(parsed.is_ok() || shown, "{place}: {line}\n{}", parsed.unwrap_err());
            }
        }
    }
    assert!(n >= 12, "{n}");
}

/// A job that gets more than it needs is one that a dependency's build script may use.
#[test]
fn only_jobs_that_publish_may_write() {
    for file in [RELEASE, WHEELS] {
        let workflow = workflow(file);
        let only_read: Value = serde_yaml::from_str("{ contents: read }").unwrap();
        assert_eq!(workflow["permissions"], only_read, "{file}");
        for (name, job) in workflow["jobs"].as_mapping().unwrap() {
            let writes = |right: &str| job["permissions"][right] == "write";
            let publishes =
                ["release", "image", "homebrew", "npm", "publish"].contains(&name.as_str().unwrap());
            assert!(publishes || !writes("contents") && !writes("packages"), "{file}, {name:?}");
            let text = serde_yaml::to_string(job).unwrap();
            assert!(publishes || !text.contains("secrets."), "{file}, {name:?}");
        }
    }
}
