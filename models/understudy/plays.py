"""The other plays: gossip, debate, negotiation, planning, reunion, and an expert with an article."""

from __future__ import annotations

import random

from article import article
from world import BANKS, MODERATORS, NUMBERS, Event, Person, World, tidy


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
        p.goals = [
            r.choice(
                [
                    f"{o.name} is your best friend.",
                    f"You do not trust {o.name}.",
                    "You love stories.",
                    f"You are preparing {f['event']}.",
                    "",
                ]
            )
        ]
    if r.random() < 0.5:
        src.goals.append(f"You know that {target.name} {f['secret']}.")
    keeps = r.random() < 0.6
    keeper.goals.append(
        r.choice(["You never break a promise.", "You can keep a secret."])
        if keeps
        else r.choice(["You cannot keep a secret.", "You talk too much.", ""])
    )
    say = lambda p, bank, to, who, c=0.3: w.say(
        p, bank, who, c, you=to.name, yjob=f.get("job:" + to.name, "new"), other=f["F"]
    )  # noqa: E731
    two = [src, keeper]
    w.scene(
        tidy(
            w.talk.fill(
                r.choice(
                    [
                        f"{src.name} and {keeper.name} meet at {{spot}}. {{weather}}",
                        f"{keeper.name} is alone with {src.name} near {{spot}}. Nobody else can hear them.",
                    ]
                ),
                {},
            )
        ),
        two,
    )
    say(src, "g_hello", keeper, two)
    say(keeper, "g_hello_a", src, two)
    say(src, "g_tell", keeper, two)
    say(keeper, "g_react", src, two)
    if r.random() < 0.7:
        say(src, "g_more", keeper, two)
        say(keeper, r.choice(["g_react", "r_end_a"]), src, two)
    two = [third, keeper]
    w.scene(
        tidy(f"Later, {third.name} meets {keeper.name} at {r.choice(BANKS['spot'])}. {r.choice(BANKS['weather'])}"), two
    )
    if r.random() < 0.5:
        say(third, "g_hello", keeper, two)
        say(keeper, "g_hello_a", third, two)
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
        say(third, "g_hello", src, pair)
        say(src, "g_hello_a", third, pair)
        say(third, "r_now", src, pair)
        w.say(src, "r_now_a", pair, 0.3, you=third.name, job=f["job:" + src.name])
    here = [p for p in ps]
    if target in ps:
        w.scene(
            f"{', '.join(p.name for p in here[:-1])} and {here[-1].name} sit around one table. {r.choice(BANKS['weather'])}",
            here,
        )
        say(target, "g_all", keeper, here)
        say(keeper, "g_all_hide" if keeps else "g_all_confess", target, here)
        if keeps:
            say(src, "g_all_hide", target, here)
        say(target, "g_end", keeper, here)
    for p in ps[: r.randint(1, 3)]:
        o = r.choice([x for x in here if x is not p])
        say(p, "r_end", o, here)
        say(o, "r_end_a", p, here)
    return w


def debate(r: random.Random, long: bool = False) -> World:
    w = World(r)
    common(w)
    f = w.facts
    m = w.add("the one who leads the debate and judges it fairly", MODERATORS, "calm")
    p, c = person_with_job(w), person_with_job(w)
    f["house2"] = r.choice(BANKS["house2"])
    f["motion"] = w.talk.pick("motion", f)
    args = {
        p.name: [w.talk.fill(x, {}) for x in r.sample(BANKS["pro_arg"], 4)],
        c.name: [w.talk.fill(x, {}) for x in r.sample(BANKS["con_arg"], 4)],
    }
    p.goals, c.goals = (
        [f"You argue {f['motion']}.", f"You believe that {args[p.name][0]}."],
        [f"You argue against the motion {f['motion']}.", f"You believe that {args[c.name][0]}."],
    )
    m.goals = ["You ask both sides and name the winner at the end."]
    all3 = [m, p, c]
    w.scene(
        w.talk.fill(
            f"A debate in the {f['house']}. {p.name} is for the motion, {c.name} is against it. {m.name} leads the evening. {{weather}}",
            {},
        ),
        all3,
    )
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
            w.say(
                s, r.choice(["d_rebut", "d_rebut", "d_concede"]), all3, 0.3, you=o.name, my_arg=new, yarg=used[o.name]
            )
            used[s.name] = new
    win, lose = (p, c) if r.random() < 0.5 else (c, p)
    w.scene(f"{m.name} closes the debate. {r.choice(BANKS['moods'])}", all3)
    w.say(m, "d_verdict", all3, 0.0, W=win.name, L=lose.name, warg=used[win.name], larg=used[lose.name])
    w.say(lose, "p_accept", all3, 0.3, you=m.name) if r.random() < 0.3 else w.say(
        lose, "g_end", all3, 0.3, you=win.name
    )
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
    w.scene(
        tidy(
            w.talk.fill(
                f"{buyer.name} visits {seller.name} in {{street}} Street. The {f['thing']} stands on the table. {{weather}}",
                {},
            )
        ),
        two,
    )
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
        w.scene(
            tidy(f"Later, {friend.name} meets {teller.name} at {r.choice(BANKS['spot'])}. {r.choice(BANKS['moods'])}"),
            pair,
        )
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
    w.scene(
        tidy(
            f"{', '.join(p.name for p in ps[:-1])} and {ps[-1].name} meet at {r.choice(BANKS['spot'])} to plan {f['event']}. {r.choice(BANKS['weather'])}"
        ),
        ps,
    )
    task = {p.name: w.talk.fill(t, {}) for p, t in zip(ps, r.sample(BANKS["task"], len(ps)))}
    w.say(lead, "pl_open", ps, 0.2, you=ps[1].name)
    for i, p in enumerate(ps[1:], 1):
        w.say(p, "pl_take", ps, 0.3, you=lead.name, task=task[p.name])
        if i + 1 < len(ps):
            w.say(lead, "pl_thanks", ps, 0.1, you=p.name, ytask=task[p.name], next=ps[i + 1].name)
        else:
            w.say(lead, "pl_take", ps, 0.2, you=p.name, task=task[lead.name])
    for _ in range(r.randint(2, 4) * (3 if long else 1)):
        w.scene(
            tidy(
                r.choice(
                    [
                        r.choice(BANKS["moods"]),
                        f"The next day at {r.choice(BANKS['spot'])}. {r.choice(BANKS['weather'])}",
                        f"{f['event']} is near. {r.choice(BANKS['moods'])}",
                    ]
                )
            ),
            ps,
        )
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
    did = {
        p.name: w.talk.fill(t, {k: f[k] for k in ("thing", "event")})
        for p, t in zip(ps, r.sample(BANKS["did"], len(ps)))
    }
    for p in ps:
        o = r.choice([x for x in ps if x is not p])
        p.goals = [
            r.choice(
                [
                    f"You remember that {o.name} {did[o.name]}.",
                    f"{o.name} owes you {r.randint(3, 90)} coins.",
                    f"Once you {did[p.name]}.",
                    f"You are glad to see {o.name}.",
                    "",
                ]
            )
        ]
    place = f["spot"]
    w.scene(
        tidy(
            f"After {f['num']} years, {', '.join(p.name for p in ps[:-1])} and {ps[-1].name} meet again at {place}. {r.choice(BANKS['weather'])}"
        ),
        ps,
    )
    pairs = {"r_open": "r_mem", "r_mem": "r_mem_a", "r_now": "r_now_a", "r_grudge": "r_grudge_a", "r_end": "r_end_a"}
    seq = (
        ["r_open"]
        + [r.choice(["r_mem", "r_now", "r_grudge"]) for _ in range(r.randint(3, 12) * (4 if long else 1))]
        + ["r_end"]
    )
    for i, bank in enumerate(seq):
        if i and r.random() < 0.25:
            w.scene(r.choice(BANKS["moods"]), ps)
        x, z = r.sample(ps, 2)
        g = {
            "you": z.name,
            "ydid": did[z.name],
            "idid": did[x.name],
            "yjob": f["job:" + z.name],
            "job": f["job:" + x.name],
        }
        w.say(x, bank, ps, 0.3, **g)
        h = {
            "you": x.name,
            "ydid": did[x.name],
            "idid": did[z.name],
            "yjob": f["job:" + x.name],
            "job": f["job:" + z.name],
        }
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
    e = w.add(
        r.choice(
            [
                "an expert who has read one article",
                "a scholar",
                "a guide",
                "an expert who answers from the article only",
                f"a specialist on {topic}",
            ]
        ),
        ["Professor", "Doctor", "Guide", "Librarian", "Expert", "Scholar"],
    )
    e.goals = [
        r.choice(["You answer from the article.", "You never invent facts.", "You answer questions clearly.", ""])
    ]
    asks = [person_with_job(w) for _ in range(r.randint(1, 3))]
    head = r.choice(["ARTICLE\n", "THE ARTICLE\n", "You have read this article:\n", f"{topic.capitalize()}\n", ""])
    w.scene(head + text, [e])
    everybody = [e] + asks
    w.scene(
        tidy(
            f"{', '.join(p.name for p in asks)} {'visit' if len(asks) > 1 else 'visits'} {e.name} to ask about {topic}. {r.choice(BANKS['weather'])}"
        ),
        everybody,
    )
    order = [r.choice(facts) for _ in range(r.randint(4, 12) * (3 if long else 1))]
    for q, ans in order:
        p = r.choice(asks)
        if r.random() < 0.1:
            q, ans = r.choice(
                [
                    ("what do people there eat for breakfast?", ""),
                    ("who is the richest person there?", ""),
                    ("what is the name of the king's dog?", ""),
                ]
            )
            ans = r.choice(
                [
                    "The article does not say that, {you}. I would only be guessing.",
                    "I cannot tell you, {you}. It is not in what I have read.",
                ]
            )
        lead = r.choice(["", "", f"{e.name}, ", "Please tell me, ", "One more question: ", f"Good day, {e.name}. "])
        w.events.append(Event(p.name, tidy(lead + q), {x.name for x in everybody}))
        tail = r.choice(
            [
                "",
                "",
                f" That is what the article says, {p.name}.",
                f" I hope that helps, {p.name}.",
                f" A good question, {p.name}.",
            ]
        )
        w.events.append(Event(e.name, tidy(ans.replace("{you}", p.name) + tail), {x.name for x in everybody}))
        if r.random() < 0.2:
            w.scene(r.choice(BANKS["moods"]), everybody)
    return w
