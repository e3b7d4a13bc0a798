"""What is published, from the raw records."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from attribution import cross_check, engine_delta, grown, router_delta
from protocol import (E2E_BOUND, OUTPUT_TOKENS, REQUESTS, TPOT_BOUND,
                      TTFT_BOUND)
from records import read
from stats import mean, percentile, ratio

VERSION = 1
LATE_BOUND = 0.1
Record = dict[str, Any]


class PhaseRecords:
    """The records of one phase."""

    def __init__(self, phase: Record) -> None:
        self.phase = phase
        self.requests: list[Record] = []
        self.snapshots: list[Record] = []
        self.counters: dict[str, Record] = {}
        self.end: Record | None = None

    def add(self, record: Record) -> None:
        match record["record"]:
            case "request":
                self.requests.append(record)
            case "snapshot":
                self.snapshots.append(record)
            case "counters":
                self.counters[record["at"]] = record
            case "phase_end":
                self.end = record


def spread(values: list[Fraction]) -> dict[str, float | None]:
    return {"mean": mean(values), "p50": percentile(values, 50),
            "p95": percentile(values, 95), "p99": percentile(values, 99),
            "max": percentile(values, 100)}


def succeeded(request: Record) -> bool:
    return (request["status"] == 200 and request["contents"] > 0
            and request["done"]
            and request["completion_tokens"] == OUTPUT_TOKENS)


class Times:
    """The measures of one successful request, seconds of engine time."""

    def __init__(self, request: Record, scale: Fraction) -> None:
        self.ttft = (request["first_ns"] - request["sent_ns"]) * scale
        self.tpot = ((request["last_ns"] - request["first_ns"]) * scale
                     / (OUTPUT_TOKENS - 1))
        self.e2e = (request["end_ns"] - request["sent_ns"]) * scale

    def passes(self) -> bool:
        return (self.ttft <= Fraction(str(TTFT_BOUND))
                and self.tpot <= Fraction(str(TPOT_BOUND))
                and self.e2e <= Fraction(str(E2E_BOUND)))


def hit_rates(before: Record, after: Record) -> dict[str, float | None]:
    hits = engine_delta(before, after, "hits")
    queries = engine_delta(before, after, "queries")
    rates = {name: ratio(hits[name], queries[name]) for name in hits}
    rates["all"] = ratio(together(hits), together(queries))
    return rates


def together(counts: dict[str, int | None]) -> int | None:
    known = [c for c in counts.values() if c is not None]
    return sum(known) if len(known) == len(counts) else None


def peaks(snapshots: list[Record], names: list[str],
          field: str) -> dict[str, int | None]:
    seen: dict[str, int | None] = {}
    for name in names:
        values = [s["engines"][name][field] for s in snapshots
                  if s["engines"][name] is not None
                  and s["engines"][name][field] is not None]
        seen[name] = max(values, default=None)
    return seen


def index_split(attempt: Record, names: list[str]) -> dict[str, int] | None:
    places = list(attempt["index"].values())
    return {name: places.count(name) for name in names} if places else None


def throughput(requests: list[Record], scale: Fraction) -> float | None:
    good = [r for r in requests if succeeded(r)]
    if not good:
        return None
    time = (max(r["end_ns"] for r in requests)
            - min(r["sent_ns"] for r in requests)) * scale
    return float(sum(r["completion_tokens"] for r in good) / time)


def figures(records: PhaseRecords, pods: dict[str, str],
            speed: float) -> Record:
    """All figures of a phase that was measured to its end."""
    scale = Fraction(speed) / 10**9
    requests = records.requests
    before, after = records.counters["before"], records.counters["after"]
    times = [Times(r, scale) for r in requests if succeeded(r)]
    passed = sum(t.passes() for t in times)
    late = [(r["sent_ns"] - r["scheduled_ns"]) * scale for r in requests]
    lateness = spread(late)
    check = cross_check(requests, pods, before, after)
    names = list(pods)
    return {
        "scheduled": REQUESTS, "sent": len(requests),
        "succeeded": len(times), "passed": passed,
        "pass_rate": passed / REQUESTS,
        "ttft": spread([t.ttft for t in times]),
        "tpot": spread([t.tpot for t in times]),
        "e2e": spread([t.e2e for t in times]),
        "tokens_per_s": throughput(requests, scale),
        "hit_rate": hit_rates(before, after),
        "split": check["client"], "attribution": check,
        "index_split": index_split(records.phase["attempts"][-1], names),
        "waiting_peak": peaks(records.snapshots, names, "waiting"),
        "running_peak": peaks(records.snapshots, names, "running"),
        "selections": router_delta(before, after, "selections"),
        "match_percent": router_delta(before, after, "match_percent"),
        "imbalance": grown(before["router"], after["router"], "imbalance"),
        "lateness": lateness,
        "late": lateness["p99"] is None or lateness["p99"] > LATE_BOUND,
    }


def phase_result(records: PhaseRecords, pods: dict[str, str],
                 speed: float) -> Record:
    phase = {key: records.phase[key] for key in (
        "phase", "scenario", "round", "repeat", "strategy", "attempts",
        "started_unix_ns")}
    status = ("not-qualified" if not phase["attempts"][-1]["qualified"]
              else "measured" if records.end else "interrupted")
    end = records.end
    scale = Fraction(speed) / 10**9
    return {
        **phase, "status": status,
        "figures": figures(records, pods, speed) if end else None,
        "snapshots": [
            {"seconds": float(s["taken_ns"] * scale),
             "engines": s["engines"], "router": s["router"]}
            for s in records.snapshots],
        "load_average": end["load_average"] if end else None,
        "loop_lag": {key: float(value * scale) for key, value
                     in end["loop_lag_ns"].items()} if end else None,
    }


def interval(values: list[float | None]) -> Record | None:
    """Median and the 10th to the 90th percentile over the repeats."""
    known = [Fraction(v) for v in values if v is not None]
    if not known:
        return None
    return {"n": len(known), "median": percentile(known, 50),
            "p10": percentile(known, 10), "p90": percentile(known, 90)}


def summary(phases: list[Record]) -> list[Record]:
    """The repeats of each phase taken together, the rounds apart."""
    groups: dict[tuple[str, int, str], list[Record]] = defaultdict(list)
    for phase in phases:
        if phase["figures"]:
            key = phase["scenario"], phase["round"], phase["strategy"]
            groups[key].append(phase["figures"])
    return [{
        "scenario": scenario, "round": number, "strategy": strategy,
        "ttft_p95": interval([f["ttft"]["p95"] for f in found]),
        "tpot_p95": interval([f["tpot"]["p95"] for f in found]),
        "passed": interval([f["passed"] for f in found]),
        "hit_rate": interval([f["hit_rate"]["all"] for f in found]),
    } for (scenario, number, strategy), found in groups.items()]


def compute(raw: Path) -> Record:
    """results.json from the file of raw records."""
    run: Record = {}
    complete = False
    phases: dict[str, PhaseRecords] = {}
    for record in read(raw):
        match record["record"]:
            case "run":
                run = record
            case "end":
                complete = record["complete"]
            case "phase":
                phases[record["phase"]] = PhaseRecords(record)
            case "init":
                pass
            case _:
                phases[record["phase"]].add(record)
    results = [phase_result(p, run["pods"], run["speed"])
               for p in phases.values()]
    measured = [p for p in results if p["figures"]]
    return {
        "version": VERSION,
        "run": {k: v for k, v in run.items() if k != "record"},
        "complete": complete, "phases": results,
        "summary": summary(results),
        "flags": {
            "mismatch": [p["phase"] for p in measured
                         if not p["figures"]["attribution"]["agree"]],
            "not_qualified": [p["phase"] for p in results
                              if p["status"] == "not-qualified"],
            "interrupted": [p["phase"] for p in results
                            if p["status"] == "interrupted"],
            "late": [p["phase"] for p in measured if p["figures"]["late"]],
        },
    }
