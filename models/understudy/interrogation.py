"""The play the understudy knows best: a questioner, two suspects, a yard, a confrontation, a judge."""

from __future__ import annotations

import random

from world import BANKS, NUMBERS, TITLES, Person, World, swap, tidy


def interrogation(r: random.Random, long: bool = False) -> World:
    """A questioner, two suspects, a yard, a confrontation and often a verdict."""
    w = World(r)
    q = w.add(
        r.choice(
            [
                "the one who asks the questions",
                "an officer with {n} years of service".replace("{n}", str(r.randint(3, 30))),
                "the one who must solve the case",
                "in charge of this case",
            ]
        ),
        TITLES,
    )
    ja, jb = r.choice(BANKS["job"]), r.choice(BANKS["job"])
    a, b = w.add(f"a {ja} under arrest"), w.add(f"a {jb} under arrest")
    j = w.add(
        "an impartial judge who listens and gives a verdict",
        TITLES + ["Observer", "Arbiter", "Reporter", "Chronicler", "Analyst"],
        r.choice(("calm", "gruff", "gentle")),
    )
    lo, mid = r.randint(1, 3), r.randint(1, 4)
    hib = r.randint(max(mid, lo) + 1, 9)
    hi = r.randint(hib + 1, 20)
    y = lambda k: "year" if k == 1 else "years"  # noqa: E731
    w.facts = {
        "lo": str(lo),
        "years_lo": y(lo),
        "mid": str(mid),
        "years_mid": y(mid),
        "hib": str(hib),
        "hi": str(hi),
        "quest": q.name,
        "thing": r.choice(BANKS["thing"]),
        "house": r.choice(BANKS["house"]),
        "spot": r.choice(BANKS["spot"]),
        "day": r.choice(BANKS["day"]),
        "time": r.choice(BANKS["time"]),
        "num": r.choice(NUMBERS),
        "A": a.name,
        "B": b.name,
    }
    f = w.facts
    own = {}
    for s, o, job in ((a, b, ja), (b, a, jb)):
        own[s.name] = {
            "alibi": w.talk.pick("alibi", f),
            "evidence": w.talk.pick("evidence", f),
            "my_part": w.talk.pick("my_part", f),
            "other": o.name,
            "job": job,
        }
        fit = "You" if r.random() < 0.5 else f"You and {o.name}"
        s.goals = [
            r.choice(
                [
                    f"{fit} took the {f['thing']} from the {f['house']}.",
                    f"{o.name} is your partner.",
                    f"{o.name} and you are suspected of a theft at the {f['house']}.",
                    "You want to go home soon.",
                    f"The {f['thing']} is hidden at {f['spot']}, and only {o.name} knows it too.",
                ]
            ),
            r.choice(
                [
                    f"You say you were {own[s.name]['alibi']}.",
                    "You want to serve as few years as you can.",
                    f"You have known {o.name} for {f['num']} years.",
                    f"You are afraid of {hi} years.",
                    "",
                ]
            ),
        ]
    own[a.name]["Aalibi"] = own[b.name]["Aalibi"] = own[a.name]["alibi"].replace("my ", "a ")
    q.goals = [
        r.choice(
            [
                f"You want to know who took the {f['thing']} from the {f['house']}.",
                "You want a confession.",
                f"You suspect {a.name} and {b.name}.",
                f"You offer {lo} {y(lo)} to the one who talks first.",
            ]
        )
    ]
    everyone = [q, a, b] + ([j] if r.random() < 0.6 else [])
    judge = j if len(everyone) == 4 else q
    rules = r.choice(
        [
            f"The {f['thing']} is gone from the {f['house']}. {a.name} and {b.name} were arrested that night.",
            f"On {f['day']} somebody took the {f['thing']} from the {f['house']}. {q.name} holds {a.name} and {b.name} and means to learn the truth.",
            f"{a.name} and {b.name} are suspected of stealing the {f['thing']}. If one talks, that one serves {lo} {y(lo)} and the other {hi}. "
            f"If nobody talks, both serve {mid}. If both talk, both serve {hib}.",
            f"Two friends, {a.name} and {b.name}, are accused of a theft. Each can stay silent or betray the other.",
        ]
    )
    if r.random() < 0.5:
        rules = w.talk.fill(
            "\n".join(
                [
                    r.choice(["THE FACTS", "WHAT IS KNOWN", "THE FILE", "THE STORY SO FAR"]),
                    "On {day}, around {time}, {somebody|two people|a small gang} {took_it}.",
                    r.choice(
                        [
                            "Near {spot} a patrol found {evid}.",
                            "The {street} Street patrol saw a {job} and a {job} near {spot}.",
                            "The {thing} is worth {n},000 coins and nobody has seen it since.",
                            "A {job} heard voices near {spot}.",
                        ]
                    ),
                    f"{a.name} is a {ja}. {b.name} is a {jb}."
                    if r.random() < 0.6
                    else "{A} and {B} were arrested the next morning.",
                    r.choice(["THE DEAL", "THE CHOICE", "THE PRICE", "WHAT IT COSTS"]),
                    r.choice(
                        [
                            "Both silent: {mid} {years_mid} each.",
                            "Two silent suspects get {mid} {years_mid} each.",
                            "Silence on both sides means {mid} {years_mid} each.",
                        ]
                    ),
                    r.choice(
                        [
                            "Both talking: {hib} years each.",
                            "Two traitors get {hib} years each.",
                            "If each names the other, it is {hib} years for each.",
                        ]
                    ),
                    r.choice(
                        [
                            "One talks: {lo} {years_lo} for that one, {hi} for the other.",
                            "A single traitor gets {lo} {years_lo}, and the friend {hi} years.",
                        ]
                    ),
                ]
            ),
            {**f, "evid": r.choice(BANKS["evid_short"]).join(["a ", ""])},
        )
    w.scene(rules, everyone)
    trust = {a.name: r.random(), b.name: r.random()}
    talked: set[str] = set()
    reply = {
        "i_open": ["s_alibi"] * 5 + ["s_silent"],
        "i_partner": ["s_partner"] * 4 + ["s_silent"],
        "i_evidence": ["s_evidence"] * 4 + ["s_partial"],
        "i_pressure": ["s_doubt", "s_doubt", "s_anger"],
        "i_threat": ["s_fear", "s_fear", "s_silent", "s_partial"],
        "i_comfort": ["s_soft", "s_soft", "s_partial"],
        "i_contra": ["s_contra"],
        "i_close": ["s_close"],
        "i_alibi": ["s_confirm"],
        "i_silence": ["s_silent", "s_fear", "s_soft"],
        "i_dig": ["s_dig"],
        "i_bargain": ["s_wait", "s_consider"],
        "i_thanks": ["s_thanks"],
        "i_doubtback": ["s_doubt", "s_silent", "s_wait"],
        "i_anger": ["s_side"],
    }
    follow_up = {
        "s_alibi": ["i_alibi", "i_alibi", "i_evidence"],
        "s_confirm": ["i_partner", "i_evidence", "i_contra"],
        "s_silent": ["i_silence", "i_silence", "i_pressure"],
        "s_partial": ["i_dig"],
        "s_dig": ["i_offer", "i_comfort"],
        "s_bargain": ["i_bargain"],
        "s_consider": ["i_pressure", "i_close"],
        "s_wait": ["i_close", "i_pressure"],
        "s_refuse": ["i_pressure", "i_threat"],
        "s_confess": ["i_thanks"],
        "s_thanks": ["i_close"],
        "s_fear": ["i_comfort", "i_offer"],
        "s_soft": ["i_offer", "i_pressure"],
        "s_doubt": ["i_doubtback"],
        "s_anger": ["i_anger"],
        "s_side": ["i_offer"],
        "s_partner": ["i_pressure", "i_evidence"],
        "s_evidence": ["i_threat", "i_contra", "i_offer"],
        "s_contra": ["i_threat", "i_comfort"],
    }

    def interview(s: Person, rounds: int, first: bool) -> None:
        o = b if s is a else a
        me = own[s.name]
        where = w.talk.pick("room", f)
        text = r.choice(
            [
                "{where}. {q} questions {s} alone.",
                "{q} and {s} sit in {where}. {weather}",
                "{s} is brought to {where}. {o} cannot hear this. {weather}",
                "{q} questions {s}. {weather}",
                "Now it is {s}'s turn. {q} waits in {where}.",
                "{weather} {q} closes the door and looks at {s}.",
            ]
        )
        w.scene(tidy(w.talk.fill(text, {"where": where, "q": q.name, "s": s.name, "o": o.name})), [q, s])
        pool = ["i_partner", "i_evidence", "i_offer", "i_offer", "i_pressure", "i_threat", "i_comfort", "i_contra"]
        r.shuffle(pool)
        used: set[str] = set()
        intent = "i_open" if first else r.choice(["i_offer", "i_pressure", "i_contra", "i_comfort", "i_evidence"])
        for left in range(rounds, 0, -1):
            w.say(
                q,
                intent,
                [q, s],
                0.15,
                you=s.name,
                other=o.name,
                yjob=me["job"],
                evidence=me["evidence"],
                yalibi=me["alibi"].replace("my ", "your "),
            )
            used.add(intent)
            if intent == "i_offer":
                t = trust[s.name] + {
                    "loyal": 0.35,
                    "stubborn": 0.2,
                    "greedy": -0.3,
                    "nervous": -0.2,
                    "cunning": -0.1,
                }.get(s.temper, 0)
                bank = r.choice(
                    ["s_refuse", "s_refuse", "s_silent"]
                    if t > 0.55
                    else ["s_consider", "s_bargain", "s_refuse"]
                    if t > 0.3
                    else ["s_bargain", "s_confess", "s_confess"]
                )
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
        w.scene(
            w.talk.fill(
                r.choice(
                    [
                        "{s} must choose now: silence or betrayal. {weather}",
                        "The last interview of {s}. {o} cannot hear it.",
                        "{weather} It is time for {s} to decide.",
                    ]
                ),
                {"s": s.name, "o": o.name},
            ),
            [q, s],
        )
        w.say(q, "h_ask", [q, s], 0.1, you=s.name, other=o.name)
        t = trust[s.name] + {"loyal": 0.35, "stubborn": 0.2, "greedy": -0.3, "nervous": -0.2, "cunning": -0.1}.get(
            s.temper, 0
        )
        talk = s.name in talked or t < 0.4
        if talk:
            talked.add(s.name)
        plain = (
            r.choice([" I talk.", " So I talk.", ""])
            if talk
            else r.choice([" I stay silent.", " So I stay silent.", ""])
        )
        w.say(s, "h_talk" if talk else "h_silent", [q, s], 0.1, **{**own[s.name], "you": q.name})
        w.events[-1].text += plain

    def yard(n: int) -> None:
        w.scene(
            w.talk.fill(
                r.choice(
                    [
                        "{A} and {B} meet in the yard. Nobody else can hear them.",
                        "In the yard behind the cells, {A} and {B} walk in a circle. {weather}",
                        "{A} and {B} have ten minutes alone. {weather}",
                        "A short break. {A} and {B} stand by the fence and whisper.",
                        "Night falls. {A} and {B} share a cell. {quest} is far away.",
                    ]
                ),
                f,
            ),
            [a, b],
        )
        x, z = (a, b) if r.random() < 0.5 else (b, a)
        follow = {
            "y_greet": ["y_assure"],
            "y_assure": ["y_trust", "y_hide", "y_fear", "y_suspect"],
            "y_trust": ["y_swear", "y_swear", "y_fear"],
            "y_swear": ["y_hide", "y_comfort", "y_threat"],
            "y_fear": ["y_comfort", "y_swear", "y_trust"],
            "y_suspect": ["y_deny"],
            "y_deny": ["y_trust", "y_threat", "y_fear"],
            "y_threat": ["y_swear", "y_suspect", "y_deny"],
            "y_comfort": ["y_trust", "y_fear", "y_hide"],
            "y_hide": ["y_hide_a"],
            "y_hide_a": ["y_trust", "y_comfort", "y_threat"],
        }
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
            w.scene(
                w.talk.fill("{A}, {B} and {quest} sit at one table, and {J} listens. {weather}", {**f, "J": j.name}),
                everyone,
            )
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
