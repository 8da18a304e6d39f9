//! `greenroom schema`: the contents of a scenario file, for editors and for people. Both forms are generated
//! from the Rust types.

use super::Exit;
use crate::scenario::schema::json_schema;
use crate::scenario::template::{FILTERS, FUNCTIONS};
use serde_json::Value;
use std::fmt::Write as _;

/// Print the JSON Schema of scenario files, or the reference of all fields
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom schema > schema.json\n\
                        With `# yaml-language-server: $schema=schema.json` as its first line, editors \
                        complete and check a scenario.")]
pub(super) struct Args {
    /// What to print
    #[arg(long, value_enum, default_value_t)]
    format: SchemaFormat,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum SchemaFormat {
    /// JSON Schema
    #[default]
    Json,
    /// The reference, as in docs/reference.md
    Markdown,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    match args.format {
        SchemaFormat::Json => println!("{}", serde_json::to_string_pretty(json_schema())?),
        SchemaFormat::Markdown => print!("{}", reference(json_schema().as_value())),
    }
    Ok(Exit::Pass)
}

/// A type of the schema and its section of the reference.
struct Section {
    /// The type; empty: the file itself.
    of: &'static str,
    heading: &'static str,
    /// Its place in a file.
    place: &'static str,
    /// The keyword by which fields refer to it.
    word: &'static str,
    example: &'static str,
}

const SECTIONS: &[Section] = &[
    Section {
        of: "",
        heading: "A scenario",
        place: "The file itself",
        word: "scenario",
        example: "\
id: tea
title: Tea for two
variables: { town: Lindholm }
models: { quick: understudy }
sampling: { temperature: 0.8 }
agents:
  ada: { display_name: Ada, model: quick, system_prompt: \"You are Ada, a botanist of {{ town }}.\" }
  rolf: { display_name: Rolf }
phases:
  - { name: kitchen, agents: [ada, rolf], rounds: 2, prompt: Rain on the window. }
",
    },
    Section {
        of: "Agent",
        heading: "An agent",
        place: "`agents.KEY`",
        word: "agent",
        example: "\
agents:
  ann:
    display_name: Ann
    role: innkeeper
    system_prompt: You are {{ me }}, an {{ role }}. Speak in one or two short sentences.
    color: teal
  ben: { display_name: Ben, memory: { keep: retrieve, recent: 6 } }
  cas: { display_name: Cas, strategy: tit_for_tat }
",
    },
    Section {
        of: "Memory",
        heading: "A memory",
        place: "`agents.KEY.memory`",
        word: "memory",
        example: "\
agents:
  ann: { memory: { keep: retrieve, recent: 6, nearest: 4 } }
  ben: { memory: { keep: window } }
  cas: { memory: { keep: summary } }
",
    },
    Section {
        of: "Model",
        heading: "A model",
        place: "`models.NAME`",
        word: "model",
        example: "\
models:
  small: understudy
  big: { remote: 'http://127.0.0.1:8080', api: greenroom }
agents: { ann: { model: small }, ben: { model: big }, cas: {}, mod: {} }
",
    },
    Section {
        of: "Tool",
        heading: "A tool",
        place: "`tools.KEY`",
        word: "tool",
        example: "\
tools:
  sums: calculator
  diary: { built_in: notes, about: Writes into your diary. }
  weather:
    command: [python3, weather.py]
    about: The weather of a town.
    arguments: { type: object, properties: { town: { type: string } }, required: [town], additionalProperties: false }
agents:
  ann: { tools: [sums, diary, weather], max_calls: 2 }
  ben: {}
  cas: {}
",
    },
    Section {
        of: "Language",
        heading: "A language",
        place: "`language`",
        word: "language",
        example: "\
language: { base: de, cue: \"{name} hat das Wort.\" }
agents: { ann: {}, ben: {} }
phases: [{ name: talk, agents: [ann, ben], prompt: Guten Morgen. }]
",
    },
    Section {
        of: "Phase",
        heading: "A phase",
        place: "`phases[n]`",
        word: "phase",
        example: "\
phases:
  - name: talk
    label: The talk
    agents: [ann, ben, cas]
    rounds: 3
    prompt: The three meet at the well.
    say: { ben: \"Only you know this, {{ me }}. The well is dry.\" }
  - name: vote
    agents: [ann, ben, cas]
    rounds: 0
    vote: { rule: majority, answer: [dig, leave] }
  - name: digging
    agents: [ann, ben]
    when: vote.decision == 'dig'
    prompt: They dig, {{ vote.votes.dig }} to {{ vote.votes.leave }}.
",
    },
    Section {
        of: "Route",
        heading: "A route",
        place: "`phases[n].route`",
        word: "route",
        example: "\
phases:
  - { name: tides, agents: [ann], rounds: 0, prompt: The moon lifts the sea twice a day. }
  - { name: bread, agents: [ben], rounds: 0, prompt: Yeast lifts the dough. }
  - name: question
    agents: [ann, ben, cas]
    turns: [{ agent: cas, ask: Put the question. }, { agent: ann }, { agent: ben }]
    route: { query: What lifts the sea?, among: [ann, ben], least: 0.3, otherwise: ben }
",
    },
    Section {
        of: "Block",
        heading: "A block",
        place: "`phases[n]`",
        word: "block of phases",
        example: "\
state: { alive: [ann, ben, cas] }
phases:
  - repeat: 3
    until: alive | length < 2
    phases:
      - { name: day, agents: alive, prompt: \"Day {{ pass }} of {{ passes }}. {{ cast | join(', ') }} are left.\" }
      - name: vote
        agents: alive
        rounds: 0
        vote: { rule: majority, answer: alive | without(me), ask: Who leaves? }
        set: { alive: alive | without(vote.decision) }
",
    },
    Section {
        of: "Turn",
        heading: "A turn",
        place: "`phases[n].turns[n]`",
        word: "turn",
        example: "\
phases:
  - name: haggle
    agents: [ann, ben]
    turns:
      - { agent: ann, ask: What do you offer?, answer: [5, 10, 20], sampling: { temperature: 1.2 } }
      - { agent: ben, ask: Is it enough?, answer: { one_of: { true: I take it, false: I want more } } }
      - { agent: ann, when: not haggle.choices.ben, to: ben }
    until: haggle.choices.ben
    rounds: 4
",
    },
    Section {
        of: "Says",
        heading: "Texts of the stage",
        place: "`phases[n].say`",
        word: "texts",
        example: "\
phases:
  - name: pot
    agents: [ann, ben]
    order: broadcast
    rounds: 5
    ask: Day {{ round }} of {{ rounds }}. How much do you put in?
    answer: [0, 5, 10]
    say:
      - { to: ann, text: You are rich. }
      - { at: round_start, to: ann, text: You hear that it may be the last day. }
      - at: round_end
        text: Ann put in {{ pot.choices.ann }}, Ben {{ pot.choices.ben }}. You have {{ payoffs[me] }} so far.
payoff:
  phase: pot
  each: 10 - mine + all | sum * 3 / 4
",
    },
    Section {
        of: "Audience",
        heading: "An audience",
        place: "`phases[n].to`",
        word: "audience",
        example: "\
phases:
  - { name: dinner, agents: [ann, ben, cas], rounds: 2, to: { ben: ann }, overhears: { cas: ben } }
  - { name: notes, agents: [ann, ben], prompt: Write down what you think., to: nobody }
",
    },
    Section {
        of: "Answer",
        heading: "An answer",
        place: "`answer`, of a phase, a turn, a vote or a judge",
        word: "answer",
        example: "\
phases:
  - { name: one, agents: [ann], answer: [stay, leave] }
  - { name: two, agents: [ann], answer: { one_of: { stay: We stay, leave: We leave } } }
  - { name: three, agents: [ann], ask: How many days?, answer: { one_of: [1, 2, 3], shuffle: true } }
  - { name: guests, agents: [ann], ask: How many guests?, answer: { regex: \"[1-9][0-9]? guests\" } }
  - { name: bill, agents: [ann], ask: Who pays?, answer: { lark: 'start: (\"Ann\" | \"Ben\") \" pays.\"' } }
  - name: market
    agents: [ann, ben]
    answer:
      schema:
        type: object
        properties:
          price: { type: integer, minimum: 1, maximum: 100 }
          why: { type: string, maxLength: 80 }
        required: [price, why]
        additionalProperties: false
outcome:
  spread: market.replies.ann.price - market.replies.ben.price
",
    },
    Section {
        of: "Vote",
        heading: "A vote",
        place: "`phases[n].vote`",
        word: "vote",
        example: "\
state: { elders: [ann, ben] }
phases:
  - { name: plan, agents: [ann, ben, cas], vote: { rule: ranked, answer: [dig, leave, wait] } }
  - { name: trial, agents: [ann, ben, cas], vote: { rule: consensus, answer: [guilty, free], attempts: 5 } }
  - name: exile
    agents: [ann, ben, cas]
    rounds: 0
    vote: { rule: majority, answer: [cas, nobody], ask: Who leaves the village?, by: elders, secret: true }
  - { name: order, agents: [ann, ben, cas], vote: { rule: leader, by: ann, answer: [march, rest] } }
",
    },
    Section {
        of: "Set",
        heading: "Changes of the state",
        place: "`phases[n].set`",
        word: "changes of the state",
        example: "\
state: { pot: 10, purse: { ann: 5, ben: 5 } }
phases:
  - name: pot_luck
    agents: [ann, ben]
    order: broadcast
    rounds: 3
    answer: [0, 1, 2]
    set:
      - { after: round, pot: \"pot - pot_luck.choices.ann - pot_luck.choices.ben\" }
      - { after: round, each: \"['ann', 'ben']\", purse: \"purse[me] + pot_luck.choices[me]\" }
",
    },
    Section {
        of: "Sampling",
        heading: "A sampling",
        place: "`sampling`, of a scenario, an agent, a phase, a turn or a judge",
        word: "sampling",
        example: "\
sampling: { max_tokens: 80 }
agents:
  ann: { sampling: { temperature: 1.2, top_p: 0.9 } }
  ben: {}
  cas: {}
",
    },
    Section {
        of: "Payoff",
        heading: "A payoff",
        place: "`payoff`",
        word: "payoff",
        example: "\
phases:
  - { name: nights, agents: [ann, ben], order: broadcast, rounds: 3, answer: [share, take] }
payoff:
  phase: nights
  unit: melons
  matrix:
    share: { share: [3, 3], take: [0, 5] }
    take: { share: [5, 0], take: [1, 1] }
",
    },
    Section {
        of: "Strategies",
        heading: "A strategy",
        place: "`agents.KEY.strategy`",
        word: "strategy",
        example: "\
agents:
  ann: { strategy: grim }
  ben: { strategy: { random: 0.8 } }
  cas: { strategy: { list: [share, share, take] } }
  dan: { strategy: { talk: { list: [Good morning., Again?] }, game: tit_for_tat } }
  eve: { strategy: { script: { talk/1/eve: Good morning., game/1/eve: share, game/2/eve: take } } }
phases:
  - { name: talk, agents: [dan, eve] }
  - { name: game, agents: [ann, ben, cas, dan, eve], order: broadcast, rounds: 2, answer: [share, take] }
",
    },
    Section {
        of: "Assertion",
        heading: "An assertion",
        place: "`assertions[n]`",
        word: "assertion",
        example: "\
outcome:
  taken: game.votes.take
assertions:
  - outcome.taken < 2
  - { that: game.invalid == 0, why: everybody answered }
",
    },
    Section {
        of: "Share",
        heading: "A share of runs",
        place: "`assertions[n].share`",
        word: "share of runs",
        example: "\
assertions:
  - { that: game.votes.share >= 2, share: { at_least: 0.9 } }
  - { that: game.votes.share == 0, share: { at_most: 0.05 }, why: somebody shares }
",
    },
    Section {
        of: "Judge",
        heading: "A judge",
        place: "`judges.NAME`, or `assertions[n].judge`",
        word: "judge",
        example: "\
judges:
  clarity: { ask: How clearly did Ann speak?, answer: [1, 2, 3, 4, 5] }
  tone:
    ask: Grade the tone of each.
    answer: { schema: { type: object, properties: { ann: { type: integer }, ben: { type: integer } }, required: [ann, ben], additionalProperties: false } }
outcome: { clarity: clarity.verdict, rude: tone.verdict.ben < 3 }
assertions:
  - judge: { ask: Did both keep their word?, answer: [kept, broken] }
    that: verdict == 'kept'
",
    },
];

/// The reference's section on templates and expressions, and on the names that they may use. Its last table
/// is that of the filters.
const CHANCE: &str = "
### Chance

The filters `shuffle`, `sample`, `choose`, `weighted` and `deal`, and two functions, draw at random. What they draw depends on the run's
seed and on where they stand, and on nothing else: the same run draws it again, so does a replay, and everybody who reads a text reads the
same. A fork keeps what was drawn before it.

What a `let` draws is drawn once for the whole run: deal roles there. `set` draws at each change, a text of a round in each round. Nothing
can be drawn in what is computed before the run: system texts, numbers of rounds, payoffs.

| function | gives |
|---|---|
";

const NAMES: &str = "\
## Templates and expressions

Both are [minijinja](https://docs.rs/minijinja/latest/minijinja/syntax/): Jinja's syntax. A template is text with
`{{ expression }}` and `{% if … %}` in it; an expression stands alone, without braces. There are `and`, `or`, `not`, `in`,
`==`, `<`, `+`, `*`, `~` (joins texts), `a if test else b`, and filters such as `list | length`. Null, false, 0 and empty values
are false. An unknown name is an error, reported before the run where possible. `check` tries templates and expressions on
possible choices and texts: what always fails is an error, what fails in some cases is a warning that names the case.
Steps, output and memory of each are limited: about a million steps, 8 MB of text.

What a template prints is only text: a reply that contains `{{ }}` is never rendered.

Names, titles and other fields whose type links here, options of choices and the texts of strategies are templates, too, but they are rendered
before the run, so they can use variables alone. For braces that stay in a text, write `{{ '{{' }}`.

Line breaks are Jinja's, with one exception: a line with only `{% … %}` or `{# … #}` leaves no empty line. So a list has a line for
each item whether its loop is written `{% for … %}` or `{%- for … %}`. `-` inside a tag removes spaces and line breaks on its side,
`+` keeps them.

| name | value | where |
|---|---|---|
| a variable's name; `variables` | its value; all of them | everywhere |
| `me` | the reader; prints its display name, has `key`, `display_name`, `role` | templates |
| `role`, `display_name` | the reader's | templates |
| an agent's key; `agents.KEY` | that agent, like `me` | templates; in system texts only `agents.KEY` |
| `scenario` | has `id`, `title`, `description` | templates |
| `phase` | has `name`, `label`, `rounds` (as planned) | templates of phases |
| `cast`, `others` | the agents present; the same without the reader | templates of phases |
| an earlier phase's name; `phases.NAME` | its results, below | templates of phases, expressions |
| the phase's own name | its results so far | `ask`, `say` around rounds, `until`, `set`, a turn's `when` |
| `round`, `rounds` | the round, from 1; the maximum number of rounds; your own names take precedence | `ask`, `say` around rounds, `until`, a turn's `when` |
| a name in the `state` | its value at that point | templates of phases, expressions; not in system texts, nor in anything computed before the run |
| a name under `let` | its value, computed there | where everything that it uses is known |
| `pass`, `passes` | the number of the block's pass, from 1; the maximum number | in a block |
| `payoffs.AGENT` | the sum of the agent's payoffs so far; null: no payoff could be computed | where the payoff's phase is known |
| `outcome.NAME` | an outcome above this one | outcomes, assertions |
| `verdict` | what the judge chose or replied | `that` beside a `judge` |
| `me` | who chooses | `open` and `one_of` of an answer |
| `mine`, `others`, `all` | choices of one round | `payoff.each` |

### Results of a phase

| name | value |
|---|---|
| `PHASE.played` | whether any of its turns was played |
| `PHASE.rounds` | rounds that were played |
| `PHASE.choices.AGENT` | the agent's latest choice; null: none, or invalid |
| `PHASE.history.AGENT` | all its choices, oldest first |
| `PHASE.votes.OPTION` | how often the option was chosen in any turn; with a `vote`, in the last one, and in a ranking for the first place |
| `PHASE.decision` | what the `vote` decided; null: nothing |
| `PHASE.tied` | whether there was a tie, so that nothing was decided |
| `PHASE.invalid` | choices that match no option, and replies that do not have the required form |
| `PHASE.said.AGENT` | everything that the agent said, one line each |
| `PHASE.replies.AGENT` | the value of the agent's latest reply with a form: its JSON value, e.g. `market.replies.ann.price`, or its text for a `regex` or a `lark`; null: none, or invalid |
| `PHASE.reply_history.AGENT` | all these values, oldest first |
| `PHASE.calls.AGENT` | the agent's tool calls, oldest first, each with `tool`, `arguments`, `result` and `failed` |
| `JUDGE.verdict` | what a judge chose or replied, by the judge's name; null: nothing valid |
| `PHASE.messages[AGENT]` | the phase as that agent heard it; `${PHASE.messages[AGENT]}` is the same |

`AGENT` is a key, `OPTION` a result as written in `answer`. In brackets, write the key in quotes, a number without them (`quiz.votes[4]`), or an agent: `talk.messages['ann']`,
`talk.choices[me]`, `payoffs[me]`; `messages` has only this form. Between `${` and `}`, write the key without quotes. Agents who speak at once
(`broadcast`, votes) do not see each other's answers in their questions.

In a block, the name of a phase means its latest pass: the current pass for phases earlier in the block, the previous pass for phases later in
the block (in the first pass, nothing has been played yet). After the block, it means the last pass played. Payoffs are sums over all passes.

### Additional filters

In addition to minijinja's. Keys and items may be agents (`me`), which stand for their keys.

| filter | value |
|---|---|
";

fn reference(schema: &Value) -> String {
    let mut out = String::from(
        "# Reference\n\nEvery field of a scenario file. This page is generated by `greenroom schema --format \
         markdown` from the program's types.\n\
         The [tutorial](tutorial.md) shows how fields work together, [patterns](patterns.md) what they are \
         good for.\n",
    );
    for section in SECTIONS {
        let of = if section.of.is_empty() { schema } else { &schema["$defs"][section.of] };
        // Writing to a String can't fail.
        let _ = writeln!(out, "\n## {}\n\n{}\n\n{}\n", section.heading, section.place, text(of));
        fields(&mut out, schema, of);
        words(&mut out, of, "");
        // For several forms, the fields of the one that has any, and the words of the others.
        for form in of["anyOf"].as_array().into_iter().flatten() {
            let form = resolved(schema, form);
            fields(&mut out, schema, form);
            words(&mut out, form, "");
        }
        let part = if section.of.is_empty() { "" } else { " part" };
        let _ = write!(out, "\n```yaml{part}\n{}```\n", section.example);
    }
    out = out + "\n" + NAMES;
    for (name, what) in FILTERS {
        let _ = writeln!(out, "| `{name}` | {what} |");
    }
    out += CHANCE;
    for (name, what) in FUNCTIONS {
        let _ = writeln!(out, "| `{name}` | {what} |");
    }
    out
}

/// A list of a type's fields.
fn fields(out: &mut String, schema: &Value, of: &Value) {
    let required: Vec<&str> =
        of["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_needed = |name: &str| required.contains(&name);
    let mut all: Vec<_> = of["properties"].as_object().into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| !is_needed(name));
    for (name, field) in all {
        let needed = if is_needed(name) { ", required" } else { "" };
        let _ =
            writeln!(out, "- **`{name}`** ({}{needed}): {}", kind(field), text(field).replace('\n', "\n  "));
        if section(field).is_none() {
            words(out, resolved(schema, named(field).unwrap_or(field)), "  ");
        }
    }
}

/// A list of a type's possible words, with their meanings.
fn words(out: &mut String, of: &Value, indent: &str) {
    for word in of["oneOf"].as_array().into_iter().flatten() {
        let name = match (word["const"].as_str(), word["properties"].as_object()) {
            (Some(name), _) => name.to_string(),
            (None, Some(fields)) => {
                fields.iter().map(|(name, of)| format!("{{{name}: {}}}", letter(of))).collect()
            }
            _ => continue,
        };
        let _ = writeln!(out, "{indent}- `{name}`: {}", text(word).replace('\n', &format!("\n{indent}  ")));
    }
}

/// Placeholder for a value of a strategy.
fn letter(of: &Value) -> &'static str {
    match of["type"].as_str() {
        Some("number") => "p",
        Some("array") => "[X, Y, …]",
        Some("object") => "{PATH: X, …}",
        _ => "X",
    }
}

fn text(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// The section on a field's type.
fn section(field: &Value) -> Option<&'static Section> {
    let name = named(field)?["$ref"].as_str()?.rsplit('/').next();
    SECTIONS.iter().find(|section| name == Some(section.of))
}

/// The part of an optional field that names a type.
fn named(field: &Value) -> Option<&Value> {
    let first = field["anyOf"].get(0).unwrap_or(field);
    first["$ref"].is_string().then_some(first)
}

fn resolved<'a>(schema: &'a Value, of: &'a Value) -> &'a Value {
    of["$ref"].as_str().and_then(|name| schema.pointer(name.strip_prefix('#')?)).unwrap_or(of)
}

/// The kind of a field's values, in words.
fn kind(field: &Value) -> String {
    if let Some(name) = named(field).and_then(|of| of["$ref"].as_str()?.rsplit('/').next()) {
        if let Some(section) = section(field) {
            let anchor = section.heading.to_lowercase().replace(' ', "-");
            return format!("[{}](#{anchor})", section.word);
        }
        return match name {
            "Key" => "key of an agent",
            "Keys" => "key of an agent, or a list of keys",
            "Template" => "[template](#templates-and-expressions)",
            "Text" => "[text](#templates-and-expressions)",
            "Expression" => "[expression](#templates-and-expressions)",
            "Count" => "whole number, or [expression](#templates-and-expressions) over variables",
            "Options" => "list or mapping",
            "McpServer" => "list: text, or a URL",
            "VariableName" => "name of an environment variable",
            _ => "word",
        }
        .to_string();
    }
    let types = field["type"].as_array().cloned().unwrap_or_else(|| vec![field["type"].clone()]);
    match types.iter().filter_map(Value::as_str).find(|kind| *kind != "null") {
        Some("string") => "text".into(),
        Some("integer") => "whole number".into(),
        Some("number") => "number".into(),
        Some("boolean") => "true or false".into(),
        Some("array") => format!("list: {}", kind(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => {
            format!("mapping to: {}", kind(&field["additionalProperties"]))
        }
        Some("object") => "mapping".into(),
        _ => "anything".into(),
    }
}
