"""A second opinion on the intervals over cases: written from the formulas in docs/experiments.md, on numpy, scipy and
statsmodels.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy scipy statsmodels
    /tmp/venv/bin/python tests/runner/statistics/coverage.py            # a table of coverages, about a minute
    /tmp/venv/bin/python tests/runner/statistics/coverage.py --golden   # writes golden.json beside this file

The table has the share of simulated data sets whose 95 % confidence interval covers the true value; the script fails
if one is outside 93 to 97 % at 20, 50 or 200 cases. `golden.json` has data sets with their intervals, p-values and
corrections, to which a unit test of the program (`runner/statistics/golden.rs`) compares its own.
"""

import itertools
import json
import pathlib
import sys

import numpy as np
import statsmodels.api as sm
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

Z = stats.norm.ppf(0.975)
SAMPLES = 10_000

# -- The formulas, for many data sets at once: sums `s` and counts `n` of shape [samples, cases]. ------------------


def fit(s, n):
    """Ratios, their variances, and the residuals of each case."""
    total, m = n.sum(1), s.shape[1]
    p = s.sum(1) / total
    residuals = (s - p[:, None] * n) / total[:, None]
    return p, m / (m - 1) * (residuals**2).sum(1), residuals


def around(p, residuals):
    """Student's interval, extended by Johnson's shift for skewness."""
    m = residuals.shape[1]
    error = np.sqrt(m / (m - 1) * (residuals**2).sum(1))
    skewness = (residuals**3).mean(1) / np.maximum((residuals**2).mean(1), 1e-100) ** 1.5
    t = stats.t.ppf(0.975, m - 1)
    shift = skewness * error / (6 * np.sqrt(m)) * (1 + 2 * t * t)
    return p - t * error + np.minimum(shift, 0), p + t * error + np.maximum(shift, 0)


def score(p, n, z):
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def means(s, n):
    p, _, residuals = fit(s, n)
    return rates(s, n) if is_trial((s, n)) else around(p, residuals)


def is_trial(*parts):
    """True if each case is one thing that happened or did not."""
    return all((n == 1).all() and np.isin(s, (0, 1)).all() for s, n in parts)


def rates(s, n):
    p, v, _ = fit(s, n)
    m, total = s.shape[1], n.sum(1)
    if is_trial((s, n)):
        return score(p, float(m), Z)
    is_sure = (p <= 0) | (p >= 1)
    inner = np.where(is_sure, 0.5, p)
    effective = np.minimum(inner * (1 - inner) / np.where(is_sure, 1, v).clip(1e-300), 2 * total)
    low, high = score(inner, effective, stats.t.ppf(0.975, m - 1))
    sure_low, sure_high = score(np.round(p), float(m), Z)
    return np.where(is_sure, sure_low, low), np.where(is_sure, sure_high, high)


def tango(b, c, n):
    """Inverts the score test of a difference of paired rates: the likelihood is maximized under each difference."""

    def statistic(d):
        # q is the rate of the second alone; that of the first alone is q + d.
        half = (2 * n - b + c) * d - b - c
        q = (np.sqrt(max(half * half + 8 * n * c * d * (1 - d), 0)) - half) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        return (b - c - n * d) / np.sqrt(variance) if variance > 0 else 0.0 if d == (b - c) / n else np.inf

    d, most = (b - c) / n, 1 - 1e-12
    low = optimize.brentq(lambda x: statistic(x) - Z, -most, d) if b - c > -n else -1.0
    high = optimize.brentq(lambda x: statistic(x) + Z, d, most) if b - c < n else 1.0
    return low, high


def differences(here, there, kind):
    (p, v, r), (q, w, u) = fit(*here), fit(*there)
    d, m = p - q, r.shape[1]
    if is_trial(here, there):
        b, c = (here[0] > there[0]).sum(1), (here[0] < there[0]).sum(1)
        ends = {pair: tango(*pair, m) for pair in set(zip(b, c))}
        return tuple(np.array([ends[pair][end] for pair in zip(b, c)]) for end in (0, 1))
    if kind == "mean":
        return around(d, r - u)
    (low, high), (other_low, other_high) = rates(*here), rates(*there)
    both = np.sqrt(v * w)
    correlation = np.where(both > 0, m / (m - 1) * (r * u).sum(1) / np.where(both > 0, both, 1), 0)

    def reach(x, y):
        return np.sqrt(np.maximum(x * x + y * y - 2 * correlation * x * y, 0))

    return d - reach(p - low, other_high - q), d + reach(high - p, q - other_low)


def unpaired(here, there, kind):
    interval = rates if kind == "rate" else means
    p, q = fit(*here)[0], fit(*there)[0]
    (low, high), (other_low, other_high) = interval(*here), interval(*there)
    return p - q - np.hypot(p - low, other_high - q), p - q + np.hypot(high - p, q - other_low)


# -- Simulated data sets ---------------------------------------------------------------------------------------------

rng = np.random.default_rng(20261130)


def runs(p, n):
    n = np.broadcast_to(n, p.shape)
    return rng.binomial(n, p).astype(float), n.astype(float)


def difficulty(shape, easy):
    """Most cases are easy or hard."""
    return np.where(rng.random(shape) < easy, 0.8 + 0.2 * rng.random(shape), 0.4 * rng.random(shape))


def numbers(values, n):
    return values * n, np.full_like(values, float(n))


def likert(shape, p):
    """Answers from 1 to 5, five runs a case; a case leans its own way."""
    lean = rng.choice([-1, 0, 1], size=(*shape, 1))
    answers = rng.choice([1, 2, 3, 4, 5], p=p, size=(*shape, 5)) + lean
    return answers.clip(1, 5).sum(2).astype(float), np.full(shape, 5.0)


LIKERT = [0.1, 0.1, 0.2, 0.35, 0.25]


def likert_truth(p):
    steps = [np.dot(np.clip(np.arange(1, 6) + lean, 1, 5), p) for lean in (-1, 0, 1)]
    return float(np.mean(steps))


# Where each case is one trial, the results are few, and the coverage jumps from rate to rate: the mean over rates.
SOME = rng.uniform(0.05, 0.95, SAMPLES)

POOLED = {
    "rate, half easy, 4 runs": ("rate", 0.55, lambda s: runs(difficulty(s, 0.5), 4)),
    "rate, 90 % easy, 4 runs": ("rate", 0.83, lambda s: runs(difficulty(s, 0.9), 4)),
    "rate, half easy, 1 to 6 runs": ("rate", 0.55, lambda s: runs(difficulty(s, 0.5), rng.integers(1, 7, s))),
    "rate 0.9, cases alike, 3 runs": ("rate", 0.9, lambda s: runs(np.full(s, 0.9), 3)),
    "rate 0.5, cases alike, 3 runs": ("rate", 0.5, lambda s: runs(np.full(s, 0.5), 3)),
    "rate, 10 agents a case": ("rate", 0.5, lambda s: runs(rng.random(s), 10)),
    "rates 0.05 to 0.95, 1 run": ("rate", SOME, lambda s: runs(np.broadcast_to(SOME[: s[0], None], s), 1)),
    "mean, uniform": ("mean", 0.5, lambda s: numbers(rng.random(s), 3)),
    "mean, Likert, 5 runs": ("mean", likert_truth(LIKERT), lambda s: likert(s, LIKERT)),
    "mean, exponential": ("mean", 1.0, lambda s: numbers(rng.exponential(size=s), 3)),
    "mean, payoffs 0, 2, 5, 10": (
        "mean",
        4.7,
        lambda s: numbers(rng.choice([0.0, 2, 5, 10], p=[0.2, 0.1, 0.5, 0.2], size=s), 1),
    ),
}


def easier(factor, n):
    def draw(shape):
        p = difficulty(shape, 0.5)
        return runs(p, n), runs(factor * p, n)

    return draw


def constant(first, second, n):
    return lambda shape: (runs(np.full(shape, first), n), runs(np.full(shape, second), n))


LESS = rng.uniform(0.0, 0.4, SAMPLES)


def trials(shape):
    """The same case decides in either condition, more or less."""
    p = rng.random(shape)
    return runs(0.4 + 0.6 * p, 1), runs(0.4 + 0.6 * p - LESS[: shape[0], None], 1)


def shifted(shape):
    base = rng.random(shape)
    noise = lambda: 0.3 * rng.normal(size=shape)  # noqa: E731
    return numbers(base + noise(), 3), numbers(base + 0.2 + noise(), 3)


def likert_pair(shape):
    base, n = likert(shape, LIKERT)
    more = rng.binomial(5, 0.3, size=shape)
    return (np.minimum(base + more, 25), n), (base, n)


def skewed(shape):
    base = rng.exponential(size=shape)
    return numbers(base * 2 * rng.random(shape), 3), numbers(base, 3)


def likert_pair_truth():
    big = np.random.default_rng(1)
    lean = big.choice([-1, 0, 1], size=(2_000_000, 1))
    base = (big.choice([1, 2, 3, 4, 5], p=LIKERT, size=(2_000_000, 5)) + lean).clip(1, 5).sum(1)
    return float((np.minimum(base + big.binomial(5, 0.3, size=len(base)), 25) - base).mean() / 5)


PAIRED = {
    "rates, 4 runs": ("rate", 0.055, easier(0.9, 4)),
    "rates, 4 runs, no difference": ("rate", 0.0, easier(1.0, 4)),
    "rates, 2 runs": ("rate", 0.275, easier(0.5, 2)),
    "rates, 10 agents a case": ("rate", 0.055, easier(0.9, 10)),
    "rates 0.6 and 0.5, cases alike, 4 runs": ("rate", 0.1, constant(0.6, 0.5, 4)),
    "rates, 1 run": ("rate", LESS, trials),
    "means, shifted": ("mean", -0.2, shifted),
    "means, Likert": ("mean", None, likert_pair),
    "means, skewed": ("mean", 0.0, skewed),
}


def independent(draw, other):
    return lambda shape: (draw(shape), other(shape))


UNPAIRED = {
    "rates of different cases, 4 runs": (
        "rate",
        0.28,
        independent(lambda s: runs(difficulty(s, 0.9), 4), lambda s: runs(difficulty(s, 0.5), 4)),
    ),
    "means of different cases": (
        "mean",
        -0.5,
        independent(lambda s: numbers(rng.random(s), 3), lambda s: numbers(rng.exponential(size=s), 3)),
    ),
}


def coverage():
    failed = False
    print(f"{'share of 95 % intervals that cover, cases':52}", *(f"{m:6}" for m in (10, 20, 50, 200)))

    def row(kind, name, truth, interval):
        nonlocal failed
        found = []
        for m in (10, 20, 50, 200):
            low, high = interval((SAMPLES, m))
            found.append(np.mean((low - 1e-9 <= truth) & (truth <= high + 1e-9)))
        bad = any(not 0.93 <= share <= 0.97 for share in found[1:])
        failed |= bad
        print(f"{kind + ': ' + name:52}", *(f"{share:6.3f}" for share in found), "  outside" if bad else "")

    for name, (kind, truth, draw) in POOLED.items():
        interval = rates if kind == "rate" else means
        row("pooled", name, truth, lambda shape: interval(*draw(shape)))
    for name, (kind, truth, draw) in PAIRED.items():
        truth = likert_pair_truth() if truth is None else truth
        row("paired", name, truth, lambda shape: differences(*draw(shape), kind))
    for name, (kind, truth, draw) in UNPAIRED.items():
        row("unpaired", name, truth, lambda shape: unpaired(*draw(shape), kind))
    return failed


# -- Golden values -----------------------------------------------------------------------------------------------------


def clustered_error(s, n, kind):
    """The standard error of a mean as statsmodels has it: least squares on single observations, by cluster."""
    values, groups = [], []
    for case, (total, count) in enumerate(zip(s, n)):
        count = int(count)
        own = [1.0] * int(total) + [0.0] * (count - int(total)) if kind == "rate" else [total / count] * count
        values += own
        groups += [case] * count
    model = sm.OLS(np.array(values), np.ones(len(values)))
    return float(model.fit(cov_type="cluster", cov_kwds={"groups": np.array(groups)}).bse[0])


def exchanged(here, there):
    """The share of all exchanges within pairs whose difference is as great."""
    pairs = list(zip(zip(*here), zip(*there)))

    def difference(flips):
        sides = [(b, a) if flip else (a, b) for flip, (a, b) in zip(flips, pairs)]
        first, second = (np.sum([side[at] for side in sides], axis=0) for at in (0, 1))
        return first[0] / first[1] - second[0] / second[1]

    observed = abs(difference([False] * len(pairs)))
    all_flips = itertools.product([False, True], repeat=len(pairs))
    return float(np.mean([abs(difference(flips)) >= observed - 1e-9 for flips in all_flips]))


def listed(s, n):
    return [[float(a), float(b)] for a, b in zip(s, n)]


def golden():
    pooled, paired, unpaired_sets, corrections, powers = [], [], [], [], []
    for m in (5, 9, 20):
        for kind, _, draw in POOLED.values():
            s, n = draw((1, m))
            p, v, _ = fit(s, n)
            assert abs(clustered_error(s[0], n[0], kind) - np.sqrt(v[0])) < 1e-9
            low, high = (rates if kind == "rate" else means)(s, n)
            if not np.isfinite([low, high]).all() or not high[0] - low[0] > 1e-9:
                continue  # all alike
            pooled.append({"kind": kind, "cases": listed(s[0], n[0]), "value": p[0], "low": low[0], "high": high[0]})
        for kind, _, draw in PAIRED.values():
            here, there = draw((1, m))
            d = (fit(*here)[0] - fit(*there)[0])[0]
            low, high = differences(here, there, kind)
            apart = unpaired(here, there, kind)
            own = [listed(here[0][0], here[1][0]), listed(there[0][0], there[1][0])]
            p = exchanged([x[0] for x in here], [x[0] for x in there]) if m < 12 else None
            if p is not None and is_trial(here, there):
                wins, losses = int((here[0] > there[0]).sum()), int((here[0] < there[0]).sum())
                exact = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
                assert abs(p - exact) < 1e-9, "McNemar's exact test"
            if not np.isfinite([low, high, *apart]).all() or not high[0] - low[0] > 1e-9:
                continue  # all alike
            paired.append({"kind": kind, "sides": own, "value": d, "low": low[0], "high": high[0], "p": p})
            unpaired_sets.append({"kind": kind, "sides": own, "value": d, "low": apart[0][0], "high": apart[1][0]})
    for k in (1, 2, 3, 7, 20, 100):
        p = rng.random(k) ** 4
        if k == 7:
            p[3] = p[4]
        row = {"p": p.tolist()}
        for name, method in (("holm", "holm"), ("bh", "fdr_bh")):
            row[name] = multipletests(p, method=method)[1].tolist()
        corrections.append(row)
    for n, deviation, difference, level in (
        (20, 1.0, 0.5, 0.05),
        (50, 0.4, 0.1, 0.05),
        (10, 3.0, 2.5, 0.01),
        (200, 0.5, 0.02, 0.05),
        (12, 1.0, 2.0, 0.05),
    ):
        exact = TTestPower().solve_power(effect_size=difference / deviation, alpha=level, power=0.8)
        row = {"n": n, "variance": deviation**2 / n, "difference": difference, "level": level}
        powers.append({**row, "statsmodels": float(exact)})
    file = pathlib.Path(__file__).with_name("golden.json")
    plain = lambda value: float(value)  # noqa: E731
    parts = {
        "pooled": pooled,
        "paired": paired,
        "unpaired": unpaired_sets,
        "corrections": corrections,
        "power": powers,
    }
    rows = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, default=plain) for row in part) + "\n]"
        for name, part in parts.items()
    ]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{file}: {', '.join(f'{len(part)} {name}' for name, part in parts.items())}")


if __name__ == "__main__":
    if "--golden" in sys.argv[1:]:
        golden()
    else:
        sys.exit(coverage())
