//! Strategies in repeated games: what they play is compared with a second, naive implementation, which goes
//! through the game move by move and keeps what everybody has seen in plain lists. And what `check` says of
//! scripts.

use crate::play::{play, scenario};
use greenroom::backend::Scripted;
use greenroom::rehearsal::load;
use greenroom::run::RunOptions;
use greenroom::scenario::turn_seed;
use greenroom::transcript::Transcript;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// Numbers from a seed, one after the other.
struct Draw(u64, u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        (turn_seed(self.0, &self.1.to_string()) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug)]
enum Rule {
    TitForTat,
    Grim,
    Always(&'static str),
    List(Vec<&'static str>),
    Random,
}

/// The options of each kind of game; the first two have the same, in another order.
const KINDS: [&[&str]; 3] = [&["share", "take"], &["take", "share"], &["share", "take", "wait"]];

#[derive(Clone, Debug)]
struct Game {
    name: String,
    /// Agents, in speaking order.
    agents: Vec<usize>,
    is_broadcast: bool,
    rounds: usize,
    /// The kind of choice; none: talk.
    kind: Option<usize>,
    fresh: bool,
    /// False: it is never played.
    opens: bool,
}

#[derive(Clone, Debug)]
enum Part {
    Game(Game),
    Block(usize, Vec<Part>),
}

fn parts(draw: &mut Draw, n_agents: usize, depth: usize, n_named: &mut usize) -> Vec<Part> {
    let n_parts = 1 + draw.below(3);
    let mut all = Vec::new();
    for _ in 0..n_parts {
        if depth < 2 && draw.one_in(3) {
            let passes = 1 + draw.below(3);
            all.push(Part::Block(passes, parts(draw, n_agents, depth + 1, n_named)));
            continue;
        }
        let mut agents: Vec<usize> = (0..n_agents).collect();
        for at in (1..n_agents).rev() {
            let with = draw.below(at + 1);
            agents.swap(at, with);
        }
        agents.truncate(2 + draw.below(n_agents - 1));
        *n_named += 1;
        all.push(Part::Game(Game {
            name: format!("g{n_named}"),
            agents,
            is_broadcast: draw.one_in(2),
            rounds: 1 + draw.below(3),
            kind: (!draw.one_in(4)).then(|| if draw.one_in(2) { 0 } else { draw.below(3) }),
            fresh: draw.one_in(6),
            opens: !draw.one_in(8),
        }));
    }
    all
}

/// The strategy of an agent: one, or one by phase.
#[derive(Clone, Debug)]
enum Player {
    Whole(Rule),
    ByPhase(BTreeMap<String, Rule>),
}

fn rule(draw: &mut Draw) -> Rule {
    let word = |draw: &mut Draw| ["share", "take"][draw.below(2)];
    match draw.below(6) {
        0 | 1 => Rule::TitForTat,
        2 => Rule::Grim,
        3 => Rule::Always(word(draw)),
        4 => Rule::List((0..1 + draw.below(4)).map(|_| word(draw)).collect()),
        _ => Rule::Random,
    }
}

fn in_yaml(rule: &Rule) -> String {
    match rule {
        Rule::TitForTat => "tit_for_tat".into(),
        Rule::Grim => "grim".into(),
        Rule::Always(word) => format!("{{always: {word}}}"),
        Rule::List(words) => format!("{{list: [{}]}}", words.join(", ")),
        Rule::Random => "{random: 0.5}".into(),
    }
}

fn write_parts(out: &mut String, parts: &[Part], indent: usize) {
    let pad = " ".repeat(indent);
    for part in parts {
        match part {
            Part::Block(passes, parts) => {
                writeln!(out, "{pad}- repeat: {passes}\n{pad}  phases:").unwrap();
                write_parts(out, parts, indent + 4);
            }
            Part::Game(game) => {
                let agents: Vec<String> = game.agents.iter().map(|id| format!("a{id}")).collect();
                let order = if game.is_broadcast { "broadcast" } else { "round_robin" };
                let (name, rounds, fresh) = (&game.name, game.rounds, game.fresh);
                write!(out, "{pad}- {{name: {name}, agents: [{}], order: {order}", agents.join(", "))
                    .unwrap();
                write!(out, ", rounds: {rounds}, fresh: {fresh}, when: {}", game.opens).unwrap();
                if let Some(kind) = game.kind {
                    write!(out, ", answer: [{}]", KINDS[kind].join(", ")).unwrap();
                }
                out.push_str("}\n");
            }
        }
    }
}

/// What an agent has seen: the phase instance, and what was chosen there by another (kind and option), or its
/// own reply (none).
type Seen = (usize, Option<(usize, &'static str)>, String);

struct Naive<'a> {
    players: &'a [Player],
    ephemeral: &'a [bool],
    /// The moves of the run, which random players are believed.
    moves: &'a BTreeMap<String, String>,
    seen: Vec<Vec<Seen>>,
    n_instances: usize,
    expected: BTreeMap<String, String>,
}

impl Naive<'_> {
    fn go(&mut self, parts: &[Part], passes: &[usize]) {
        for part in parts {
            match part {
                Part::Block(n, parts) => {
                    (1..=*n).for_each(|pass| self.go(parts, &[passes, &[pass]].concat()));
                }
                Part::Game(game) => self.game(game, passes),
            }
        }
    }

    fn game(&mut self, game: &Game, passes: &[usize]) {
        self.n_instances += 1;
        if !game.opens {
            return;
        }
        for agent in &game.agents {
            // Who starts over has seen nothing; nor has who forgets after each phase.
            if game.fresh || self.ephemeral[*agent] {
                self.seen[*agent].clear();
            }
        }
        let numbers: String = passes.iter().map(|pass| format!(".{pass}")).collect();
        for round in 1..=game.rounds {
            let mut said: Vec<(usize, String)> = Vec::new();
            for agent in &game.agents {
                let path = format!("{}{numbers}/{round}/a{agent}", game.name);
                let reply = self.reply(*agent, game, &path);
                self.expected.insert(path, reply.clone());
                self.seen[*agent].push((self.n_instances, None, game.name.clone()));
                if game.is_broadcast {
                    said.push((*agent, reply));
                } else {
                    self.hear(game, *agent, &reply);
                }
            }
            said.into_iter().for_each(|(agent, reply)| self.hear(game, agent, &reply));
        }
    }

    fn hear(&mut self, game: &Game, speaker: usize, reply: &str) {
        let Some(kind) = game.kind else { return };
        let option = KINDS[kind].iter().find(|option| **option == reply).unwrap();
        for listener in game.agents.iter().filter(|listener| **listener != speaker) {
            self.seen[*listener].push((self.n_instances, Some((kind, option)), game.name.clone()));
        }
    }

    fn reply(&self, agent: usize, game: &Game, path: &str) -> String {
        let seen = &self.seen[agent];
        let (rule, n_own) = match &self.players[agent] {
            Player::Whole(rule) => (rule, seen.iter().filter(|(_, other, _)| other.is_none()).count()),
            Player::ByPhase(rules) => {
                let own = seen.iter().filter(|(_, other, name)| other.is_none() && *name == game.name);
                (&rules[&game.name], own.count())
            }
        };
        let Some(kind) = game.kind else {
            return match rule {
                Rule::Always(word) => (*word).to_string(),
                Rule::List(words) => words[n_own % words.len()].to_string(),
                _ => String::new(),
            };
        };
        let alike = |a: usize, b: usize| a == b || a < 2 && b < 2;
        let others: Vec<&str> = seen
            .iter()
            .filter_map(|(_, other, _)| *other)
            .filter(|(of, _)| alike(*of, kind))
            .map(|(_, option)| option)
            .collect();
        let options = KINDS[kind];
        match rule {
            Rule::TitForTat => others.last().copied().unwrap_or(options[0]).to_string(),
            Rule::Grim if others.iter().all(|other| *other == options[0]) => options[0].to_string(),
            Rule::Grim => options[options.len() - 1].to_string(),
            Rule::Always(word) => (*word).to_string(),
            Rule::List(words) => words[n_own % words.len()].to_string(),
            Rule::Random => self.moves[path].clone(),
        }
    }
}

fn all_games<'a>(parts: &'a [Part], games: &mut Vec<&'a Game>) {
    for part in parts {
        match part {
            Part::Game(game) => games.push(game),
            Part::Block(_, parts) => all_games(parts, games),
        }
    }
}

#[test]
fn strategies_play_as_a_naive_implementation_plays() {
    for seed in 0..500 {
        let mut draw = Draw(seed, 0);
        let n_agents = 2 + draw.below(3);
        let mut n_named = 0;
        let parts = parts(&mut draw, n_agents, 0, &mut n_named);
        let mut games = Vec::new();
        all_games(&parts, &mut games);
        let ephemeral: Vec<bool> = (0..n_agents).map(|_| draw.one_in(8)).collect();
        let players: Vec<Player> = (0..n_agents)
            .map(|agent| {
                let own: Vec<&&Game> = games.iter().filter(|game| game.agents.contains(&agent)).collect();
                if own.is_empty() || !draw.one_in(4) {
                    return Player::Whole(rule(&mut draw));
                }
                let rules = own.into_iter().map(|game| (game.name.clone(), rule(&mut draw)));
                Player::ByPhase(rules.collect())
            })
            .collect();
        let mut text = "id: games\nagents:\n".to_string();
        for (id, player) in players.iter().enumerate() {
            let strategy = match player {
                Player::Whole(rule) => in_yaml(rule),
                Player::ByPhase(rules) => {
                    let rules = rules.iter().map(|(game, rule)| format!("{game}: {}", in_yaml(rule)));
                    format!("{{{}}}", rules.collect::<Vec<_>>().join(", "))
                }
            };
            let lifecycle = if ephemeral[id] { "ephemeral" } else { "permanent" };
            writeln!(text, "  a{id}: {{strategy: {strategy}, lifecycle: {lifecycle}}}").unwrap();
        }
        text += "phases:\n";
        write_parts(&mut text, &parts, 2);
        let moves = moves(&text, seed);
        let mut naive = Naive {
            players: &players,
            ephemeral: &ephemeral,
            moves: &moves,
            seen: vec![Vec::new(); n_agents],
            n_instances: 0,
            expected: BTreeMap::new(),
        };
        naive.go(&parts, &[]);
        assert_eq!(moves, naive.expected, "seed {seed}:\n{text}");
    }
}

/// The replies of a run without a model, by turn.
fn moves(text: &str, seed: u64) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let nobody = Arc::new(Scripted::new(|_| None));
    let options = RunOptions { seed, ..RunOptions::default() };
    let played = play(&scenario(text), nobody, folder.path(), &options).unwrap();
    let text = std::fs::read_to_string(&played.transcript).unwrap();
    let transcript = Transcript::parse(&played.transcript, &text).unwrap();
    transcript.turns.into_iter().map(|turn| (turn.record.path, turn.record.spoken)).collect()
}

fn in_order(text: &str, paths: &[&str]) -> Vec<String> {
    let moves = moves(text, 0);
    paths.iter().map(|path| moves[*path].clone()).collect()
}

#[test]
fn tit_for_tat_answers_what_it_saw_in_the_pass_before() {
    let text = "
agents: {opp: {strategy: {list: [Hm., take, Hm., share, Hm., share, Hm., share]}}, rule: {strategy: RULE}}
phases:
  - repeat: 4
    phases:
      - {name: talk, agents: [opp, rule]}
      - { name: game, agents: [opp, rule], order: broadcast, answer: [share, take] }
";
    let paths = [1, 2, 3, 4].map(|pass| format!("game.{pass}/1/rule"));
    let paths = paths.each_ref().map(String::as_str);
    let played = |rule: &str| in_order(&text.replace("RULE", rule), &paths);
    assert_eq!(played("tit_for_tat"), ["share", "take", "share", "share"]);
    assert_eq!(played("grim"), ["share", "take", "take", "take"]);
}

#[test]
fn a_list_says_its_items_in_order_over_phases_talk_and_choices_alike() {
    let text = "
agents: {bot: {strategy: {list: [Good morning., take, leave]}}}
phases:
  - {name: talk, agents: [bot]}
  - { name: game, agents: [bot], answer: [share, take] }
  - { name: vote, agents: [bot], answer: [stay, leave] }
";
    let paths = ["talk/1/bot", "game/1/bot", "vote/1/bot"];
    assert_eq!(in_order(text, &paths), ["Good morning.", "take", "leave"]);
}

#[test]
fn a_script_replies_by_the_paths_of_turns_and_strategies_differ_by_phase() {
    let text = "
agents:
  ann: {strategy: {script: {talk/1/ann: Hello., game.1/1/ann: take, game.2/1/ann: share, vote/1/ann: stay}}}
  bot: {strategy: {talk: {always: Hm.}, game: tit_for_tat, vote: {always: leave}}}
phases:
  - {name: talk, agents: [ann, bot]}
  - repeat: 2
    phases:
      - { name: game, agents: [ann, bot], order: broadcast, answer: [share, take] }
  - { name: vote, agents: [ann, bot], answer: [stay, leave] }
";
    let paths = [
        "talk/1/ann",
        "game.1/1/ann",
        "game.2/1/ann",
        "vote/1/ann",
        "talk/1/bot",
        "game.2/1/bot",
        "vote/1/bot",
    ];
    assert_eq!(in_order(text, &paths), ["Hello.", "take", "share", "stay", "Hm.", "take", "leave"]);
}

#[test]
fn what_a_script_can_not_say_is_found() {
    let phases = "phases:
  - {name: talk, agents: [ann, bot]}
  - { name: game, agents: [ann, bot], rounds: 2, answer: [share, take] }
  - { name: vote, agents: [ann, bot], answer: [stay, leave] }
";
    let cases: &[(&str, &[&str])] = &[
        // Another order than that of the phases.
        ("{list: [share, Hello., share, stay]}", &["`Hello.` is not an option at game/1/bot"]),
        ("{list: [Hello., share, share]}", &["`Hello.` is not an option at vote/1/bot"]),
        ("{game: tit_for_tat, vote: grim}", &["`bot` has a turn in `talk`, but no strategy for it"]),
        (
            "{talk: grim, game: grim, vots: grim, vote: grim}",
            &["there is no phase `vots`", "did you mean `vote`?"],
        ),
        ("{talk: grim, game: grim, always: stay}", &["`always` is a kind of strategy"]),
        ("{talk: grim, game: {vote: grim}, vote: grim}", &["a phase can't have strategies by phase"]),
        (
            "{script: {talk/1/bot: Hi., game/1/bot: share, vote/1/bot: go}}",
            &["the script has no reply for `game/2/bot`", "`go` is not an option at vote/1/bot"],
        ),
        (
            "{script: \
             {talk/1/bot: Hi., game/1/bot: share, game/2/bot: share, vote/1/bot: stay, vote/2/bot: stay}}",
            &["there is no turn `vote/2/bot`", "did you mean `vote/1/bot`?"],
        ),
        (
            "{talk: grim, game: grim, vote: {script: {vote/1/bot: leave, game/1/bot: share}}}",
            &["`game/1/bot` is not a turn that this script of `bot` plays"],
        ),
    ];
    for (strategy, expected) in cases {
        let text = format!("agents: {{ann: {{}}, bot: {{strategy: {strategy}}}}}\n{phases}");
        let report = load("bot.yaml", &text, &[]).report;
        let shown = report.render(false);
        assert!(report.n_errors() > 0, "{strategy}");
        expected.iter().for_each(|part| assert!(shown.contains(part), "{strategy}: no `{part}` in\n{shown}"));
    }
}

#[test]
fn an_option_that_is_not_open_is_an_error_that_names_the_turn_and_the_options() {
    let text = |strategy: &str| {
        format!(
            "agents: {{ann: {{}}, bot: {{strategy: {strategy}}}}}
state: {{left: [stay, leave, wait]}}
phases:
  - name: vote
    agents: [ann, bot]
    rounds: 2
    answer: {{ one_of: [stay, leave, wait], open: left }}
    set: {{ after: round, left: \"['stay', 'wait']\" }}
"
        )
    };
    let report = load("vote.yaml", &text("{always: leave}"), &[]).report.render(false);
    let expected =
        "at vote/2/bot, the strategy answers `leave`, which is not open at this turn; open: `stay`, `wait`";
    assert!(report.contains("error[not-open]") && report.contains(expected), "{report}");
    let report = load("vote.yaml", &text("{list: [leave, stay]}"), &[]).report.render(false);
    assert_eq!(report, "");
    // What depends on the others is an error of the turn.
    let text = "agents: {ann: {}, bot: {strategy: {always: leave}}}
phases:
  - { name: first, agents: [ann], answer: [stay, leave] }
  - name: vote
    agents: [bot]
    answer: { one_of: [stay, leave, wait], open: \"['stay', 'leave'] if first.choices.ann == 'leave' else ['stay', 'wait']\" }
";
    let loaded = load("vote.yaml", text, &[]);
    let report = loaded.report.render(false);
    assert!(
        report.contains("warning[not-open]") && report.contains("depending on what others choose"),
        "{report}"
    );
    let folder = tempfile::tempdir().unwrap();
    let stays = Arc::new(Scripted::new(|_| Some("stay".into())));
    let error = play(&loaded.scenario.unwrap(), stays, folder.path(), &RunOptions::default()).unwrap_err();
    let expected =
        "vote/1/bot: the strategy answers `leave`, which is not open at this turn; open: `stay`, `wait`";
    assert!(format!("{error:#}").contains(expected), "{error:#}");
}
