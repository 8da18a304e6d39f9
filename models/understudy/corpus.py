"""Seeded generator of the understudy's training text: many-party talk seen by one agent, and recall exercises.

    python corpus.py --seed 1 --chars 60000000 --out corpus.txt      # documents separated by <|endoftext|>
    python corpus.py --seed 7 --show 3                               # print a few documents

Each document is ONE agent's view in ChatML: a system prompt (who the agent is), user messages (what happened since the agent
last spoke, ending in "[Your turn, NAME.]") and assistant messages (what the agent said).
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

END = "<|endoftext|>"
SLOT = re.compile(r"\{([^{}]+)\}")
SENTENCE = re.compile(r"(^|[.!?] |\n)([a-z])")


def load_banks(path: Path) -> dict[str, list[str]]:
    """Phrase banks: '## name' opens a bank, every further line is one phrase."""
    banks: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            banks[line[3:]] = current = []
        elif line:
            current.append(line)
    return banks


BANKS = load_banks(Path(__file__).with_name("phrases.txt"))
PARSED: dict[str, list[str]] = {}

NAMES = """Pia Rolf Anna Tom Lena Karl Maria Jonas Nina Paul Sofia Peter Clara Hugo Ida Max Emma Leo Julia Felix Rosa Oscar Greta
Simon Vera Anton Lucy Martin Olga Frank Helen Victor Mona George Alma Henry Edith Walter Irene Samuel Nora Arthur Ruth Daniel
Grace Robert Laura Thomas Ella Richard Mary James Susan David Linda Michael Karen Edward Jane William Kate Andrew Lisa Philip
Amy Stephen Sarah Nathan Rachel Adam Hannah Oliver Chloe Jack Lily Harry Ruby Charlie Freya Noah Ivy Ethan Zoe Lucas Mia Omar
Fatima Yusuf Leila Ali Amina Hassan Zahra Chen Mei Wei Ling Hiro Yuki Kenji Aiko Ravi Priya Arjun Anita Ivan Tanya Boris Katya
Pablo Carmen Diego Elena Luis Lucia Jorge Ines Pedro Marta Bruno Chiara Enzo Giulia Luca Paola Pierre Camille Jean Amelie
Otto Frieda Kurt Heidi Bjorn Astrid Lars Ingrid Sven Sigrid Niko Eleni Yannis Dora Bela Zsofia Tibor Kata Kwame Ama Kofi Esi
Winston Gloria Marvin Dolores Stanley Beatrice Ralph Agnes Gilbert Mabel Barney Trudy Monty Tess Wes Cleo Dexter Faye Gus Hattie""".split()
TITLES = "Inspector Detective Sergeant Captain Judge Jailer Constable Magistrate Officer Commissioner Chief Prosecutor Lieutenant".split()
MODERATORS = "Moderator Chair Host Teacher Mayor Referee Editor".split()
BANNED = {"warden", "marco", "danny", "analyst", "alice", "bob", "eve"}
TEMPERS = "stubborn nervous proud greedy loyal cunning bitter gentle cheerful gruff calm curious".split()
NUMBERS = "two three four five six seven eight nine ten twelve fifteen twenty".split()
WORDS = """apple arrow badge basket beach bell berry boat bone book bottle bread brick bridge broom brush bucket button cabin
cake camel candle canoe card carrot castle cat chain chair chalk cheese cherry clock cloud coat coffee coin comb cook copper
cotton crab cream crow crown cup desk diamond dish dog doll door dove dragon dream drum duck eagle egg engine fan feather fence
field finger fire fish flag flame flower flute fog forest fork fox frog fruit garden gate ghost glass glove goat gold goose grape
grass guitar hammer hand hat hawk heart hill honey horn horse house ice ink iron island jacket jar jelly jewel judge juice key king
kite kitten knife ladder lake lamp leaf lemon letter lion lock map marble market mask meadow melon milk mill mirror money moon moss
mouse nail needle nest net night nut oak ocean oil olive onion orange owl paint palace paper parrot peach pear pearl pen pencil
pepper piano pig pillow pine pipe plate plum pocket pond potato prince pumpkin queen rabbit rain ribbon rice ring river robe rock
roof root rope rose ruby sail salt sand scarf school sea seed shell ship shirt shoe silk silver snail snake snow soap sock song
soup spider spoon spring star steel stone storm straw sugar summer sun swan sword table tea temple tent thorn thread tiger tooth
tower toy train tree trumpet tulip turtle valley velvet violin wagon wall water wave wheel whistle wind window wine winter wolf wood
wool yard zebra""".split()
COLOURS = "red blue green yellow black white brown grey pink purple orange silver golden violet".split()


class Talk:
    """Expands phrases: {slot} is looked up in the given facts, then in the phrase banks."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, bank: str, facts: dict[str, str]) -> str:
        return self.fill(self.rng.choice(BANKS[bank]), facts)

    def fill(self, text: str, facts: dict[str, str]) -> str:
        def one(m: re.Match[str]) -> str:
            key = m.group(1)
            if key in facts:
                return facts[key]
            if "|" in key:
                return self.rng.choice(key.split("|"))
            if key == "num":
                return self.rng.choice(NUMBERS)
            if key == "n":
                return str(self.rng.randint(3, 99))
            return self.rng.choice(BANKS[key])

        while "{" in text:
            text = SLOT.sub(one, text)
        return text


ARTICLE = re.compile(r"\b([Aa]) (?=[aeio])")


def swap(text: str) -> str:
    """The other side's view of a phrase: your -> my."""
    return re.sub(r"\byou\b", "me", re.sub(r"\byour\b", "my", text))


def tidy(text: str) -> str:
    """Capitals at sentence starts, and "an" before vowels."""
    text = ARTICLE.sub(r"\1n ", text)
    return SENTENCE.sub(lambda m: m.group(1) + m.group(2).upper(), text)


@dataclass
class Person:
    name: str
    role: str
    temper: str
    goals: list[str] = field(default_factory=list)


@dataclass
class Event:
    """Something said (speaker set) or staged (speaker None), and who perceives it."""

    speaker: str | None
    text: str
    heard: set[str]


class World:
    """One play: people, facts and what happens, in order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.talk = Talk(rng)
        self.events: list[Event] = []
        self.people: dict[str, Person] = {}
        self.facts: dict[str, str] = {}
        self.recent: list[str] = []

    def name(self, titles: list[str] | None = None) -> str:
        r = self.rng
        for _ in range(100):
            if titles and r.random() < 0.7:
                n = r.choice(titles)
            elif r.random() < 0.45:
                n = r.choice(NAMES)
            else:
                n = invented(r)
            if titles and n not in titles and r.random() < 0.4:
                n = r.choice(titles) + " " + n
            if n not in self.people and n.lower() not in BANNED:
                return n
        raise RuntimeError("no free name")

    def add(self, role: str, titles: list[str] | None = None, temper: str | None = None) -> Person:
        p = Person(self.name(titles), role, temper or self.rng.choice(TEMPERS))
        self.people[p.name] = p
        return p

    def scene(self, text: str, who: list[Person]) -> None:
        self.events.append(Event(None, text, {p.name for p in who}))

    def say(self, p: Person, bank: str, who: list[Person], colour: float = 0.3, /, **facts: str) -> str:
        """p says a phrase of the bank, heard by who; its temper may colour start or end."""
        f = {**self.facts, "friend": facts.get("other", "my friend"), **facts}
        for _ in range(4):  # avoid saying the same sentence again
            core = self.talk.pick(bank, f)
            if core not in self.recent:
                break
        self.recent = self.recent[-30:] + [core]
        x = self.rng.random()
        if x < colour:
            extra = self.rng.choice(BANKS[("op_" if x < colour * 0.6 else "cl_") + p.temper])
            if not ("{you}" in extra and ("you" not in f or f["you"] in core)):  # address people once
                extra = self.talk.fill(extra, f)
                core = f"{extra} {core}" if x < colour * 0.6 else f"{core} {extra}"
        self.events.append(Event(p.name, tidy(core), {q.name for q in who}))
        return core

    def system(self, p: Person) -> str:
        r = self.rng
        temper = self.talk.pick("d_" + p.temper, self.facts)
        goals = " ".join(p.goals)
        style = r.choice(["Speak in one to three short sentences.", "Answer briefly and in character.", "Keep your replies short.",
                          "Stay in character.", "Say one to three sentences at a time.", ""])
        first = r.choice([f"You are {p.name}, {p.role}. You are {temper}.", f"You are {p.name}. You are {p.role}, {temper}.",
                          f"You are {p.name}, {p.role}, {temper}."])
        return " ".join(x for x in (first, goals, style) if x)

    def view(self, p: Person) -> str:
        """The ChatML document of one agent."""
        out = [f"<|im_start|>system\n{self.system(p)}<|im_end|>\n"]
        pending: list[str] = []
        said: list[str] = []
        for e in self.events:
            if p.name not in e.heard:
                continue
            if e.speaker == p.name:
                pending.append(f"[Your turn, {p.name}.]")
                out.append(user_turn(pending, e.text))
                said.append(e.text)
                pending = []
            elif e.speaker is None:
                if said and len(said) > 1 and self.rng.random() < 0.12:
                    quotes = "\n".join("You: " + s for s in self.rng.sample(said, 2))
                    pending.append(f"YOUR PRIVATE MEMORIES\n{quotes}")
                pending.append(e.text)
            else:
                pending.append(f"{e.speaker}: {e.text}")
        return "".join(out) if len(out) > 1 else ""


def user_turn(lines: list[str], answer: str) -> str:
    text = "\n".join(lines)
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def invented(r: random.Random) -> str:
    """A made-up name of two or three syllables."""
    onset = "b c d f g h j k l m n p r s t v w z br dr fr gr kr tr st sh th ch".split()
    s = "".join(r.choice(onset) + r.choice("aeiou") for _ in range(r.choice((1, 2, 2))))
    return (s + r.choice(["n", "l", "r", "s", "ck", "nd", "rt", "ny", "co", "x", "m", ""])).capitalize()


def interrogation(r: random.Random, long: bool = False) -> World:
    """A questioner, two suspects, a yard, a confrontation and often a verdict."""
    w = World(r)
    q = w.add(r.choice(["the one who asks the questions", "an officer with {n} years of service".replace("{n}", str(r.randint(3, 30))),
                        "the one who must solve the case", "in charge of this case"]), TITLES)
    ja, jb = r.choice(BANKS["job"]), r.choice(BANKS["job"])
    a, b = w.add(f"a {ja} under arrest"), w.add(f"a {jb} under arrest")
    j = w.add("an impartial judge who listens and gives a verdict", TITLES + ["Observer", "Arbiter", "Reporter", "Chronicler"], r.choice(("calm", "gruff", "gentle")))
    lo, mid = r.randint(1, 3), r.randint(1, 4)
    hib = r.randint(max(mid, lo) + 1, 9)
    hi = r.randint(hib + 1, 20)
    y = lambda k: "year" if k == 1 else "years"  # noqa: E731
    w.facts = {"lo": str(lo), "years_lo": y(lo), "mid": str(mid), "years_mid": y(mid), "hib": str(hib), "hi": str(hi), "quest": q.name,
               "thing": r.choice(BANKS["thing"]), "house": r.choice(BANKS["house"]), "spot": r.choice(BANKS["spot"]),
               "day": r.choice(BANKS["day"]), "time": r.choice(BANKS["time"]), "num": r.choice(NUMBERS), "A": a.name, "B": b.name}
    f = w.facts
    own = {}
    for s, o, job in ((a, b, ja), (b, a, jb)):
        own[s.name] = {"alibi": w.talk.pick("alibi", f), "evidence": w.talk.pick("evidence", f), "my_part": w.talk.pick("my_part", f),
                       "other": o.name, "job": job}
        fit = "You" if r.random() < 0.5 else f"You and {o.name}"
        s.goals = [r.choice([f"{fit} took the {f['thing']} from the {f['house']}.", f"{o.name} is your partner.",
                             f"{o.name} and you are suspected of a theft at the {f['house']}.", "You want to go home soon.",
                             f"The {f['thing']} is hidden at {f['spot']}, and only {o.name} knows it too."]),
                   r.choice([f"You say you were {own[s.name]['alibi']}.", f"You want to serve as few years as you can.",
                             f"You have known {o.name} for {f['num']} years.", f"You are afraid of {hi} years.", ""])]
    own[a.name]["Aalibi"] = own[b.name]["Aalibi"] = own[a.name]["alibi"].replace("my ", "a ")
    q.goals = [r.choice([f"You want to know who took the {f['thing']} from the {f['house']}.", "You want a confession.",
                         f"You suspect {a.name} and {b.name}.", f"You offer {lo} {y(lo)} to the one who talks first."])]
    everyone = [q, a, b] + ([j] if r.random() < 0.6 else [])
    judge = j if len(everyone) == 4 else q
    rules = r.choice([
        f"The {f['thing']} is gone from the {f['house']}. {a.name} and {b.name} were arrested that night.",
        f"On {f['day']} somebody took the {f['thing']} from the {f['house']}. {q.name} holds {a.name} and {b.name} and means to learn the truth.",
        f"{a.name} and {b.name} are suspected of stealing the {f['thing']}. If one talks, that one serves {lo} {y(lo)} and the other {hi}. "
        f"If nobody talks, both serve {mid}. If both talk, both serve {hib}.",
        f"Two friends, {a.name} and {b.name}, are accused of a theft. Each can stay silent or betray the other."])
    if r.random() < 0.5:
        rules = w.talk.fill("\n".join([
            r.choice(["THE FACTS", "WHAT IS KNOWN", "THE FILE", "THE STORY SO FAR"]),
            "On {day}, around {time}, {somebody|two people|a small gang} {took_it}.",
            r.choice(["Near {spot} a patrol found {evid}.", "The {street} Street patrol saw a {job} and a {job} near {spot}.",
                      "The {thing} is worth {n},000 coins and nobody has seen it since.", "A {job} heard voices near {spot}."]),
            f"{a.name} is a {ja}. {b.name} is a {jb}." if r.random() < 0.6 else "{A} and {B} were arrested the next morning.",
            r.choice(["THE DEAL", "THE CHOICE", "THE PRICE", "WHAT IT COSTS"]),
            r.choice(["Both silent: {mid} {years_mid} each.", "Two silent suspects get {mid} {years_mid} each.", "Silence on both sides means {mid} {years_mid} each."]),
            r.choice(["Both talking: {hib} years each.", "Two traitors get {hib} years each.", "If each names the other, it is {hib} years for each."]),
            r.choice(["One talks: {lo} {years_lo} for that one, {hi} for the other.",
                      "A single traitor gets {lo} {years_lo}, and the friend {hi} years."])]), {**f, "evid": r.choice(BANKS["evid_short"]).join(["a ", ""])})
    w.scene(rules, everyone)
    trust = {a.name: r.random(), b.name: r.random()}
    talked: set[str] = set()
    reply = {"i_open": ["s_alibi"] * 5 + ["s_silent"], "i_partner": ["s_partner"] * 4 + ["s_silent"],
             "i_evidence": ["s_evidence"] * 4 + ["s_partial"], "i_pressure": ["s_doubt", "s_doubt", "s_anger"],
             "i_threat": ["s_fear", "s_fear", "s_silent", "s_partial"], "i_comfort": ["s_soft", "s_soft", "s_partial"],
             "i_contra": ["s_contra"], "i_close": ["s_close"], "i_alibi": ["s_confirm"], "i_silence": ["s_silent", "s_fear", "s_soft"],
             "i_dig": ["s_dig"], "i_bargain": ["s_wait", "s_consider"], "i_thanks": ["s_thanks"], "i_doubtback": ["s_doubt", "s_silent", "s_wait"],
             "i_anger": ["s_side"]}
    follow_up = {"s_alibi": ["i_alibi", "i_alibi", "i_evidence"], "s_confirm": ["i_partner", "i_evidence", "i_contra"],
                 "s_silent": ["i_silence", "i_silence", "i_pressure"], "s_partial": ["i_dig"], "s_dig": ["i_offer", "i_comfort"],
                 "s_bargain": ["i_bargain"], "s_consider": ["i_pressure", "i_close"], "s_wait": ["i_close", "i_pressure"],
                 "s_refuse": ["i_pressure", "i_threat"], "s_confess": ["i_thanks"], "s_thanks": ["i_close"], "s_fear": ["i_comfort", "i_offer"],
                 "s_soft": ["i_offer", "i_pressure"], "s_doubt": ["i_doubtback"], "s_anger": ["i_anger"], "s_side": ["i_offer"],
                 "s_partner": ["i_pressure", "i_evidence"], "s_evidence": ["i_threat", "i_contra", "i_offer"], "s_contra": ["i_threat", "i_comfort"]}

    def interview(s: Person, rounds: int, first: bool) -> None:
        o = b if s is a else a
        me = own[s.name]
        where = w.talk.pick("room", f)
        text = r.choice(["{where}. {q} questions {s} alone.", "{q} and {s} sit in {where}. {weather}",
                         "{s} is brought to {where}. {o} cannot hear this. {weather}", "{q} questions {s}. {weather}",
                         "Now it is {s}'s turn. {q} waits in {where}.", "{weather} {q} closes the door and looks at {s}."])
        w.scene(tidy(w.talk.fill(text, {"where": where, "q": q.name, "s": s.name, "o": o.name})), [q, s])
        pool = ["i_partner", "i_evidence", "i_offer", "i_offer", "i_pressure", "i_threat", "i_comfort", "i_contra"]
        r.shuffle(pool)
        used: set[str] = set()
        intent = "i_open" if first else r.choice(["i_offer", "i_pressure", "i_contra", "i_comfort", "i_evidence"])
        for left in range(rounds, 0, -1):
            w.say(q, intent, [q, s], 0.15, you=s.name, other=o.name, yjob=me["job"], evidence=me["evidence"],
                  yalibi=me["alibi"].replace("my ", "your "))
            used.add(intent)
            if intent == "i_offer":
                t = trust[s.name] + {"loyal": 0.35, "stubborn": 0.2, "greedy": -0.3, "nervous": -0.2, "cunning": -0.1}.get(s.temper, 0)
                bank = r.choice(["s_refuse", "s_refuse", "s_silent"] if t > 0.55 else ["s_consider", "s_bargain", "s_refuse"] if t > 0.3
                                else ["s_bargain", "s_confess", "s_confess"])
            else:
                bank = r.choice(reply[intent])
            if s.name in talked and bank in ("s_silent", "s_doubt", "s_refuse"):
                bank = r.choice(["s_anger", "s_partial"]) if intent == "i_pressure" else "s_thanks"
            if bank == "s_confess":
                talked.add(s.name)
            w.say(s, bank, [q, s], 0.3, **{**me, "evidence": swap(me["evidence"]), "you": q.name})
            options = [x for x in follow_up.get(bank, []) if x not in used]
            fresh = [x for x in pool if x not in used] or pool
            if left == 2 and r.random() < 0.6:
                intent = "i_close"
            else:
                intent = r.choice(options) if options and r.random() < 0.75 else fresh[0]

    def choice(s: Person) -> None:
        """The suspect's final word on silence or talk, in private."""
        o = b if s is a else a
        w.scene(w.talk.fill(r.choice(["{s} must choose now: silence or betrayal. {weather}", "The last interview of {s}. {o} cannot hear it.",
                                      "{weather} It is time for {s} to decide."]), {"s": s.name, "o": o.name}), [q, s])
        w.say(q, "h_ask", [q, s], 0.1, you=s.name, other=o.name)
        t = trust[s.name] + {"loyal": 0.35, "stubborn": 0.2, "greedy": -0.3, "nervous": -0.2, "cunning": -0.1}.get(s.temper, 0)
        talk = s.name in talked or t < 0.4
        if talk:
            talked.add(s.name)
        plain = r.choice([" I talk.", " So I talk.", ""]) if talk else r.choice([" I stay silent.", " So I stay silent.", ""])
        w.say(s, "h_talk" if talk else "h_silent", [q, s], 0.1, **{**own[s.name], "you": q.name})
        w.events[-1].text += plain

    def yard(n: int) -> None:
        w.scene(w.talk.fill(r.choice(["{A} and {B} meet in the yard. Nobody else can hear them.", "In the yard behind the cells, {A} and {B} walk in a circle. {weather}",
                "{A} and {B} have ten minutes alone. {weather}", "A short break. {A} and {B} stand by the fence and whisper.",
                "Night falls. {A} and {B} share a cell. {quest} is far away."]), f), [a, b])
        x, z = (a, b) if r.random() < 0.5 else (b, a)
        follow = {"y_greet": ["y_assure"], "y_assure": ["y_trust", "y_hide", "y_fear", "y_suspect"], "y_trust": ["y_swear", "y_swear", "y_fear"],
                  "y_swear": ["y_hide", "y_comfort", "y_threat"], "y_fear": ["y_comfort", "y_swear", "y_trust"], "y_suspect": ["y_deny"],
                  "y_deny": ["y_trust", "y_threat", "y_fear"], "y_threat": ["y_swear", "y_suspect", "y_deny"],
                  "y_comfort": ["y_trust", "y_fear", "y_hide"], "y_hide": ["y_hide_a"], "y_hide_a": ["y_trust", "y_comfort", "y_threat"]}
        bank = "y_greet"
        for _ in range(n):
            w.say(x, bank, [a, b], 0.3, you=z.name, **own[x.name])
            bank = r.choice(follow[bank])
            x, z = z, x

    order = [a, b] if r.random() < 0.5 else [b, a]
    scale = 2 if long else 1
    interview(order[0], r.randint(3, 6) * scale, True)
    interview(order[1], r.randint(3, 6) * scale, True)
    for _ in range(r.randint(2, 4) if long else 1):
        if r.random() < 0.75:
            yard(r.choice([4, 6, 6, 8, 10]) * scale)
        if r.random() < 0.7:
            r.shuffle(order)
            for s in order:
                interview(s, r.randint(2, 5), False)
    if r.random() < 0.6:
        for s in order:
            choice(s)
    if r.random() < 0.7:
        if r.random() < 0.5 and judge is j:
            w.scene(w.talk.fill("{A}, {B} and {quest} sit at one table, and {J} listens. {weather}", {**f, "J": j.name}), everyone)
        else:
            w.scene(w.talk.fill("Everybody is in the same room now. {weather}", f), everyone)
        for s in order[: r.randint(1, 2)]:
            o = b if s is a else a
            w.say(q, "c_open", everyone, 0.2, you=s.name, other=o.name)
            if s.name in talked or r.random() < 0.15:
                talked.add(s.name)
                w.say(s, "c_accuse", everyone, 0.3, you=q.name, **own[s.name])
            else:
                w.say(s, "c_deny", everyone, 0.4, you=q.name, **own[s.name])
            w.say(o, "c_react", everyone, 0.3, you=s.name, **own[o.name])
            w.say(s, "c_sorry" if s.name in talked else "y_comfort", everyone, 0.2, you=o.name, **own[s.name])
    if judge is j:
        if r.random() < 0.5:
            w.scene(w.talk.fill("{J} gives the verdict. {weather}", {**f, "J": j.name}), everyone)
        bank = "v_both" if len(talked) == 2 else "v_one" if talked else "v_both_silent"
        t = next(iter(talked), a.name)
        extra = {"T": t, "S": b.name if t == a.name else a.name, **own[a.name]}
        asker = q
        for ask, ans in (("v_ask", bank), ("v_more_ask", "v_more"), ("v_more_ask", "v_last"))[: r.randint(1, 3)]:
            w.say(asker, ask, everyone, 0.1, you=j.name)
            w.say(j, ans, everyone, 0.2, **{**extra, "you": asker.name})
            asker = r.choice([q, a, b])
        w.say(r.choice([q, a, b]), "p_accept", everyone, 0.3, you=j.name, other="nobody")
    return w


def common(w: World) -> None:
    r = w.rng
    w.facts = {k: r.choice(BANKS[k]) for k in ("thing", "house", "spot", "day", "month", "event", "street")}
    w.facts["num"] = r.choice(NUMBERS)


def person_with_job(w: World, note: str = "") -> Person:
    job = w.rng.choice(BANKS["job"])
    p = w.add(f"a {job}{note}")
    p.goals.append("")
    w.facts["job:" + p.name] = job
    return p


def gossip(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    ps = [person_with_job(w) for _ in range(r.randint(3, 5))]
    src, keeper, third = ps[:3]
    target = r.choice(ps[3:] or [w.add("absent")])
    t2 = w.add("absent")
    f.update({"T": target.name, "T2": t2.name, "F": src.name})
    f["secret"] = w.talk.pick("secretverb", f)
    for word, other in (("has ", "have "), ("is ", "are "), ("was ", "were ")):
        f.setdefault("ysecret", "")
        if f["secret"].startswith(word):
            f["ysecret"] = f["secret"].replace(word, other, 1)
    if not f["ysecret"]:
        f["ysecret"] = "have a secret"
    for p in ps:
        o = r.choice([x for x in ps if x is not p])
        p.goals = [r.choice([f"{o.name} is your best friend.", f"You do not trust {o.name}.", "You love stories.", f"You are preparing {f['event']}.", ""])]
    if r.random() < 0.5:
        src.goals.append(f"You know that {target.name} {f['secret']}.")
    keeps = r.random() < 0.6
    keeper.goals.append(r.choice(["You never break a promise.", "You can keep a secret."]) if keeps else r.choice(["You cannot keep a secret.", "You talk too much.", ""]))
    place = lambda: w.talk.pick("spot", f)  # noqa: E731
    say = lambda p, bank, to, who, c=0.3: w.say(p, bank, who, c, you=to.name, yjob=f.get("job:" + to.name, "new"), other=f["F"])  # noqa: E731
    two = [src, keeper]
    w.scene(tidy(w.talk.fill(r.choice([f"{src.name} and {keeper.name} meet at {{spot}}. {{weather}}", f"{keeper.name} is alone with {src.name} near {{spot}}. Nobody else can hear them."]), {})), two)
    say(src, "g_hello", keeper, two); say(keeper, "g_hello_a", src, two)
    say(src, "g_tell", keeper, two); say(keeper, "g_react", src, two)
    if r.random() < 0.7:
        say(src, "g_more", keeper, two); say(keeper, r.choice(["g_react", "r_end_a"]), src, two)
    two = [third, keeper]
    w.scene(tidy(f"Later, {third.name} meets {keeper.name} at {r.choice(BANKS['spot'])}. {r.choice(BANKS['weather'])}"), two)
    if r.random() < 0.5:
        say(third, "g_hello", keeper, two); say(keeper, "g_hello_a", third, two)
    say(third, "g_ask", keeper, two)
    say(keeper, "g_hide", third, two)
    if r.random() < 0.8:
        say(third, "g_push", keeper, two)
        say(keeper, "g_hide" if keeps else "g_leak", third, two)
        if not keeps:
            say(third, "g_react", keeper, two)
    if r.random() < 0.6:
        pair = [third, src]
        w.scene(tidy(f"{third.name} walks home with {src.name}. {r.choice(BANKS['moods'])}"), pair)
        say(third, "g_hello", src, pair); say(src, "g_hello_a", third, pair)
        say(third, "r_now", src, pair)
        w.say(src, "r_now_a", pair, 0.3, you=third.name, job=f["job:" + src.name])
    here = [p for p in ps]
    if target in ps:
        w.scene(f"{', '.join(p.name for p in here[:-1])} and {here[-1].name} sit around one table. {r.choice(BANKS['weather'])}", here)
        say(target, "g_all", keeper, here)
        say(keeper, "g_all_hide" if keeps else "g_all_confess", target, here)
        if keeps:
            say(src, "g_all_hide", target, here)
        say(target, "g_end", keeper, here)
    for p in ps[: r.randint(1, 3)]:
        o = r.choice([x for x in here if x is not p])
        say(p, "r_end", o, here); say(o, "r_end_a", p, here)
    return w


def debate(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    m = w.add("the one who leads the debate and judges it fairly", MODERATORS, "calm")
    p, c = person_with_job(w), person_with_job(w)
    f["house2"] = r.choice(BANKS["house2"])
    f["motion"] = w.talk.pick("motion", f)
    args = {p.name: [w.talk.fill(x, {}) for x in r.sample(BANKS["pro_arg"], 4)], c.name: [w.talk.fill(x, {}) for x in r.sample(BANKS["con_arg"], 4)]}
    p.goals, c.goals = [f"You argue {f['motion']}.", f"You believe that {args[p.name][0]}."], [f"You argue against the motion {f['motion']}.", f"You believe that {args[c.name][0]}."]
    m.goals = ["You ask both sides and name the winner at the end."]
    all3 = [m, p, c]
    w.scene(w.talk.fill(f"A debate in the {f['house']}. {p.name} is for the motion, {c.name} is against it. {m.name} leads the evening. {{weather}}", {}), all3)
    w.say(m, "d_open", all3, 0.1, you=p.name)
    used = {p.name: args[p.name][0], c.name: args[c.name][0]}
    w.say(p, "d_pro", all3, 0.3, you=m.name, my_arg=used[p.name], my_arg2=args[p.name][1])
    w.say(m, "d_question", all3, 0.1, you=c.name, yarg2=used[p.name])
    w.say(c, "d_con", all3, 0.3, you=m.name, my_arg=used[c.name], my_arg2=args[c.name][1])
    for i in range(r.randint(2, 5) * (4 if long else 1)):
        if r.random() < 0.3:
            w.scene(r.choice(BANKS["moods"]), all3)
        for s, o in ((p, c), (c, p)):
            if r.random() < 0.4:
                w.say(m, "d_question", all3, 0.1, you=s.name, yarg2=used[o.name])
            new = args[s.name][(i + 1) % 4]
            w.say(s, r.choice(["d_rebut", "d_rebut", "d_concede"]), all3, 0.3, you=o.name, my_arg=new, yarg=used[o.name])
            used[s.name] = new
    win, lose = (p, c) if r.random() < 0.5 else (c, p)
    w.scene(f"{m.name} closes the debate. {r.choice(BANKS['moods'])}", all3)
    w.say(m, "d_verdict", all3, 0.0, W=win.name, L=lose.name, warg=used[win.name], larg=used[lose.name])
    w.say(lose, "p_accept", all3, 0.3, you=m.name) if r.random() < 0.3 else w.say(lose, "g_end", all3, 0.3, you=win.name)
    w.say(win, "r_end_a", all3, 0.2, you=lose.name)
    return w


def negotiation(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    buyer, seller, friend = person_with_job(w), person_with_job(w), person_with_job(w)
    low, high = r.randint(5, 40) * 2, 0
    high = low + r.randint(8, 40)
    p0 = high
    buyer.goals = [f"You want to buy the {f['thing']} and pay at most {low + r.randint(2, 30)} coins."]
    seller.goals = [f"You own the {f['thing']} and want as much money as you can get."]
    friend.goals = [f"You are a friend of {buyer.name}."]
    two = [buyer, seller]
    w.scene(tidy(w.talk.fill(f"{buyer.name} visits {seller.name} in {{street}} Street. The {f['thing']} stands on the table. {{weather}}", {})), two)
    w.say(buyer, "n_open", two, you=seller.name)
    w.say(seller, "n_price", two, you=buyer.name, p=str(high))
    price = high
    for _ in range(r.randint(2, 5)):
        w.say(buyer, "n_counter", two, you=seller.name, p=str(low), yp=str(high))
        price = low
        if high - low < 4:
            break
        high = r.randint((low + high) // 2, high - 1)
        w.say(seller, "n_counter_s", two, you=buyer.name, p=str(high), yp=str(low))
        low = r.randint(low + 1, max(low + 1, (low + high) // 2))
    last = w.events[-1]
    price = high if last.speaker == seller.name else low
    closer, o = (buyer, seller) if last.speaker == seller.name else (seller, buyer)
    w.say(closer, "n_close", two, you=o.name, p=str(price))
    w.say(o, r.choice(["r_end_a", "n_close"]), two, you=closer.name, p=str(price))
    for teller in (buyer, seller)[: r.randint(1, 2)]:
        o = seller if teller is buyer else buyer
        pair = [friend, teller]
        w.scene(tidy(f"Later, {friend.name} meets {teller.name} at {r.choice(BANKS['spot'])}. {r.choice(BANKS['moods'])}"), pair)
        if r.random() < 0.6:
            w.say(friend, "g_hello", pair, you=teller.name, yjob=f["job:" + teller.name])
            w.say(teller, "g_hello_a", pair, you=friend.name)
        w.say(friend, "n_after", pair, you=teller.name)
        w.say(teller, "n_after_a", pair, 0.2, you=friend.name, p=str(price), p0=str(p0), O=o.name)
        w.say(friend, "r_now", pair, you=teller.name, yjob=f["job:" + teller.name])
        w.say(teller, "r_now_a", pair, 0.2, you=friend.name, job=f["job:" + teller.name])
    return w


def planning(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    ps = [person_with_job(w) for _ in range(r.randint(3, 6))]
    lead = ps[0]
    lead.goals = [f"You organise {f['event']}."]
    w.scene(tidy(f"{', '.join(p.name for p in ps[:-1])} and {ps[-1].name} meet at {r.choice(BANKS['spot'])} to plan {f['event']}. {r.choice(BANKS['weather'])}"), ps)
    task = {p.name: w.talk.fill(t, {}) for p, t in zip(ps, r.sample(BANKS["task"], len(ps)))}
    w.say(lead, "pl_open", ps, 0.2, you=ps[1].name)
    for i, p in enumerate(ps[1:], 1):
        w.say(p, "pl_take", ps, 0.3, you=lead.name, task=task[p.name])
        if i + 1 < len(ps):
            w.say(lead, "pl_thanks", ps, 0.1, you=p.name, ytask=task[p.name], next=ps[i + 1].name)
        else:
            w.say(lead, "pl_take", ps, 0.2, you=p.name, task=task[lead.name])
    for _ in range(r.randint(2, 4) * (3 if long else 1)):
        w.scene(tidy(r.choice([r.choice(BANKS["moods"]), f"The next day at {r.choice(BANKS['spot'])}. {r.choice(BANKS['weather'])}", f"{f['event']} is near. {r.choice(BANKS['moods'])}"])), ps)
        for _ in range(r.randint(2, 5)):
            x, z = r.sample(ps, 2)
            t = r.choice(ps)
            k = r.random()
            if k < 0.6:
                w.say(x, "pl_ask", ps, 0.2, you=z.name, T=t.name, qtask=task[t.name])
                if t is z:
                    w.say(z, "pl_late_a", ps, 0.2, you=x.name, task=task[z.name])
                else:
                    w.say(z, "pl_ans", ps, 0.2, you=x.name, T=t.name, ttask=task[t.name])
            elif k < 0.8:
                w.say(x, "pl_when", ps, 0.2, you=z.name)
                w.say(z, "pl_when_a", ps, 0.2, you=x.name)
            else:
                w.say(x, "pl_late", ps, 0.2, you=z.name, ytask=task[z.name], ytask2="To " + task[z.name])
                w.say(z, "pl_late_a", ps, 0.2, you=x.name, task=task[z.name])
    return w


def reunion(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    ps = [person_with_job(w) for _ in range(r.randint(2, 5))]
    did = {p.name: w.talk.fill(t, {k: f[k] for k in ("thing", "event")}) for p, t in zip(ps, r.sample(BANKS["did"], len(ps)))}
    for p in ps:
        o = r.choice([x for x in ps if x is not p])
        p.goals = [r.choice([f"You remember that {o.name} {did[o.name]}.", f"{o.name} owes you {r.randint(3, 90)} coins.", f"Once you {did[p.name]}.", f"You are glad to see {o.name}.", ""])]
    place = f["spot"]
    w.scene(tidy(f"After {f['num']} years, {', '.join(p.name for p in ps[:-1])} and {ps[-1].name} meet again at {place}. {r.choice(BANKS['weather'])}"), ps)
    pairs = {"r_open": "r_mem", "r_mem": "r_mem_a", "r_now": "r_now_a", "r_grudge": "r_grudge_a", "r_end": "r_end_a"}
    seq = ["r_open"] + [r.choice(["r_mem", "r_now", "r_grudge"]) for _ in range(r.randint(3, 12) * (4 if long else 1))] + ["r_end"]
    for i, bank in enumerate(seq):
        if i and r.random() < 0.25:
            w.scene(r.choice(BANKS["moods"]), ps)
        x, z = r.sample(ps, 2)
        g = {"you": z.name, "ydid": did[z.name], "idid": did[x.name], "yjob": f["job:" + z.name], "job": f["job:" + x.name]}
        w.say(x, bank, ps, 0.3, **g)
        h = {"you": x.name, "ydid": did[x.name], "idid": did[z.name], "yjob": f["job:" + x.name], "job": f["job:" + z.name]}
        w.say(z, pairs[bank], ps, 0.3, **h)
    return w


def expert(r: random.Random, long: bool = False) -> World:
    """An article in the expert's context, and questions about it by several visitors."""
    w = World(r)
    common(w)
    facts, text, topic = article(r)
    for _ in range(r.choice((0, 0, 1, 2)) + (r.randint(1, 5) if long else 0)):  # longer articles: further subjects
        more, extra, other = article(r)
        facts += [(f"in the part about {other}: {q}", ans) for q, ans in more]
        text += f"\n{tidy('now to ' + other)}. {extra}"
    e = w.add(r.choice(["an expert who has read one article", "a scholar", "a guide", "an expert who answers from the article only", f"a specialist on {topic}"]),
              ["Professor", "Doctor", "Guide", "Librarian", "Expert", "Scholar"])
    e.goals = [r.choice(["You answer from the article.", "You never invent facts.", "You answer questions clearly.", ""])]
    asks = [person_with_job(w) for _ in range(r.randint(1, 3))]
    head = r.choice(["ARTICLE\n", "THE ARTICLE\n", "You have read this article:\n", f"{topic.capitalize()}\n", ""])
    w.scene(head + text, [e])
    everybody = [e] + asks
    w.scene(tidy(f"{', '.join(p.name for p in asks)} {'visit' if len(asks) > 1 else 'visits'} {e.name} to ask about {topic}. {r.choice(BANKS['weather'])}"), everybody)
    order = [r.choice(facts) for _ in range(r.randint(4, 12) * (3 if long else 1))]
    for q, ans in order:
        p = r.choice(asks)
        if r.random() < 0.1:
            q, ans = r.choice([("what do people there eat for breakfast?", ""), ("who is the richest person there?", ""), ("what is the name of the king's dog?", "")])
            ans = r.choice(["The article does not say that, {you}. I would only be guessing.", "I cannot tell you, {you}. It is not in what I have read."])
        lead = r.choice(["", "", f"{e.name}, ", "Please tell me, ", "One more question: ", f"Good day, {e.name}. "])
        w.events.append(Event(p.name, tidy(lead + q), {x.name for x in everybody}))
        tail = r.choice(["", "", f" That is what the article says, {p.name}.", f" I hope that helps, {p.name}.", f" A good question, {p.name}."])
        w.events.append(Event(e.name, tidy(ans.replace("{you}", p.name) + tail), {x.name for x in everybody}))
        if r.random() < 0.2:
            w.scene(r.choice(BANKS["moods"]), everybody)
    return w


def article(r: random.Random) -> tuple[list[tuple[str, str]], str, str]:
    """Question/answer pairs, the text they come from, and its topic."""
    t = Talk(r)
    place = invented(r)
    facts: list[tuple[str, str]] = []
    paras: list[str] = []
    kind = r.choice(["town", "animal", "machine", "person"])
    topic = {"town": f"the town of {place}", "animal": f"the {place.lower()}", "machine": f"the {place} engine", "person": f"the life of {place}"}[kind]
    n = lambda a, b: str(r.randint(a, b))  # noqa: E731
    c = r.choice
    year, year2 = n(1100, 1800), n(1801, 1990)
    who, who2 = invented(r), c(NAMES)
    stuff, stuff2 = r.sample("salt wool silver wine copper timber fish honey leather glass paper coal cloth tea".split(), 2)
    w1, w2, w3 = r.sample(WORDS, 3)
    if kind == "town":
        rows = [(f"{place} was founded in {year} by {who}.", f"when was {place} founded?", f"it was founded in {year}, by {who}."),
                (f"About {n(2, 90)},000 people live there today.", "how many people live there?", None),
                (f"The town lies on the river {w1.capitalize()}.", "on which river does the town lie?", f"the town lies on the river {w1.capitalize()}."),
                (f"For a long time the town lived from {stuff}.", "what did the town live from?", f"for a long time it lived from {stuff}."),
                (f"In {year2} a fire destroyed the {{house}}.", f"what happened in {year2}?", None),
                (f"Its best known building is the {w2} tower, which is {n(20, 140)} metres high.", "what is its best known building?", None),
                (f"Every {c(BANKS['month'])} the people celebrate the feast of the {w3}.", "what do the people celebrate?", None),
                (f"The first mayor was {who2}, a {{job}}.", "who was the first mayor?", None),
                (f"A railway reached {place} {n(3, 40)} years after the fire.", f"when did the railway reach {place}?", None)]
    elif kind == "animal":
        a = "the " + place.lower()
        rows = [(f"{a} lives in {c(['dry forests', 'cold lakes', 'high mountains', 'warm rivers', 'deep caves', 'open fields'])} in the {c(['north', 'south', 'east', 'west'])}.", f"where does {a} live?", None),
                (f"{a} eats mostly {c(['ants', 'grass', 'small fish', 'berries', 'roots', 'snails'])} and hunts at {c(BANKS['time'])}.", f"what does {a} eat?", None),
                (f"An adult weighs {n(2, 90)} kilograms and is {n(20, 200)} centimetres long.", "how much does an adult weigh?", None),
                (f"Its fur is {c(COLOURS)} with {c(COLOURS)} stripes.", "what does its fur look like?", None),
                (f"It was first described by {who} in {year2}.", "who described it first?", None),
                (f"It lives for about {n(3, 60)} years.", "how long does it live?", None),
                (f"The young stay with the mother for {n(2, 30)} weeks.", "how long do the young stay with the mother?", None),
                (f"Its only enemy is the {c(['eagle', 'wolf', 'snake', 'fox', 'owl'])}.", "what is its enemy?", None),
                (f"Fewer than {n(2, 90)},000 of them are left, because of the trade in {stuff}.", "how many of them are left?", None)]
    elif kind == "machine":
        rows = [(f"The {place} engine was built in {year2} by {who}.", f"who built the {place} engine?", f"it was built by {who} in {year2}."),
                (f"It burns {stuff} and drinks {n(5, 90)} litres of water an hour.", "what does it burn?", None),
                (f"It weighs {n(2, 80)} tons and has {c(NUMBERS)} wheels.", "how heavy is it?", None),
                (f"Its first name was the {w1}.", "what was its first name?", None),
                (f"The first test, at {{spot}}, failed because of a broken {w2}.", "why did the first test fail?", None),
                (f"It was painted {c(COLOURS)} so that it could be seen in fog.", "which colour was it painted?", None),
                (f"{n(3, 60)} of them were sold, most of them to {who2}.", "how many of them were sold?", None),
                (f"The last one stands in the {{house}} of {invented(r)}.", "where is the last one today?", None),
                (f"Its driver had to pull the {w3} lever before the start.", "what did the driver have to pull?", None)]
    else:
        rows = [(f"{place} was born in {year2} in a village called {who}.", f"where was {place} born?", f"{place} was born in a village called {who}."),
                (f"The father was a {{job}} and the mother a {{job}}.", "what were the parents?", None),
                (f"At the age of {n(9, 30)}, {place} left home with {n(2, 80)} coins.", f"how old was {place} when leaving home?", None),
                (f"The first book was called The {w1.capitalize()} and the {w2.capitalize()}.", "what was the first book called?", f"it was called The {w1.capitalize()} and the {w2.capitalize()}."),
                (f"{place} married {who2} in {{month}}.", f"whom did {place} marry?", None),
                (f"For {n(2, 20)} years {place} traded in {stuff} and {stuff2}.", f"what did {place} trade in?", None),
                (f"The great rival was {invented(r)}, who lived at {{spot}}.", "who was the great rival?", None),
                (f"{place} kept a {c(COLOURS)} {c(['parrot', 'cat', 'horse', 'goat', 'dog'])} in the kitchen.", f"which animal did {place} keep?", None),
                (f"{place} died at the age of {n(50, 99)} after eating too many {c(['plums', 'oysters', 'cherries', 'nuts'])}.", f"how did {place} die?", None)]
    r.shuffle(rows)
    filler = ["Not much is known about the reasons.", "Older books tell it differently.", "People still talk about it.", "This was unusual at the time.",
              "There are several stories about it.", "It changed many things.", "Few visitors know this.", "Letters from that time confirm it.",
              "The details were written down much later.", "Children learn it at school."]
    para: list[str] = []
    for s, q, ans in rows[: r.randint(5, 9)]:
        s = tidy(t.fill(s, {}))
        para.append(s)
        facts.append((q, ans or s))
        for _ in range(r.choice((0, 0, 1, 1, 2, 4))):
            para.append(c(filler))
        if r.random() < 0.3:
            paras.append(" ".join(para)); para = []
    paras.append(" ".join(para))
    return facts, "\n".join(p for p in paras if p), topic


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
    clerk = r.choice([f"You are {name}, a keeper of lists. You remember every pair.", f"You are {name}. You have a perfect memory.",
                      f"You are {name}, a clerk with a good memory. Answer with the word only."])
    whole = r.random() < 0.4  # answer with the whole pair, or with the word only
    if whole:
        clerk = clerk.replace("with the word only", "with the whole pair") + r.choice(["", " You repeat the whole pair."])
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
            lines.append(r.choice(BANKS["moods"]) if r.random() < 0.5 else f"{r.choice(people)}: {tidy(Talk(r).fill(r.choice(BANKS['d_flour'] + BANKS['cl_calm']), {}))}")
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
                q = r.choice([f"{['', 'One', 'Two', 'Three'][hops]} steps from {k}?", f"Where does {k} end?", f"End of the chain from {k}?"])
                a = v + "."
        else:
            q = {0: (fmt or "").replace("{v}", "?").format(k=k), 1: f"What goes with the {k}?", 2: f"What is behind the {k}?", 3: f"{k} = ?"}[form]
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
        probes.append(Probe(head + "<|im_start|>assistant\n", answer, hops, told[answer[:-1]], r.sample(others, min(5, len(others)))))
    return probes


PLAYS = [(interrogation, 40), (gossip, 12), (debate, 9), (negotiation, 8), (planning, 10), (reunion, 10), (expert, 11)]


def play(r: random.Random, long: bool) -> list[str]:
    """Views of one random play, for one or two of its agents."""
    w = r.choices([p for p, _ in PLAYS], [k for _, k in PLAYS])[0](r, long)
    speakers = sorted({e.speaker for e in w.events if e.speaker})
    chosen = r.sample(speakers, min(len(speakers), 2))
    return [v for v in (w.view(w.people[s]) for s in chosen) if v]


def roll_call(r: random.Random) -> str:
    """A drill in names: short lines by people with odd names, and short answers that call the right ones by name."""
    w = World(r)
    me, *others = [w.add("")  for _ in range(r.randint(3, 5))]
    out = [f"<|im_start|>system\nYou are {me.name}, {r.choice(['polite', 'good with names', 'a ' + r.choice(BANKS['job'])])}.<|im_end|>\n"]
    for _ in range(r.randint(6, 12)):
        pending = []
        if r.random() < 0.4:
            a, b = r.sample(others, 2)
            pending.append(r.choice([f"{a.name} and {b.name} come in.", f"{me.name} is alone with {a.name}.", f"{a.name}, {b.name} and {me.name} meet. {r.choice(BANKS['weather'])}"]))
        speakers = r.sample(others, r.randint(1, 2))
        for p in speakers:
            pending.append(f"{p.name}: {tidy(w.talk.fill(r.choice(BANKS['d_flour'] + BANKS['cl_calm'] + ['Good day, {me}.', 'Listen to me, {me}.', 'What do you think, {me}?']), {'me': me.name}))}")
        last, other = speakers[-1].name, r.choice([x for x in others if x is not speakers[-1]]).name
        pending.append(f"[Your turn, {me.name}.]")
        said = r.choice(["Yes, {a}.", "No, {a}.", "Thank you, {a}.", "I hear you, {a}.", "{a}, that is true.", "Good day, {a}.", "I am {me}, and you are {a}.",
                         "It was {a} who said that.", "You are right, {a}.", "{a} spoke last.", "Well, {a}, I will think about it.", "Ask {b}, {a}.",
                         "{a}, where is {b}?", "I trust you, {a}, and I trust {b}."])
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


def documents(seed: int, recall_share: float = 0.35, long: bool = False) -> Iterator[str]:
    """Endless stream of documents."""
    r = random.Random(seed)
    while True:
        if r.random() < recall_share:
            hops = r.choices((1, 2, 3), (6, 3, 2))[0]
            pairs = r.choice((10, 24, 40, 80, 120, 160)) if long else r.choice((3, 4, 6, 8, 12, 16, 24, 32))
            yield recall(r, pairs, r.randint(4, 14) if not long else r.randint(8, 40), hops)
        else:
            yield from play(r, long)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--chars", type=int, default=60_000_000)
    p.add_argument("--recall", type=float, default=0.35, help="share of recall documents")
    p.add_argument("--long", action="store_true", help="longer recall lists")
    p.add_argument("--drill", action="store_true", help="short recall exercises only")
    p.add_argument("--out", type=Path)
    p.add_argument("--show", type=int, default=0, help="print this many documents and stop")
    a = p.parse_args()
    source = drills(a.seed) if a.drill else documents(a.seed, a.recall, a.long)
    if a.show:
        for _ in range(a.show):
            print(next(source), END, sep="")
        return
    total = 0
    with a.out.open("w") if a.out else sys.stdout as f:
        while total < a.chars:
            d = next(source)
            f.write(d + END)
            total += len(d)


if __name__ == "__main__":
    main()
