"""Made-up encyclopedia articles with questions and answers."""

from __future__ import annotations

import random

from world import BANKS, COLOURS, NAMES, NUMBERS, WORDS, Talk, invented, tidy


def article(r: random.Random) -> tuple[list[tuple[str, str]], str, str]:
    """Question/answer pairs, the text they come from, and its topic."""
    t = Talk(r)
    place = invented(r)
    facts: list[tuple[str, str]] = []
    paras: list[str] = []
    kind = r.choice(["town", "animal", "machine", "person"])
    topic = {
        "town": f"the town of {place}",
        "animal": f"the {place.lower()}",
        "machine": f"the {place} engine",
        "person": f"the life of {place}",
    }[kind]
    n = lambda a, b: str(r.randint(a, b))  # noqa: E731
    c = r.choice
    year, year2 = n(1100, 1800), n(1801, 1990)
    who, who2 = invented(r), c(NAMES)
    stuff, stuff2 = r.sample(
        "salt wool silver wine copper timber fish honey leather glass paper coal cloth tea".split(), 2
    )
    w1, w2, w3 = r.sample(WORDS, 3)
    if kind == "town":
        rows = [
            (
                f"{place} was founded in {year} by {who}.",
                f"when was {place} founded?",
                f"it was founded in {year}, by {who}.",
            ),
            (f"About {n(2, 90)},000 people live there today.", "how many people live there?", None),
            (
                f"The town lies on the river {w1.capitalize()}.",
                "on which river does the town lie?",
                f"the town lies on the river {w1.capitalize()}.",
            ),
            (
                f"For a long time the town lived from {stuff}.",
                "what did the town live from?",
                f"for a long time it lived from {stuff}.",
            ),
            (f"In {year2} a fire destroyed the {{house}}.", f"what happened in {year2}?", None),
            (
                f"Its best known building is the {w2} tower, which is {n(20, 140)} metres high.",
                "what is its best known building?",
                None,
            ),
            (
                f"Every {c(BANKS['month'])} the people celebrate the feast of the {w3}.",
                "what do the people celebrate?",
                None,
            ),
            (f"The first mayor was {who2}, a {{job}}.", "who was the first mayor?", None),
            (
                f"A railway reached {place} {n(3, 40)} years after the fire.",
                f"when did the railway reach {place}?",
                None,
            ),
        ]
    elif kind == "animal":
        a = "the " + place.lower()
        rows = [
            (
                f"{a} lives in {c(['dry forests', 'cold lakes', 'high mountains', 'warm rivers', 'deep caves', 'open fields'])} in the {c(['north', 'south', 'east', 'west'])}.",
                f"where does {a} live?",
                None,
            ),
            (
                f"{a} eats mostly {c(['ants', 'grass', 'small fish', 'berries', 'roots', 'snails'])} and hunts at {c(BANKS['time'])}.",
                f"what does {a} eat?",
                None,
            ),
            (
                f"An adult weighs {n(2, 90)} kilograms and is {n(20, 200)} centimetres long.",
                "how much does an adult weigh?",
                None,
            ),
            (f"Its fur is {c(COLOURS)} with {c(COLOURS)} stripes.", "what does its fur look like?", None),
            (f"It was first described by {who} in {year2}.", "who described it first?", None),
            (f"It lives for about {n(3, 60)} years.", "how long does it live?", None),
            (
                f"The young stay with the mother for {n(2, 30)} weeks.",
                "how long do the young stay with the mother?",
                None,
            ),
            (f"Its only enemy is the {c(['eagle', 'wolf', 'snake', 'fox', 'owl'])}.", "what is its enemy?", None),
            (
                f"Fewer than {n(2, 90)},000 of them are left, because of the trade in {stuff}.",
                "how many of them are left?",
                None,
            ),
        ]
    elif kind == "machine":
        rows = [
            (
                f"The {place} engine was built in {year2} by {who}.",
                f"who built the {place} engine?",
                f"it was built by {who} in {year2}.",
            ),
            (f"It burns {stuff} and drinks {n(5, 90)} litres of water an hour.", "what does it burn?", None),
            (f"It weighs {n(2, 80)} tons and has {c(NUMBERS)} wheels.", "how heavy is it?", None),
            (f"Its first name was the {w1}.", "what was its first name?", None),
            (f"The first test, at {{spot}}, failed because of a broken {w2}.", "why did the first test fail?", None),
            (f"It was painted {c(COLOURS)} so that it could be seen in fog.", "which colour was it painted?", None),
            (f"{n(3, 60)} of them were sold, most of them to {who2}.", "how many of them were sold?", None),
            (f"The last one stands in the {{house}} of {invented(r)}.", "where is the last one today?", None),
            (f"Its driver had to pull the {w3} lever before the start.", "what did the driver have to pull?", None),
        ]
    else:
        rows = [
            (
                f"{place} was born in {year2} in a village called {who}.",
                f"where was {place} born?",
                f"{place} was born in a village called {who}.",
            ),
            ("The father was a {job} and the mother a {job}.", "what were the parents?", None),
            (
                f"At the age of {n(9, 30)}, {place} left home with {n(2, 80)} coins.",
                f"how old was {place} when leaving home?",
                None,
            ),
            (
                f"The first book was called The {w1.capitalize()} and the {w2.capitalize()}.",
                "what was the first book called?",
                f"it was called The {w1.capitalize()} and the {w2.capitalize()}.",
            ),
            (f"{place} married {who2} in {{month}}.", f"whom did {place} marry?", None),
            (f"For {n(2, 20)} years {place} traded in {stuff} and {stuff2}.", f"what did {place} trade in?", None),
            (f"The great rival was {invented(r)}, who lived at {{spot}}.", "who was the great rival?", None),
            (
                f"{place} kept a {c(COLOURS)} {c(['parrot', 'cat', 'horse', 'goat', 'dog'])} in the kitchen.",
                f"which animal did {place} keep?",
                None,
            ),
            (
                f"{place} died at the age of {n(50, 99)} after eating too many {c(['plums', 'oysters', 'cherries', 'nuts'])}.",
                f"how did {place} die?",
                None,
            ),
        ]
    r.shuffle(rows)
    filler = [
        "Not much is known about the reasons.",
        "Older books tell it differently.",
        "People still talk about it.",
        "This was unusual at the time.",
        "There are several stories about it.",
        "It changed many things.",
        "Few visitors know this.",
        "Letters from that time confirm it.",
        "The details were written down much later.",
        "Children learn it at school.",
    ]
    para: list[str] = []
    for s, q, ans in rows[: r.randint(5, 9)]:
        s = tidy(t.fill(s, {}))
        para.append(s)
        facts.append((q, ans or s))
        for _ in range(r.choice((0, 0, 1, 1, 2, 4))):
            para.append(c(filler))
        if r.random() < 0.3:
            paras.append(" ".join(para))
            para = []
    paras.append(" ".join(para))
    return facts, "\n".join(p for p in paras if p), topic
