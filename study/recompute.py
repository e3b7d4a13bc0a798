#!/usr/bin/python3
"""Recomputes every published figure from the raw records alone and compares
it with results.json, to the last digit.

Stands alone: Python's standard library, and nothing else of the study, so
that what it finds does not rest on the code that it checks.

usage: recompute.py requests.jsonl.gz [results.json]
"""

from __future__ import annotations

import gzip
import json
import sys
from fractions import Fraction
from pathlib import Path

ARRIVALS = 96
TOKENS = 128
NANO = 10**9


def load(path):
    """(run, {phase: {kind: [records]}}) of the raw file."""
    run, phases = None, {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            kind = record["record"]
            if kind == "run":
                run = record
            elif kind != "end":
                kinds = phases.setdefault(record["phase"], {})
                kinds.setdefault(kind, []).append(record)
    # a phase that was interrupted while its state was made has no record
    return run, {k: v for k, v in phases.items() if "phase" in v}


def rank(ns, percent, speed):
    """Linear interpolation over integer nanoseconds; seconds, rounded once."""
    if not ns:
        return None
    ns = sorted(ns)
    whole, part = divmod((len(ns) - 1) * percent, 100)
    above = ns[whole + 1] if part else ns[whole]
    hundredths = ns[whole] * (100 - part) + above * part
    return float(Fraction(hundredths) * Fraction(speed) / (100 * NANO))


def distribution(ns, speed, divide=1):
    if not ns:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    speed = Fraction(speed) / divide
    return {"mean": float(Fraction(sum(ns), len(ns)) * speed / NANO),
            "p50": rank(ns, 50, speed), "p95": rank(ns, 95, speed),
            "p99": rank(ns, 99, speed), "max": rank(ns, 100, speed)}


def good(r):
    return (r["status"] == 200 and r["contents"] >= 1 and r["done"]
            and r["completion_tokens"] == TOKENS)


def passes(r, speed):
    speed = Fraction(speed)
    ttft = (r["first_ns"] - r["sent_ns"]) * speed
    output = (r["last_ns"] - r["first_ns"]) * speed
    total = (r["end_ns"] - r["sent_ns"]) * speed
    return (ttft <= 2 * NANO and 1000 * output <= 150 * (TOKENS - 1) * NANO
            and total <= 30 * NANO)


def grown(old, new, *keys):
    """How a counter grew; None when one of the readings is missing."""
    for key in keys:
        old, new = (old or {}).get(key), (new or {}).get(key)
    return None if old is None or new is None else new - old


def grown_labels(old, new, field):
    if old is None or new is None or new[field] is None:
        return None
    old, new = old[field] or {}, new[field]
    return {k: v - old.get(k, 0) for k, v in new.items() if v != old.get(k, 0)}


def share(part, whole):
    return None if part is None or not whole else part / whole


def add(values):
    return None if None in values else sum(values)


def hit_rate(names, old, new):
    hits = [grown(old["engines"], new["engines"], n, "hits") for n in names]
    asked = [grown(old["engines"], new["engines"], n, "queries")
             for n in names]
    rates = {n: share(h, q) for n, h, q in zip(names, hits, asked)}
    rates["all"] = share(add(hits), add(asked))
    return rates


def attribution(requests, pods, old, new):
    client = dict.fromkeys(pods, 0)
    for r in requests:
        if r["status"] == 200 and r["done"]:
            name = next((n for n, p in pods.items() if p == r["pod"]), "?")
            client[name] = client.get(name, 0) + 1
    engine = {n: grown(old["engines"], new["engines"], n, "finished")
              for n in pods}
    counted = grown_labels(old["router"], new["router"], "requests")
    router = None
    if counted is not None:
        router = {n: counted.get(p, 0) for n, p in pods.items()}
        strange = sum(counted.values()) - sum(router.values())
        if set(counted) - set(pods.values()):
            router["?"] = strange
    agree = "?" not in client and router in (None, client)
    for name, number in engine.items():
        agree = agree and (number is None or number == client[name])
    return {"client": client, "router": router, "engine": engine,
            "agree": agree}


def peak(snapshots, name, field):
    seen = [(s["engines"][name] or {}).get(field) for s in snapshots]
    return max((v for v in seen if v is not None), default=None)


def figures(kinds, pods, speed):
    """All figures of one phase; None when it was not measured to its end."""
    if "phase_end" not in kinds:
        return None
    requests = kinds["request"]
    snapshots = kinds.get("snapshot", [])
    old, new = kinds["counters"]
    done = [r for r in requests if good(r)]
    passed = sum(passes(r, speed) for r in done)
    late = distribution([r["sent_ns"] - r["scheduled_ns"] for r in requests],
                        speed)
    index = list(kinds["phase"][0]["attempts"][-1]["index"].values())
    check = attribution(requests, pods, old, new)
    span = (max(r["end_ns"] for r in requests)
            - min(r["sent_ns"] for r in requests))
    return {
        "scheduled": ARRIVALS, "sent": len(requests), "succeeded": len(done),
        "passed": passed, "pass_rate": passed / ARRIVALS,
        "ttft": distribution([r["first_ns"] - r["sent_ns"] for r in done],
                             speed),
        "tpot": distribution([r["last_ns"] - r["first_ns"] for r in done],
                             speed, TOKENS - 1),
        "e2e": distribution([r["end_ns"] - r["sent_ns"] for r in done],
                            speed),
        "tokens_per_s": float(
            sum(r["completion_tokens"] for r in done) * NANO
            / (span * Fraction(speed))) if done else None,
        "hit_rate": hit_rate(list(pods), old, new),
        "split": check["client"], "attribution": check,
        "index_split": {n: index.count(n) for n in pods} if index else None,
        "waiting_peak": {n: peak(snapshots, n, "waiting") for n in pods},
        "running_peak": {n: peak(snapshots, n, "running") for n in pods},
        "selections": grown_labels(old["router"], new["router"],
                                   "selections"),
        "match_percent": grown_labels(old["router"], new["router"],
                                      "match_percent"),
        "imbalance": grown(old["router"], new["router"], "imbalance"),
        "lateness": late, "late": late["p99"] is None or late["p99"] > 0.1,
    }


def leaves(value, path=""):
    """Every figure with its name."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def differences(phase, ours, theirs):
    a, b = dict(leaves(ours)), dict(leaves(theirs))
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b or repr(a[name]) != repr(b[name]):
            yield (f"{phase}: {name}: recomputed {a.get(name, 'nothing')}, "
                   f"results.json {b.get(name, 'nothing')}")


def show(phase, f):
    def number(value, digits):
        return "-" if value is None else f"{value:.{digits}f}"

    split = " / ".join(str(n) for n in f["split"].values())
    print(f"{phase:32} TTFT P95 {number(f['ttft']['p95'], 3):>7} s  pass "
          f"{f['passed']:3}  hits {number(f['hit_rate']['all'], 4)}  "
          f"split {split}")


def main(raw, published):
    run, phases = load(raw)
    results = {p["phase"]: p for p in
               json.loads(Path(published).read_text())["phases"]}
    wrong, count = [], 0
    for name in sorted(phases.keys() | results.keys()):
        if name not in phases or name not in results:
            wrong.append(f"{name}: in one of the files only")
            continue
        ours = figures(phases[name], run["pods"], run["speed"])
        theirs = results[name]["figures"]
        wrong += differences(name, ours, theirs)
        count += sum(1 for _ in leaves(ours))
        if ours:
            show(name, ours)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{count} figures of {len(phases)} phases: "
          + (f"{len(wrong)} DIFFER" if wrong else "all agree"))
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    published = sys.argv[2:] or [str(path.parent / "results.json")]
    sys.exit(main(path, published[0]))
