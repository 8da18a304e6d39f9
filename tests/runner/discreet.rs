//! The terminal while a human plays: only what the human's agent has heard, until the run is over. The
//! program reads the human's input from a file; standard output and error are one stream, as on a terminal.

use crate::play::scenario;
use greenroom::scenario::turn_seed;
use greenroom::transcript::Transcript;
use std::fmt::Write as _;

/// The terminal at each question, questions included, what the human's agent had read by then, and the whole
/// page.
struct Shown {
    questions: Vec<String>,
    read: Vec<String>,
    page: String,
    /// All that was said, by turn.
    said: Vec<(String, String)>,
}

/// Plays a scenario in which `you` is a human; others are strategies, so that it is known what they say.
fn shown(text: &str) -> Shown {
    let scenario = scenario(text);
    let plan = scenario.plan();
    let own = plan.order().filter(|(_, turn)| scenario.agent(turn.speaker).key == "you");
    let typed = own.enumerate().map(|(at, (_, turn))| match &turn.constraint {
        Some(of) => of.choice.options[0].text.clone() + "\n",
        None => format!("<<you {at}>>\n"),
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.yaml"), text).unwrap();
    std::fs::write(folder.path().join("typed"), typed.collect::<String>()).unwrap();
    let page = std::fs::File::create(folder.path().join("page")).unwrap();
    let program = assert_cmd::cargo::cargo_bin("greenroom");
    let status = std::process::Command::new(program)
        .args(["run", "s.yaml", "--out", "run"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env_remove("XDG_CACHE_HOME")
        .stdin(std::fs::File::open(folder.path().join("typed")).unwrap())
        .stdout(page.try_clone().unwrap())
        .stderr(page)
        .status()
        .unwrap();
    let page = std::fs::read_to_string(folder.path().join("page")).unwrap();
    assert!(status.success(), "{page}\n{text}");
    // Warnings quote the file.
    let page = page.find("drawn\n\n").map_or(page.clone(), |at| page[at..].to_string());
    let questions = page.match_indices("\n> ").map(|(at, _)| page[..at].to_string()).collect();
    let turns = Transcript::open(&folder.path().join("run/transcript.jsonl")).unwrap().turns;
    let (mut read, mut so_far) = (Vec::new(), String::new());
    for turn in turns.iter().filter(|turn| turn.record.agent == "you") {
        writeln!(so_far, "{}", turn.record.delta).unwrap();
        read.push(so_far.clone());
        writeln!(so_far, "{}", turn.record.spoken).unwrap();
    }
    let said = turns.into_iter().map(|turn| (turn.record.path, turn.record.spoken)).collect();
    Shown { questions, read, page, said }
}

/// The texts in angle brackets.
fn marks(text: &str) -> Vec<&str> {
    text.match_indices("<<").filter_map(|(at, _)| Some(&text[at..at + text[at..].find(">>")? + 2])).collect()
}

#[test]
fn simultaneous_choices_are_shown_once_the_human_has_chosen() {
    let Shown { questions, page, .. } = shown(
        "agents: {ann: {strategy: {always: take}}, you: {strategy: human}, ben: {strategy: {always: take}}}
phases:
  - { name: game, agents: [ann, ben, you], order: broadcast, rounds: 2, answer: [share, take] }
",
    );
    assert_eq!(questions.len(), 2, "{page}");
    assert!(!questions[0].contains("ann: take") && !questions[0].contains("ben: take"), "{}", questions[0]);
    // Once in the dialogue, once in what the human's agent reads.
    let second = &questions[1];
    assert_eq!(
        (second.matches("ann: take").count(), second.matches("ben: take").count()),
        (2, 2),
        "{second}"
    );
    assert!(!page.contains("not heard by"), "{page}");
}

#[test]
fn what_a_human_never_hears_is_shown_after_the_run() {
    let Shown { questions, page, .. } = shown(
        "agents:
  ann: {strategy: {council: {always: <<council>>}, yard: {list: [<<whisper>>, <<aloud>>]}, vote: {always: stay}, end: {always: <<end>>}}}
  you: {strategy: human}
  ben: {strategy: {council: {always: <<council too>>}, vote: {always: stay}}}
phases:
  - {name: council, label: The secret council, agents: [ann, ben]}
  - name: yard
    agents: [ann, you, ben]
    say: [{ at: round_start, text: 'For Ann alone.', to: ann }, { at: round_start, text: 'For all.' }, { at: round_end, text: 'For you.', to: you }]
    turns: [{agent: ann, to: ben}, {agent: ann}, {agent: you}]
  - { name: vote, agents: [ann, you, ben], rounds: 0, vote: { rule: majority, answer: [stay, leave], secret: true } }
  - {name: end, agents: [you, ann]}
",
    );
    let last = questions.last().unwrap();
    for hidden in
        ["<<council", "The secret council", "For Ann alone.", "<<whisper>>", "ann votes", "ben votes"]
    {
        assert!(!last.contains(hidden), "{hidden}: {last}");
        assert!(page.contains(hidden), "{hidden}: {page}");
    }
    for heard in ["<<aloud>>", "<<you 0>>", "For all.", "For you.", "you votes"] {
        assert!(last.contains(heard), "{heard}: {last}");
    }
    let unveiled = page.find("== not heard by you ==").unwrap();
    assert!(unveiled > page.find("<<end>>").unwrap() && unveiled < page.find("<<council").unwrap(), "{page}");
}

/// A scenario of random phases; `you` is a human.
fn drawn(seed: u64) -> String {
    let mut n = 0;
    let mut below = |most: usize| {
        n += 1;
        (turn_seed(seed, &format!("drawn {n}")) % most as u64) as usize
    };
    let all = ["ann", "you", "ben", "cas"];
    let mut rules = vec![String::new(); 4];
    let mut phases = String::new();
    for at in 0..2 + below(3) {
        let mut cast: Vec<usize> = (0..4).collect();
        cast.rotate_left(below(4));
        cast.truncate(3 + below(2));
        let keys: Vec<&str> = cast.iter().map(|id| all[*id]).collect();
        let is_vote = below(4) == 0;
        let is_open = !is_vote && below(5) == 0;
        let agents = if is_open { "here".to_string() } else { format!("[{}]", keys.join(", ")) };
        writeln!(phases, "  - name: p{at}\n    agents: {agents}").unwrap();
        let form = if is_open { below(2) } else { below(4) };
        match form {
            _ if is_vote => {
                phases += "    rounds: 0\n    vote: { rule: majority, answer: [stay, leave] }\n";
            }
            2 => {
                let pairs: Vec<String> =
                    keys.windows(2).map(|pair| format!("[{}]", pair.join(", "))).collect();
                writeln!(phases, "    pairs: [{}]", pairs.join(", ")).unwrap();
            }
            3 => {
                let (a, b, c) = (keys[0], keys[1], keys[2]);
                let turns = format!(
                    "{{agent: {a}, to: {b}}}, {{agent: {b}}}, {{agent: {c}, to: {a}}}, {{agent: {a}}}"
                );
                writeln!(phases, "    turns: [{turns}]").unwrap();
            }
            order => {
                let order = ["round_robin", "broadcast"][order];
                writeln!(phases, "    order: {order}\n    rounds: {}", 1 + below(2)).unwrap();
                if below(4) == 0 {
                    phases += "    to: nobody\n";
                }
            }
        }
        if !is_vote && !is_open && below(2) == 0 {
            let to = keys[below(keys.len())];
            writeln!(
                phases,
                "    announce: [{{before: '<<to {to} p{at}>>', to: {to}}}, {{after: '<<all p{at}>>'}}]"
            )
            .unwrap();
        }
        for (id, rules) in rules.iter_mut().enumerate() {
            let says = match is_vote {
                true => "{always: stay}".to_string(),
                false => {
                    let lines: Vec<String> =
                        (0..6).map(|line| format!("<<p{at} {} {line}>>", all[id])).collect();
                    format!("{{list: [{}]}}", lines.join(", "))
                }
            };
            if is_open || cast.contains(&id) {
                write!(rules, "p{at}: {says}, ").unwrap();
            }
        }
    }
    let mut text = "id: drawn\nagents:\n".to_string();
    for (key, rules) in all.iter().zip(&rules) {
        let strategy = match *key {
            "you" => "human".to_string(),
            _ if rules.is_empty() => "grim".to_string(),
            _ => format!("{{{rules}}}"),
        };
        writeln!(text, "  {key}: {{strategy: {strategy}}}").unwrap();
    }
    text + "state: {here: [ann, you, ben]}\nphases:\n" + &phases
}

#[test]
fn a_human_sees_only_what_its_agent_has_heard() {
    let mut n_questions = 0;
    for seed in 0..16 {
        let text = drawn(seed);
        let Shown { questions, read, page, said } = shown(&text);
        assert_eq!(questions.len(), read.len(), "{page}\n{text}");
        n_questions += questions.len();
        for (shown, read) in questions.iter().zip(&read) {
            for mark in marks(shown) {
                assert!(read.contains(mark), "{mark}, but it has read\n{read}\nin\n{shown}\n{text}");
            }
            let votes = shown.lines().filter(|line| line.contains(" votes:"));
            votes.for_each(|line| assert!(line.starts_with("you"), "{line}\n{text}"));
        }
        // In the end all is there.
        for (path, spoken) in said.iter().filter(|(_, spoken)| spoken.starts_with("<<")) {
            assert!(page.contains(spoken.as_str()), "{path}: {page}\n{text}");
        }
    }
    assert!(n_questions > 20, "{n_questions}");
}
