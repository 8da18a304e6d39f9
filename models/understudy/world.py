"""People, facts and talk: phrase expansion, and a play's events as each agent sees them."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

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

NAMES = """Pia Rolf Anna Tom Lena Karl Maria Jonas Nina Paul Sofia Peter Clara Hugo Ida Max Emma Leo Julia Felix Rosa Oscar Greta
Simon Vera Anton Lucy Martin Olga Frank Helen Victor Mona George Alma Henry Edith Walter Irene Samuel Nora Arthur Ruth Daniel
Grace Robert Laura Thomas Ella Richard Mary James Susan David Linda Michael Karen Edward Jane William Kate Andrew Lisa Philip
Amy Stephen Sarah Nathan Rachel Adam Hannah Oliver Chloe Jack Lily Harry Ruby Charlie Freya Noah Ivy Ethan Zoe Lucas Mia Omar
Fatima Yusuf Leila Ali Amina Hassan Zahra Chen Mei Wei Ling Hiro Yuki Kenji Aiko Ravi Priya Arjun Anita Ivan Tanya Boris Katya
Pablo Carmen Diego Elena Luis Lucia Jorge Ines Pedro Marta Bruno Chiara Enzo Giulia Luca Paola Pierre Camille Jean Amelie
Otto Frieda Kurt Heidi Bjorn Astrid Lars Ingrid Sven Sigrid Niko Eleni Yannis Dora Bela Zsofia Tibor Kata Kwame Ama Kofi Esi
Winston Gloria Marvin Dolores Stanley Beatrice Ralph Agnes Gilbert Mabel Barney Trudy Monty Tess Wes Cleo Dexter Faye Gus Hattie
Marco Danny Alice Bob Eve Ben Ann Ada Sami Mira Jakob Emil Edda Dov Sam Joe Dan Tim Jim Bill Ned Ted Fred Will Nick Rick Steve Mike
Matt Mark Luke Josh Kevin Brian Eric Jason Ryan Gary Larry Scott Greg Dennis Jerry Tyler Aaron Jose Juan Carlos Miguel Antonio Mario
Sara Jessica Emily Ashley Jennifer Elizabeth Barbara Patricia Margaret Nancy Betty Sandra Donna Carol Sharon Michelle Amanda Melissa
Deborah Rebecca Kathy Angela Anne Brenda Pam Nicole Sally Molly Polly Jenny Maya Claire Alex Robin Kim Jordan Casey Morgan Lea Eva
Ana Isabel Teresa Rita Marie Louise Sophie Alina Irina Sasha Misha Dmitri Viktor Olaf Erik Nils Hans Fritz Klaus Uwe Bernd Ursula
Gerda Elsa Theo Milo Finn Nadia Samir Karim Layla Rania Tariq Farah Dev Asha Kiran Neha Rohan Sanjay Jin Min Yan Hana Ken Naomi""".split()
TITLES = """Inspector Detective Sergeant Captain Judge Jailer Constable Magistrate Officer Commissioner Chief Prosecutor Lieutenant
Warden Sheriff Guard""".split()
MODERATORS = "Moderator Chair Host Teacher Mayor Referee Editor".split()
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
            elif r.random() < 0.85:
                n = r.choice(NAMES)
            else:
                n = invented(r)
            if titles and n not in titles and r.random() < 0.4:
                n = r.choice(titles) + " " + n
            if n not in self.people:
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
        style = r.choice(
            [
                "Speak in one to three short sentences.",
                "Answer briefly and in character.",
                "Keep your replies short.",
                "Stay in character.",
                "Say one to three sentences at a time.",
                "",
            ]
        )
        first = r.choice(
            [
                f"You are {p.name}, {p.role}. You are {temper}.",
                f"You are {p.name}. You are {p.role}, {temper}.",
                f"You are {p.name}, {p.role}, {temper}.",
            ]
        )
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
