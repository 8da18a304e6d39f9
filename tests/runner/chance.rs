//! Chance: what is drawn is a function of the seed and the place, so a replay draws the same, and a fork what
//! was drawn before it.

use crate::play::{play, scenario};
use greenroom::backend::{Backend, Scripted};
use greenroom::replay::{brought_along, replay};
use greenroom::run::{ForkFrom, RunOptions};
use greenroom::scenario::load;
use greenroom::transcript::Transcript;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

const TEXT: &str = "
id: drawn
variables: {players: [a, b, c, d]}
agents: {a: {}, b: {}, c: {}, d: {}}
let:
  roles: \"['wolf', 'seer', 'villager', 'villager'] | deal(players)\"
  cards: range(8) | list | deal(players, 2)
state: {order: [], die: 0, weather: '', share: 0, out: a, luck: '{{ randint(1, 1000000) }}'}
phases:
  - name: night
    agents: [a, b, c, d]
    order: broadcast
    rounds: 2
    prompt: 'You are the {{ roles[me] }}, with {{ cards[me] }}. The number is {{ randint(1, 1000000) }}.'
    say:
      - { at: round_start, text: 'Round {{ round }}: {{ randint(1, 1000000) }}, again {{ randint(1, 1000000) }}.' }
    set:
      after: round
      order: players | shuffle
      die: randint(1, 6)
      weather: \"{'rain': 3, 'sun': 1, 'snow': 0} | weighted\"
      share: random()
  - name: pairs
    agents: players | sample(2)
    prompt: 'Two of you meet. {{ order }}, {{ die }}, {{ weather }}, {{ share }}.'
  - { name: late, agents: [a, b, c, d], order: broadcast, when: 'randint(1, 2) == 1', prompt: '{{ roles }}' }
  - { name: ball, agents: players, pairs: players | shuffle | batch(2), rounds: 2 }
  - { name: queue, agents: players, order: random, rounds: 2 }
  - { name: end, agents: [a], prompt: 'All were {{ roles }}, with a luck of {{ luck }}.' }
";

/// What everybody reads, by the path of the turn.
type Read = BTreeMap<String, String>;

fn reader() -> (Arc<dyn Backend>, Arc<Mutex<Read>>) {
    let read: Arc<Mutex<Read>> = Arc::default();
    let to = read.clone();
    let backend = Scripted::new(move |request| {
        to.lock().unwrap().insert(request.path.clone(), request.conversation.next.clone());
        Some("Yes.".to_string())
    });
    (Arc::new(backend), read)
}

fn played(folder: &Path, options: &RunOptions) -> Read {
    let (backend, read) = reader();
    play(&scenario(TEXT), backend, folder, options).unwrap();
    let transcript = Transcript::open(&folder.join("transcript.jsonl")).unwrap();
    let earlier = brought_along(&folder.join("transcript.jsonl"), &transcript.header.record, None).unwrap();
    replay(&scenario(TEXT), &transcript, earlier).unwrap();
    Arc::into_inner(read).unwrap().into_inner().unwrap()
}

fn with_seed(seed: u64) -> RunOptions {
    RunOptions { seed, ..RunOptions::default() }
}

/// What stands between two texts.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before).and_then(|(_, rest)| rest.split_once(after)).expect("a text").0
}

#[test]
fn a_seed_draws_the_same_again_and_another_one_something_else() {
    let dir = crate::play::checkout();
    let mut all = BTreeSet::new();
    for seed in 0..12 {
        let [one, other] =
            ["one", "other"].map(|name| played(&dir.path().join(format!("{seed} {name}")), &with_seed(seed)));
        assert_eq!(one, other);
        assert!(all.insert(one.values().cloned().collect::<Vec<_>>()), "seed {seed} draws what another does");
    }
}

#[test]
fn each_place_has_draws_of_its_own() {
    let dir = crate::play::checkout();
    let (mut late, mut pairs, mut wolves) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut matchings, mut orders, mut lucks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..30 {
        let read = played(&dir.path().join(seed.to_string()), &with_seed(seed));
        let of = |round: usize, agent: &str| read[&format!("night/{round}/{agent}")].as_str();
        // All hear the same number; each has a role and cards of its own, and all of them are dealt.
        let number = |agent: &str| between(of(1, agent), "The number is ", ".");
        assert!(["b", "c", "d"].iter().all(|agent| number(agent) == number("a")));
        let roles: Vec<&str> =
            ["a", "b", "c", "d"].iter().map(|a| between(of(1, a), "You are the ", ",")).collect();
        assert_eq!(roles.iter().filter(|role| **role == "villager").count(), 2, "{roles:?}");
        wolves.insert(roles.iter().position(|role| *role == "wolf").expect("a wolf"));
        let cards: BTreeSet<&str> =
            ["a", "b", "c", "d"].iter().flat_map(|a| between(of(1, a), "with [", "]").split(", ")).collect();
        assert_eq!(cards.len(), 8);
        // The rounds of a text differ, and so do two draws in it.
        let rounds = [1, 2].map(|n| between(of(n, "a"), &format!("Round {n}: "), "."));
        let numbers: BTreeSet<&str> = rounds.iter().flat_map(|text| text.split(", again ")).collect();
        assert_eq!(numbers.len(), 4, "{rounds:?}");
        let present: Vec<&String> = read.keys().filter(|path| path.starts_with("pairs/")).collect();
        assert_eq!(present.len(), 2);
        pairs.insert(present.into_iter().cloned().collect::<Vec<_>>());
        let text = read.iter().find(|(path, _)| path.starts_with("pairs/1/")).expect("a pair").1;
        assert!(!text.contains("snow"), "{text}");
        late.insert(read.keys().any(|path| path.starts_with("late/")));
        // All are paired in both rounds, and all have one place in each order.
        for round in 1..=2 {
            let paths = |phase: &str| {
                let begin = format!("{phase}/{round}/");
                read.keys().filter_map(move |path| Some(path.strip_prefix(&begin)?.to_string()))
            };
            let mut matching: Vec<String> = paths("ball").filter(|path| !path.ends_with(".2")).collect();
            let met: BTreeSet<char> =
                matching.iter().flat_map(|path| path.chars().filter(|c| "abcd".contains(*c))).collect();
            matching.iter_mut().for_each(|path| *path = path.replace(".to-", ""));
            assert!(matching.len() == 2 && met.len() == 4, "{matching:?}");
            matchings.insert((round, matching.join(" ")));
            let order: Vec<(String, String)> = paths("queue")
                .filter_map(|path| {
                    path.split_once('.').map(|(agent, place)| (place.to_string(), agent.to_string()))
                })
                .collect();
            let places: BTreeMap<String, String> = order.into_iter().collect();
            assert_eq!(places.len(), 4, "{places:?}");
            orders.insert((round, places.into_values().collect::<String>()));
        }
        lucks.insert(between(&read["end/1/a"], "a luck of ", ".").to_string());
    }
    // Of 12 ordered pairs and 24 orders in each round.
    assert!(matchings.len() > 15 && orders.len() > 25, "{matchings:?} {orders:?}");
    assert!(lucks.len() > 25, "what the state begins with is drawn as well");
    assert_eq!((late.len(), wolves.len()), (2, 4), "a condition is true or false, anyone is the wolf");
    assert!(pairs.len() >= 5, "{pairs:?}");
}

#[test]
fn a_fork_keeps_what_was_drawn_before() {
    let dir = crate::play::checkout();
    let run = dir.path().join("run");
    let before = played(&run, &with_seed(3));
    let mut numbers = BTreeSet::new();
    for seed in 20..24 {
        let from =
            ForkFrom { run: run.clone(), at: Some("night/2/a".to_string()), changes: Default::default() };
        let options = RunOptions { fork: Some(from), ..with_seed(seed) };
        let after = played(&dir.path().join(seed.to_string()), &options);
        let text = |read: &Read| read["night/2/a"].clone();
        numbers.insert(between(&text(&after), "Round 2: ", ".").to_string());
        let roles = |read: &Read| between(&read["end/1/a"], "All were {", "}").to_string();
        assert_eq!(roles(&before), roles(&after), "roles are dealt once");
        let luck = |read: &Read| between(&read["end/1/a"], "a luck of ", ".").to_string();
        assert_eq!(luck(&before), luck(&after), "the state begins as it did");
    }
    assert_eq!(numbers.len(), 4, "what follows is drawn with another seed");
}

#[test]
fn what_is_computed_before_the_run_has_no_chance() {
    for (text, at) in [
        ("agents: {a: {system_prompt: '{{ random() }}'}, b: {}}\nphases: [{name: p, agents: [a, b]}]", "a"),
        ("agents: {a: {}, b: {}}\nphases: [{name: p, agents: [a, b], rounds: 'randint(1, 3)'}]", "rounds"),
        (
            "agents: {a: {}, b: {}}\n\
             phases: [{ name: p, agents: [a, b], answer: [x, y] }]\n\
             payoff: {phase: p, matrix: {x: {x: ['random()', 1], y: [0, 0]}, y: {x: [0, 0], y: [1, 1]}}}",
            "matrix",
        ),
    ] {
        let report = load("drawn.yaml", &format!("id: drawn\n{text}\n"), &[]).report.render(false);
        assert!(report.contains("computed before the run"), "{at}: {report}");
    }
    let report = load(
        "drawn.yaml",
        "id: x\nvariables: {random: 1}\nagents: {a: {}, b: {}}\nphases: [{name: p, agents: [a, b]}]\n",
        &[],
    );
    assert!(report.report.render(false).contains("reserved"), "{}", report.report.render(false));
}
