"""The report's table and its findings in words."""

from __future__ import annotations

from typing import Any

from published import (FIGURES, MODEL_TTFT_P95, MODEL_WARM_SKEWED_TTFT_P95,
                       Figures, Spread)

Record = dict[str, Any]

MODEL = """\
What the simulated engines are: one iteration-level model of continuous
batching (a token budget per step, eight slots, chunked prefill on cache blocks
of 1,568 tokens), whose constants were fitted to the published report. They
were not measured on a GPU. They show what queueing and caching do to these
arrivals; they know nothing of kernels, memory limits, networks or output
that varies. Times are engine time: wall time multiplied by the speed."""

REAL = """\
The engines are real ones; times are wall time. The published figures come from
two L20 GPUs and a 27B model: other hardware has other figures."""

COLUMNS = ("phase", "TTFT P50", "TTFT P95", "published", "passes",
           "published", "hits %", "published", "A / B", "published",
           "index A / B", "waiting peak", "TPOT P95 ms", "published",
           "tok/s", "published", "notes")


FALLBACKS = "least_request_fallback", "prefix_match_skipped"


def number(value: float | None, digits: int = 2, scale: float = 1) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"


def pair(values: Any) -> str:
    if values is None:
        return ""
    numbers = values.values() if isinstance(values, dict) else values
    return " / ".join("-" if n is None else str(n) for n in numbers)


def index(ours: Any, theirs: Any) -> str:
    return pair(ours) + (f" (published {pair(theirs)})" if theirs else "")


def notes(phase: Record) -> str:
    f = phase["figures"]
    found = []
    if f["late"]:
        found.append(f"client late: P99 {f['lateness']['p99']:.2f} s")
    if not f["attribution"]["agree"]:
        found.append("COUNTS DISAGREE")
    if f["sent"] != f["scheduled"]:
        found.append(f"{f['sent']} sent")
    if f["succeeded"] != f["sent"]:
        found.append(f"{f['sent'] - f['succeeded']} failed")
    if f["imbalance"]:
        found.append(f"{f['imbalance']} imbalance")
    fallbacks = sum((f["selections"] or {}).get(name, 0)
                    for name in FALLBACKS)
    if fallbacks and phase["scenario"] != "cold":
        found.append(f"{fallbacks} fallback")
    if len(phase["attempts"]) > 1:
        found.append(f"state at attempt {len(phase['attempts'])}")
    return "; ".join(found)


def row(phase: Record) -> list[str]:
    theirs: Figures = FIGURES.get(
        (phase["scenario"], phase["round"], phase["strategy"]), {})
    f = phase["figures"]
    if f is None:
        reason = phase["attempts"][-1]["reason"] or ""
        return [phase["phase"], *[""] * (len(COLUMNS) - 2),
                f"{phase['status']}: {reason}".rstrip(": ")]
    return [
        phase["phase"], number(f["ttft"]["p50"]), number(f["ttft"]["p95"]),
        number(theirs.get("ttft_p95")), str(f["passed"]),
        number(theirs.get("passed"), 0),
        number(f["hit_rate"]["all"], 1, 100),
        number(theirs.get("hit_rate"), 1, 100), pair(f["split"]),
        pair(theirs.get("split")),
        index(f["index_split"], theirs.get("index")),
        index(f["waiting_peak"], theirs.get("waiting_peak")),
        number(f["tpot"]["p95"], 1, 1000),
        number(theirs.get("tpot_p95"), 1, 1000),
        number(f["tokens_per_s"], 1), number(theirs.get("tokens_per_s"), 1),
        notes(phase)]


def markdown(phases: list[Record]) -> str:
    lines = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 2) + ["---"],
             *map(row, phases)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def model_spread(phase: Record) -> tuple[Spread | None, str]:
    """The model's spread for the initial state that this phase had, and what
    sets it apart from the published one."""
    key = phase["scenario"], phase["strategy"]
    if phase["scenario"] != "warm-uniform" or key[1] != "prefix-cache":
        return MODEL_TTFT_P95.get(key), ""
    split = phase["figures"]["index_split"] or {}
    if sorted(split.values()) == [2, 6]:
        return MODEL_WARM_SKEWED_TTFT_P95, ""
    return None, (f"with an index of {pair(split)}, where the published "
                  "round had 6 / 2")


def finding(phase: Record) -> str | None:
    """Ours against published, for one phase with a published P95."""
    theirs = FIGURES.get((phase["scenario"], phase["round"],
                          phase["strategy"]), {}).get("ttft_p95")
    if theirs is None or phase["figures"] is None \
            or phase["figures"]["ttft"]["p95"] is None:
        return None
    ours = phase["figures"]["ttft"]["p95"]
    text = (f"{phase['phase']}: TTFT P95 {ours:.2f} s, published "
            f"{theirs:.2f} s")
    spread, difference = model_spread(phase)
    if spread is None:
        return f"{text}; not comparable, {difference}." if difference \
            else f"{text}; the model's spread is not known."
    low, high = spread["low"], spread["high"]
    places = [f"{name} {'within' if low <= value <= high else 'outside'}"
              for name, value in (("ours", ours), ("the published one",
                                                   theirs))]
    return (f"{text}; the model's 10th to 90th percentile over 24 seeds is "
            f"{low:.1f} to {high:.1f} s: {' and '.join(places)}.")


def comparison(scenario: str, number_: int,
               phases: list[Record]) -> str | None:
    """The strategies of one round from the shortest tail to the longest."""
    found = sorted((p["figures"]["ttft"]["p95"], p) for p in phases
                   if p["scenario"] == scenario and p["round"] == number_
                   and p["repeat"] == 1 and p["figures"]
                   and p["figures"]["ttft"]["p95"] is not None)
    if len(found) < 2:
        return None
    return f"{scenario}, round {number_}: " + ", ".join(
        f"{p['strategy']} {p95:.2f} s ({p['figures']['passed']} pass, "
        f"{number(p['figures']['hit_rate']['all'], 1, 100)} % hits)"
        for p95, p in found) + "."
