//! The documentation is true: the tutorial is followed word by word, every YAML loads and plays, and the
//! generated pages are up to date.
//!
//! In the pages, after three backquotes: `yaml` is a whole scenario; `yaml part` one whose missing agents and
//! phases are added from [`HEAD`]; `yaml file=NAME` also writes a file; `yaml shows=NAME` repeats one;
//! `yaml wrong=CODE` must be found wrong with that code. In `console`, a line `$ greenroom …` is run; the
//! lines below it are its output, in which a line `…` matches any number of lines, `[..]` for any text, and
//! `[exit N]` at the end for the exit code, if it is not 0.

use crate::play::play;
use clap::CommandFactory as _;
use greenroom::backend::{Request, Scripted};
use greenroom::rehearsal::open;
use greenroom::run::RunOptions;
use greenroom::scenario::Strategy;
use greenroom::stage::End;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The agents and phases that complete a part of a scenario.
const HEAD: [(&str, &str); 2] = [
    ("agents:", "agents: { ann: {}, ben: {}, cas: {}, mod: { role: moderator } }\n"),
    (
        "phases:",
        "phases: [{ name: game, agents: [ann, ben, cas], order: broadcast, rounds: 2, answer: [share, take] }]\n",
    ),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// A fenced block of a page.
struct Block<'a> {
    /// Page and line.
    place: String,
    /// The words after the backquotes.
    words: Vec<&'a str>,
    text: String,
}

impl Block<'_> {
    fn is(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The value of `name=value` after the backquotes.
    fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

fn blocks<'a>(name: &str, page: &'a str) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'a>> = Vec::new();
    let mut inside = false;
    for (at, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(words) => {
                let words = words.split_whitespace().collect();
                blocks.push(Block { place: format!("{name}:{}", at + 1), words, text: String::new() });
                inside = true;
            }
            None if inside => blocks.last_mut().unwrap().text += &format!("{line}\n"),
            None => {}
        }
    }
    assert!(!inside, "{name}: a block has no end");
    blocks
}

/// The words of a command line; quotes keep a word together.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            _ => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// True if a line is as expected: `[..]` matches any text.
fn line_fits(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("[..]");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// True if lines are as expected: a line `…` matches any number of them.
fn fits(expected: &[&str], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((&"…", rest)) => (0..=lines.len()).any(|at| fits(rest, &lines[at..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, lines)| line_fits(first, line) && fits(rest, lines))
        }
    }
}

/// Exit code and lines of a command in `folder`, as on a machine on which greenroom never ran.
fn greenroom(folder: &Path, args: &[String]) -> (i32, String) {
    let home = folder.join(".home");
    let output = assert_cmd::Command::cargo_bin("greenroom")
        .unwrap()
        .current_dir(folder)
        .args(args)
        .env_clear()
        .env("HOME", &home)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    (output.status.code().unwrap_or(-1), lines.join("\n"))
}

/// Does what a page says, block by block.
fn follow(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "scenarios/prisoners-dilemma.yaml";
    std::fs::create_dir(folder.path().join("scenarios")).unwrap();
    std::fs::copy(root().join(scenario), folder.path().join(scenario)).unwrap();
    let text = page(name);
    let mut n_run = 0;
    for block in blocks(name, &text) {
        if let Some(file) = block.word("file") {
            std::fs::write(folder.path().join(file), &block.text).unwrap();
        }
        if let Some(file) = block.word("shows") {
            let there = std::fs::read_to_string(folder.path().join(file)).unwrap();
            assert_eq!(there, block.text, "{}: {file}", block.place);
        }
        if !block.is("console") {
            continue;
        }
        let commands = block.text.trim_end().split("$ greenroom").skip(1);
        for command in commands {
            let (command, expected) = command.split_once('\n').unwrap_or((command, ""));
            let mut expected: Vec<&str> = expected.trim_matches('\n').lines().map(str::trim_end).collect();
            let code = expected.last().and_then(|last| last.strip_prefix("[exit ")?.strip_suffix(']'));
            let code: i32 = code.map_or(0, |code| code.parse().unwrap());
            if code != 0 {
                expected.pop();
            }
            let (found_code, found) = greenroom(folder.path(), &split(command));
            let lines: Vec<&str> = found.trim_matches('\n').lines().collect();
            assert!(
                code == found_code && fits(&expected, &lines),
                "{}: `greenroom{command}` does not say what the page says; exit code {found_code}, expected \
                 {code}:\n{found}",
                block.place
            );
            n_run += 1;
        }
    }
    assert!(n_run > 0, "{name}");
}

#[test]
fn the_readme_shows_the_run_that_it_names() {
    follow("../README.md");
}

#[test]
fn the_tutorial_is_true_word_by_word() {
    follow("tutorial.md");
    follow("patterns.md");
    follow("ci.md");
    follow("experiments.md");
}

#[test]
fn common_complaints_are_answered_as_the_page_shows() {
    follow("why.md");
}

/// Anchors of a page, as GitHub makes them of its headings.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| {
        heading.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect::<String>()
    };
    headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "bench/peers.md",
        "fuzz/README.md",
        "models/understudy/README.md",
    ];
    let mut n_links = 0;
    for file in pages.chain(others.map(|name| root().join(name))) {
        let text = std::fs::read_to_string(&file).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in targets.filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file.clone() } else { file.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link}", file.display());
            if !anchor.is_empty() {
                let headings = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(headings.iter().any(|heading| heading == anchor), "{}: {link}", file.display());
            }
            n_links += 1;
        }
    }
    assert!(n_links > 30, "{n_links}");
}

/// Plays a scenario with the first of all options and words that do not matter. A human is not waited for.
fn plays(place: &str, file: &Path) {
    let loaded = open(file, &[]).unwrap();
    assert!(loaded.report.diagnostics.is_empty(), "{place}: {}", loaded.report.render(false));
    let scenario = loaded.scenario.unwrap();
    if scenario.agents.iter().any(|agent| matches!(agent.strategy, Some(Strategy::Human))) {
        return;
    }
    let script = |request: &Request| {
        let first = |options: &greenroom::prompt::OpenOptions| {
            let id = options.open.iter().min()?;
            Some(options.choice.options[*id].text.clone())
        };
        request.choice.as_ref().and_then(first).or_else(|| Some(format!("words at {}", request.path)))
    };
    let folder = tempfile::tempdir().unwrap();
    let backend = Arc::new(Scripted::new(script));
    let options = RunOptions { allow_tools: true, ..RunOptions::default() };
    let played = play(&scenario, backend, folder.path(), &options).unwrap();
    assert!(matches!(played.end, End::Complete(_)), "{place}");
}

#[test]
fn every_yaml_of_the_pages_loads_and_plays() {
    for name in [
        "../README.md",
        "tutorial.md",
        "reference.md",
        "patterns.md",
        "ci.md",
        "experiments.md",
        "engines.md",
        "why.md",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let text = page(name);
        let mut n_played = 0;
        for block in blocks(name, &text) {
            if block.words.first() != Some(&"yaml") {
                // A file that a scenario names.
                let other =
                    block.word("file").map(|file| std::fs::write(folder.path().join(file), &block.text));
                other.transpose().unwrap();
                continue;
            }
            let file = folder.path().join(block.word("file").or(block.word("shows")).unwrap_or("block.yaml"));
            let mut yaml = block.text.clone();
            for (field, head) in HEAD.iter().filter(|_| block.is("part")) {
                if !yaml.lines().any(|line| line.starts_with(field)) {
                    yaml += head;
                }
            }
            std::fs::write(&file, &yaml).unwrap();
            if let Some(code) = block.word("wrong") {
                let report = open(&file, &[]).unwrap().report;
                let codes: Vec<&str> = report.diagnostics.iter().map(|found| found.code).collect();
                let all = !codes.is_empty() && codes.iter().all(|found| code == "any" || *found == code);
                assert!(all, "{}: {codes:?}", block.place);
            } else if !block.is("cast") {
                valid(&block.place, &yaml);
                plays(&block.place, &file);
                n_played += 1;
            }
        }
        assert!(n_played > 0, "{name}");
    }
}

/// Fails where the schema that editors use refuses a text.
fn valid(place: &str, yaml: &str) {
    let schema = serde_json::to_value(greenroom::scenario::schema::json_schema()).unwrap();
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("schema.json", schema).unwrap();
    let schema = compiler.compile("schema.json", &mut schemas).unwrap();
    let mut value: serde_yaml::Value = serde_yaml::from_str(yaml).unwrap();
    value.apply_merge().unwrap();
    // Keys such as `true` or `5` are texts to a schema.
    let value: Value = texts_as_keys(value);
    if let Err(error) = schemas.validate(&value, schema) {
        panic!("{place}: {error:#}");
    }
}

fn texts_as_keys(value: serde_yaml::Value) -> Value {
    match value {
        serde_yaml::Value::Mapping(fields) => {
            let key = |key: serde_yaml::Value| match key {
                serde_yaml::Value::String(key) => key,
                other => serde_json::to_value(other).unwrap().to_string(),
            };
            fields.into_iter().map(|(name, value)| (key(name), texts_as_keys(value))).collect()
        }
        serde_yaml::Value::Sequence(items) => items.into_iter().map(texts_as_keys).collect(),
        other => serde_json::to_value(other).unwrap(),
    }
}

#[test]
fn the_schema_takes_what_is_shipped() {
    let mut n = 0;
    for folder in ["scenarios", "templates/scenarios", "tests/scenarios"] {
        for file in std::fs::read_dir(root().join(folder)).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|kind| kind == "yaml") && !file.ends_with("cast.yaml") {
                valid(&file.display().to_string(), &std::fs::read_to_string(&file).unwrap());
                n += 1;
            }
        }
    }
    assert!(n > 20, "{n}");
}

#[test]
fn the_schema_offers_the_words_that_are_understood() {
    let schema = serde_json::to_value(greenroom::scenario::schema::json_schema()).unwrap();
    let types = [
        ("WhoSpeaks", "phases: [{ name: game, agents: [ann, ben], order: WORD }]\n"),
        ("DebateFormat", "phases: [{name: game, agents: [ann, ben], debate_format: WORD}]\n"),
        ("VoteRule", "phases: [{ name: game, agents: [ann, ben], vote: { rule: WORD } }]\n"),
        ("Moment", "phases: [{ name: game, agents: [ann, ben], say: [{ at: WORD, text: Hush. }] }]\n"),
        ("Lifecycle", "agents: {ann: {lifecycle: WORD}}\n"),
        ("Keep", "agents: {ann: {memory: {keep: WORD}}}\n"),
        ("Strategy", "agents: {ann: {strategy: WORD}}\n"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.yaml");
    for (name, yaml) in types {
        let words = schema["$defs"][name]["oneOf"].as_array().unwrap_or_else(|| panic!("{name}"));
        let words: Vec<&str> = words.iter().filter_map(|word| word["const"].as_str()).collect();
        for word in words.iter().chain(&["qqqqqqqq"]) {
            std::fs::write(&file, yaml.replace("WORD", word)).unwrap();
            let report = open(&file, &[]).unwrap().report;
            let refused = report.diagnostics.iter().any(|found| found.code == "unknown-value");
            assert_eq!(refused, *word == "qqqqqqqq", "{name}: {word}");
            let help =
                report.diagnostics.iter().filter_map(|found| found.help.as_deref()).collect::<String>();
            let missing: Vec<_> = words.iter().filter(|known| refused && !help.contains(**known)).collect();
            assert!(missing.is_empty(), "{name}: {help}");
        }
    }
}

fn up_to_date(file: &str, args: &[&str]) {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
    let folder = tempfile::tempdir().unwrap();
    let (code, made) = greenroom(folder.path(), &args);
    assert_eq!(code, 0);
    let there = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    let renew = format!("cargo run -- {} > {file}", args.join(" "));
    assert!(there.trim_end() == made.trim_end(), "{file} is out of date; renew it with: {renew}");
}

#[test]
fn the_made_pages_are_up_to_date() {
    up_to_date("docs/reference.md", &["schema", "--format", "markdown"]);
    up_to_date("scenarios/schema.json", &["schema"]);
}

#[test]
fn every_template_is_sound_and_plays() {
    let folder = tempfile::tempdir().unwrap();
    for template in ["blank", "dilemma", "gossip", "debate", "experts"] {
        let args = |line: &str| split(&line.replace("NAME", &format!("my-{template}")));
        let (code, text) = greenroom(folder.path(), &args(&format!("new NAME --template {template}")));
        assert!(code == 0 && text.contains("greenroom run"), "{text}");
        let (code, text) = greenroom(folder.path(), &args("check NAME.yaml"));
        assert!(code == 0 && text.contains(": OK,") && !text.contains("warning"), "{text}");
        plays(template, &folder.path().join(format!("my-{template}.yaml")));
        let (code, text) = greenroom(folder.path(), &args(&format!("new NAME --template {template}")));
        assert!(code == 4 && text.contains("already exists"), "{text}");
    }
    let made = std::fs::read_to_string(folder.path().join("schema.json")).unwrap();
    assert!(made == std::fs::read_to_string(root().join("scenarios/schema.json")).unwrap(), "another schema");
    let (code, text) = greenroom(folder.path(), &split("new 2026"));
    assert_eq!(code, 0, "{text}");
    plays("a number as a name", &folder.path().join("2026.yaml"));
    std::fs::create_dir(folder.path().join("theirs")).unwrap();
    std::fs::write(folder.path().join("theirs/schema.json"), "{}").unwrap();
    let (code, text) = greenroom(folder.path(), &split("new theirs/harbour"));
    assert!(code == 0 && text.contains("is not Greenroom's"), "{text}");
    assert_eq!(std::fs::read_to_string(folder.path().join("theirs/schema.json")).unwrap(), "{}");
    let (code, text) = greenroom(folder.path(), &split("new 'a b'"));
    assert!(code == 2 && text.contains("is not a valid scenario name"), "{text}");
}

#[test]
fn every_code_of_a_diagnostic_has_its_row_in_troubleshooting() {
    let page = page("troubleshooting.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let explained: Vec<&str> = rows.flat_map(|codes| codes.split(['`', ',', ' '])).collect();
    let mut codes = std::collections::BTreeSet::new();
    let texts = |folder| {
        let files = walkdir::WalkDir::new(root().join(folder)).into_iter().map(Result::unwrap);
        let files = files.filter(|file| file.file_type().is_file());
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok())
    };
    for text in texts("tests/runner/snapshots") {
        let found = text.split("error[").chain(text.split("warning[")).skip(1);
        codes.extend(found.filter_map(|rest| Some(rest.split_once("]:")?.0.to_owned())));
    }
    for text in ["yaml", "scenario", "play", "runner"].into_iter().flat_map(texts) {
        let made = ["Diagnostic::error(\"", "Diagnostic::warning(\""].map(|made| text.split(made).skip(1));
        codes.extend(made.into_iter().flatten().filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    codes.retain(|code| code.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    assert!(codes.len() > 30, "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|code| !explained.contains(&code.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn messages_that_troubleshooting_quotes_are_those_of_the_program() {
    let page = page("troubleshooting.md");
    let symptoms = page.lines().filter_map(|line| line.strip_prefix("**")?.split("**").next());
    let quoted = symptoms.flat_map(|symptom| symptom.split('`').skip(1).step_by(2));
    let mut messages: Vec<&str> = quoted.filter(|quoted| quoted.split(' ').count() > 2).collect();
    assert!(messages.len() > 5, "{messages:?}");
    for folder in ["runner", "engine"] {
        for file in walkdir::WalkDir::new(root().join(folder)).into_iter().map(Result::unwrap) {
            if file.path().extension().is_some_and(|kind| kind == "rs") {
                let code = std::fs::read_to_string(file.path()).unwrap();
                messages.retain(|message| !code.contains(message));
            }
        }
    }
    assert!(messages.is_empty(), "nothing says {messages:?}");
}

#[test]
fn every_page_is_in_the_site() {
    let summary = std::fs::read_to_string(root().join("site/SUMMARY.md")).unwrap();
    for file in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(!name.ends_with(".md") || summary.contains(&format!("(docs/{name})")), "{name}");
    }
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.for_each(|link| assert!(root().join(link).is_file(), "{link}"));
}

/// The pages that a user reads, by name and text: `README.md` and those in `docs`.
fn pages() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap())
    };
    entries
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .chain([root().join("README.md")])
        .map(of)
        .collect()
}

/// Commands of a shell script that run this program, without their comments.
fn commands_of(script: &str) -> impl Iterator<Item = Vec<String>> {
    let lines = script.lines().map(|line| line.split(" #").next().unwrap_or_default());
    lines.map(split).filter(|words| words.first().is_some_and(|word| word == "greenroom"))
}

/// Blocks of commands that need a network, another machine or hours: their flags and words are read as the
/// program reads them.
#[test]
fn commands_that_are_not_run_are_understood() {
    let mut n = 0;
    for (name, text) in pages() {
        for block in blocks(&name, &text).into_iter().filter(|block| block.is("sh")) {
            for words in commands_of(&block.text) {
                n += 1;
                if !cfg!(feature = "objects") && words.iter().any(|word| word.contains("s3://")) {
                    continue; // this build has no object stores
                }
                let parsed = greenroom::commands::Cli::command().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{}: {}\n{}", block.place, words.join(" "), parsed.unwrap_err());
            }
        }
    }
    assert!(n > 20, "{n}");
}

/// Commands within sentences: their first words are commands, their flags flags of these.
#[test]
fn commands_within_sentences_exist() {
    let mut n = 0;
    for (name, text) in pages() {
        let quoted = text.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains('\n'));
        for quoted in quoted.filter(|quoted| quoted.starts_with("greenroom ")) {
            let words = split(quoted);
            let program = greenroom::commands::Cli::command();
            let mut path = vec![&program];
            for word in &words[1..] {
                let at = path[path.len() - 1];
                if let Some(flag) = word.strip_prefix("--") {
                    let flag = flag.split('=').next().unwrap_or_default();
                    let mut known = path.iter().flat_map(|command| command.get_arguments());
                    let is_known = known.any(|known| known.get_long() == Some(flag));
                    assert!(
                        is_known || ["help", "version"].contains(&flag),
                        "{name}: `{quoted}` has no --{flag}"
                    );
                } else if at.has_subcommands() && word.starts_with(|c: char| c.is_ascii_lowercase()) {
                    let one_of: Vec<&clap::Command> = word
                        .split('|')
                        .map(|word| {
                            let found = at.find_subcommand(word);
                            found.unwrap_or_else(|| panic!("{name}: `{quoted}` names no command `{word}`"))
                        })
                        .collect();
                    path.extend(one_of.last());
                    n += 1;
                }
            }
        }
    }
    assert!(n > 50, "{n}");
}
