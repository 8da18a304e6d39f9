"""Exercises: keys and values told and asked for, chains of them, and names to be called by."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from world import BANKS, WORDS, Talk, World, tidy, user_turn


@dataclass
class Probe:
    """One recall question: the text before the answer, the answer, where the answer was told, wrong answers of the same list."""

    prompt: str
    answer: str
    hops: int
    source: str
    others: list[str]


PAIR = re.compile(r"^(\w+)(?: = | -> |: | is )(\w+)$", re.MULTILINE)


def recall(r: random.Random, pairs: int, asks: int, hops: int = 1, form: int | None = None) -> str:
    """Keys and values, told in lists or talk, asked for later; with hops > 1, chains of links."""
    form = r.randrange(4) if form is None else form
    name = World(r).name()
    clerk = r.choice(
        [
            f"You are {name}, a keeper of lists. You remember every pair.",
            f"You are {name}. You have a perfect memory.",
            f"You are {name}, a clerk with a good memory. Answer with the word only.",
        ]
    )
    whole = r.random() < 0.4  # answer with the whole pair, or with the word only
    if whole:
        clerk = clerk.replace("with the word only", "with the whole pair") + r.choice(
            ["", " You repeat the whole pair."]
        )
    words = r.sample(WORDS, min(len(WORDS), pairs * 2))
    if len(words) < pairs * 2 or r.random() < 0.3:
        values = [str(r.randint(10, 99)) if r.random() < 0.3 else r.choice(WORDS) for _ in range(pairs)]
        keys = words[:pairs]
    else:
        keys, values = words[:pairs], words[pairs : 2 * pairs]
    links = list(zip(keys, values))
    chains: list[list[str]] = []
    if hops > 1:
        links = []
        pool = words[:]
        while len(pool) > hops and len(links) < pairs:
            c = [pool.pop() for _ in range(hops + 1)]
            chains.append(c)
            links += list(zip(c, c[1:]))
    r.shuffle(links)
    people = [World(r).name() for _ in range(4)]
    fmt = r.choice(["{k} = {v}", "{k} -> {v}", "{k}: {v}", "{k} is {v}"]) if form == 0 else None
    lines: list[str] = []
    for k, v in links:
        if fmt:
            lines.append(fmt.format(k=k, v=v))
        elif form == 1:
            lines.append(f"{r.choice(people)}: The {k} goes with the {v}.")
        elif form == 2:
            lines.append(f"Behind the {k} is the {v}.")
        else:
            lines.append(f"{k} = {v}.")
        if form in (1, 2) and r.random() < 0.25:
            lines.append(
                r.choice(BANKS["moods"])
                if r.random() < 0.5
                else f"{r.choice(people)}: {tidy(Talk(r).fill(r.choice(BANKS['d_flour'] + BANKS['cl_calm']), {}))}"
            )
    sep = " " if form == 3 else "\n"
    out = [f"<|im_start|>system\n{clerk}<|im_end|>\n"]
    pending = [r.choice(["Remember these pairs.", "A list to remember.", "Listen well."]), sep.join(lines)]
    targets = chains if hops > 1 else [list(x) for x in links]
    order = (r.sample(targets, len(targets)) + [r.choice(targets) for _ in range(asks)])[:asks]
    for c in order:
        k, v = c[0], c[-1]
        asker = r.choice(people)
        if hops > 1:
            path = r.random() < 0.35
            if path:
                q = r.choice([f"Follow the chain from {k}, step by step.", f"Show the whole way from {k}."])
                a = ", ".join(c) + "."
            else:
                q = r.choice(
                    [
                        f"{['', 'One', 'Two', 'Three'][hops]} steps from {k}?",
                        f"Where does {k} end?",
                        f"End of the chain from {k}?",
                    ]
                )
                a = v + "."
        else:
            q = {
                0: (fmt or "").replace("{v}", "?").format(k=k),
                1: f"What goes with the {k}?",
                2: f"What is behind the {k}?",
                3: f"{k} = ?",
            }[form]
            told = {0: fmt or "", 1: "The {k} goes with the {v}", 2: "Behind the {k} is the {v}", 3: "{k} = {v}"}[form]
            a = told.format(k=k, v=v) + "." if whole else f"{v}."
        pending.append(f"{asker}: {q}" if r.random() < 0.7 else q)
        pending.append(f"[Your turn, {name}.]")
        out.append(user_turn(pending, a))
        pending = []
        if r.random() < 0.15:
            pending.append(r.choice(BANKS["moods"] + BANKS["weather"]))
    return "".join(out)


def recall_probes(seed: int, hops: int, count: int, pairs: int) -> list[Probe]:
    """Held-out probes: one question each, in the plain "k = v" list form."""
    r = random.Random(f"probe {seed} {hops} {pairs}")
    probes: list[Probe] = []
    while len(probes) < count:
        doc = recall(r, pairs, 1, hops, form=0)
        head, _, tail = doc.rpartition("<|im_start|>assistant\n")
        answer = tail.split("<|im_end|>")[0]
        if len(answer.split()) > 1:
            continue
        told = {m.group(2): m.group(0) for m in PAIR.finditer(head)}
        others = [v + "." for v in told if v + "." != answer]
        probes.append(
            Probe(
                head + "<|im_start|>assistant\n", answer, hops, told[answer[:-1]], r.sample(others, min(5, len(others)))
            )
        )
    return probes


def roll_call(r: random.Random) -> str:
    """A drill in names: short lines by people with odd names, and short answers that call the right ones by name."""
    w = World(r)
    me, *others = [w.add("") for _ in range(r.randint(3, 5))]
    out = [
        f"<|im_start|>system\nYou are {me.name}, {r.choice(['polite', 'good with names', 'a ' + r.choice(BANKS['job'])])}.<|im_end|>\n"
    ]
    for _ in range(r.randint(6, 12)):
        pending = []
        if r.random() < 0.4:
            a, b = r.sample(others, 2)
            pending.append(
                r.choice(
                    [
                        f"{a.name} and {b.name} come in.",
                        f"{me.name} is alone with {a.name}.",
                        f"{a.name}, {b.name} and {me.name} meet. {r.choice(BANKS['weather'])}",
                    ]
                )
            )
        speakers = r.sample(others, r.randint(1, 2))
        for p in speakers:
            pending.append(
                f"{p.name}: {tidy(w.talk.fill(r.choice(BANKS['d_flour'] + BANKS['cl_calm'] + ['Good day, {me}.', 'Listen to me, {me}.', 'What do you think, {me}?']), {'me': me.name}))}"
            )
        last, other = speakers[-1].name, r.choice([x for x in others if x is not speakers[-1]]).name
        pending.append(f"[Your turn, {me.name}.]")
        said = r.choice(
            [
                "Yes, {a}.",
                "No, {a}.",
                "Thank you, {a}.",
                "I hear you, {a}.",
                "{a}, that is true.",
                "Good day, {a}.",
                "I am {me}, and you are {a}.",
                "It was {a} who said that.",
                "You are right, {a}.",
                "{a} spoke last.",
                "Well, {a}, I will think about it.",
                "Ask {b}, {a}.",
                "{a}, where is {b}?",
                "I trust you, {a}, and I trust {b}.",
            ]
        )
        out.append(user_turn(pending, said.replace("{a}", last).replace("{b}", other).replace("{me}", me.name)))
    return "".join(out)


def drills(seed: int) -> Iterator[str]:
    """Endless stream of short exercises with many questions."""
    r = random.Random(seed)
    while True:
        if r.random() < 0.55:
            yield roll_call(r)
            continue
        yield recall(r, r.randint(2, 10), r.randint(6, 12), r.choices((1, 2, 3), (6, 1, 1))[0])
