"""The published protocol: prompts, phases, arrivals and bounds."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Iterator

SCENARIOS = ("cold", "warm-uniform", "hot-50", "hot-90")
PUBLISHED_STRATEGIES = ("random", "least-request", "prefix-cache")
ROUNDS = 2
REQUESTS = 96
RATE = 1.6
GROUPS = 8
CANDIDATES = 16
HOT_REQUESTS = {"hot-50": 48, "hot-90": 86}
RETRIES = 3
WARM_UP = (1, 4, 8)
SNAPSHOT_SECONDS = 5

OUTPUT_TOKENS = 128
INIT_TOKENS = 16
FIRST_INIT_INDEX = 900000
FIRST_WARM_UP_FAMILY = 101

TTFT_BOUND = 2.0
TPOT_BOUND = 0.150
E2E_BOUND = 30.0
REQUEST_TIMEOUT = 300

SENTENCE = ("The service tracks request latency, token throughput, "
            "cache utilization, and healthy replicas.")
SENTENCES = 300


@dataclass(frozen=True)
class Plan:
    """One phase before it runs."""

    scenario: str
    strategy: str
    round: int
    repeat: int

    @property
    def id(self) -> str:
        again = f"-n{self.repeat}" if self.repeat > 1 else ""
        return f"{self.scenario}-r{self.round}-{self.strategy}{again}"

    @property
    def hot(self) -> bool:
        return self.scenario in HOT_REQUESTS


def plans(scenarios: list[str], strategies: list[str],
          repeats: int) -> Iterator[Plan]:
    """All phases in the order they run: round two reverses the strategies."""
    for repeat in range(1, repeats + 1):
        for scenario in scenarios:
            for number in range(1, ROUNDS + 1):
                for strategy in strategies[::1 if number % 2 else -1]:
                    yield Plan(scenario, strategy, number, repeat)


def quick_plans(strategies: list[str]) -> Iterator[Plan]:
    """One phase of every scenario, each with another strategy."""
    for i, scenario in enumerate(SCENARIOS):
        yield Plan(scenario, strategies[i % len(strategies)], 1, 1)


def salt(seed: str, phase: str, attempt: int, family: int) -> str:
    """256 hexadecimal characters that no other document begins with."""
    parts = (f"{seed}/{phase}/{attempt}/{family}/{i}" for i in range(4))
    return "".join(hashlib.sha256(p.encode()).hexdigest() for p in parts)


def prompt(salt_text: str, family: int, index: int) -> str:
    lines = [salt_text, f"Document {family}", *[SENTENCE] * SENTENCES,
             f"Question {index:06d}: "
             "Explain the operational tradeoffs in detail."]
    return "\n".join(lines)


def body(seed: str, phase: str, attempt: int, family: int, index: int,
         model: str) -> bytes:
    """What is POSTed to /v1/completions, byte for byte."""
    text = prompt(salt(seed, phase, attempt, family), family, index)
    tokens = INIT_TOKENS if index >= FIRST_INIT_INDEX else OUTPUT_TOKENS
    return json.dumps({
        "model": model, "prompt": text, "temperature": 0,
        "ignore_eos": True, "max_tokens": tokens, "stream": True,
        "stream_options": {"include_usage": True},
    }, separators=(",", ":")).encode()


def deal(seed: str, plan: Plan) -> list[int]:
    """The group (0 .. 7) of each arrival, 0 being the hot one.

    All strategies of a round get the same sequence.
    """
    if plan.hot:
        hot = HOT_REQUESTS[plan.scenario]
        cold = [1 + i % (GROUPS - 1) for i in range(REQUESTS - hot)]
        groups = [0] * hot + cold
    else:
        groups = [i % GROUPS for i in range(REQUESTS)]
    key = f"{seed}/{plan.scenario}/{plan.round}/{plan.repeat}"
    random.Random(key).shuffle(groups)
    return groups
