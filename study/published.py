"""The published figures, and the spread of the model over 24 seeds.

Keys are (scenario, round, strategy). The spread is the 10th to the 90th
percentile, with the median, that the engine model gave when its constants
were fitted.
"""

from __future__ import annotations

from typing import TypedDict


class Figures(TypedDict, total=False):
    ttft_p95: float
    passed: int
    hit_rate: float
    split: tuple[int, int]
    tokens_per_s: float
    tpot_p95: float
    waiting_peak: tuple[int | None, int | None]
    index: tuple[int, int]


FIGURES: dict[tuple[str, int, str], Figures] = {
    ("cold", 1, "prefix-cache"): {
        "hit_rate": 0.854, "split": (36, 60), "tokens_per_s": 171.8},
    ("cold", 1, "random"): {"hit_rate": 0.777, "tokens_per_s": 184.6},
    ("cold", 1, "least-request"): {"hit_rate": 0.777, "tokens_per_s": 184.7},
    ("cold", 2, "prefix-cache"): {
        "ttft_p95": 9.049, "split": (60, 36), "waiting_peak": (9, 0)},
    ("cold", 2, "least-request"): {"ttft_p95": 6.422},
    ("cold", 2, "random"): {"ttft_p95": 9.229},
    ("warm-uniform", 1, "prefix-cache"): {"passed": 96, "index": (4, 4)},
    ("warm-uniform", 1, "random"): {"passed": 96},
    ("warm-uniform", 1, "least-request"): {"passed": 96},
    ("warm-uniform", 2, "prefix-cache"): {
        "ttft_p95": 9.692, "passed": 43, "hit_rate": 0.931,
        "split": (70, 26), "index": (6, 2), "waiting_peak": (9, None)},
    ("hot-50", 1, "prefix-cache"): {
        "passed": 38, "hit_rate": 0.933, "split": (27, 69),
        "waiting_peak": (None, 8), "tpot_p95": 0.0598},
    ("hot-50", 1, "least-request"): {"tpot_p95": 0.0716},
    ("hot-50", 2, "prefix-cache"): {"ttft_p95": 8.279, "passed": 37},
    ("hot-50", 2, "least-request"): {"ttft_p95": 1.907, "passed": 94},
    ("hot-90", 1, "prefix-cache"): {
        "ttft_p95": 6.53, "passed": 68, "split": (38, 58)},
    ("hot-90", 1, "least-request"): {"ttft_p95": 1.77, "passed": 96},
}


class Spread(TypedDict):
    low: float
    median: float
    high: float


# P95 of TTFT, seconds of engine time.
MODEL_TTFT_P95: dict[tuple[str, str], Spread] = {
    ("cold", "least-request"): {"low": 4.9, "median": 6.05, "high": 6.6},
    ("cold", "random"): {"low": 6.2, "median": 7.87, "high": 10.5},
    ("cold", "prefix-cache"): {"low": 2.4, "median": 3.94, "high": 6.6},
    ("hot-50", "prefix-cache"): {"low": 5.4, "median": 7.18, "high": 8.4},
    ("hot-50", "least-request"): {"low": 1.8, "median": 1.86, "high": 2.0},
    ("hot-90", "prefix-cache"): {"low": 7.2, "median": 7.74, "high": 9.2},
    ("hot-90", "least-request"): {"low": 0.6, "median": 1.74, "high": 1.8},
}

# With six groups of eight indexed on one side, whichever.
MODEL_WARM_SKEWED_TTFT_P95: Spread = {
    "low": 7.6, "median": 8.39, "high": 9.3}
