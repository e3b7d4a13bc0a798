"""The initial states: made as the protocol says, then verified."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from attribution import grown
from client import Client, Reply
from engines import Fleet
from protocol import (CANDIDATES, FIRST_INIT_INDEX, FIRST_WARM_UP_FAMILY,
                      GROUPS, INIT_TOKENS, RETRIES, WARM_UP, Plan, body)
from records import Writer
from stats import ratio

BOOTSTRAP_STRATEGY = "prefix-cache"
IDLE_SECONDS = 600
WARM_HIT_RATE = 0.9


class NotQualified(Exception):
    """An initial state could not be had, and why."""


@dataclass
class State:
    """One attempt at an initial state."""

    attempt: int
    qualified: bool = False
    reason: str | None = None
    reset: dict[str, bool] = field(default_factory=dict)
    idle: bool = False
    candidates: list[dict[str, Any]] = field(default_factory=list)
    index: dict[str, str | None] = field(default_factory=dict)
    warm_hit_rate: dict[str, float | None] = field(default_factory=dict)
    families: list[int] = field(default_factory=list)

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


class Preparation:
    """Makes the state before one phase."""

    def __init__(self, plan: Plan, fleet: Fleet, client: Client,
                 writer: Writer, seed: str, model: str,
                 speed: float) -> None:
        self._plan = plan
        self._fleet = fleet
        self._client = client
        self._writer = writer
        self._seed = seed
        self._model = model
        self._idle_limit = max(IDLE_SECONDS / speed, 10)

    async def run(self) -> list[State]:
        """All attempts; the last one qualified, or none did."""
        states = []
        for attempt in range(1, 2 + (RETRIES if self._plan.hot else 0)):
            state = State(attempt)
            states.append(state)
            self._indices = count(FIRST_INIT_INDEX)
            try:
                await self._make(state)
                state.qualified = True
                break
            except NotQualified as why:
                state.reason = str(why)
        return states

    async def _make(self, state: State) -> None:
        await self._warm_shapes(state)
        await self._wait_idle()
        for engine in self._fleet.engines:
            state.reset[engine.name] = await engine.reset_cache()
        if not all(state.reset.values()):
            raise NotQualified("an engine did not reset its cache")
        if self._plan.hot:
            await self._sort_candidates(state)
        else:
            state.families = list(range(1, GROUPS + 1))
        if self._plan.scenario == "warm-uniform":
            await self._warm_both(state)
            await self._bootstrap(state)
        await self._wait_idle()
        state.idle = True

    async def _wait_idle(self) -> None:
        if not await self._fleet.wait_idle(self._idle_limit):
            raise NotQualified("the engines did not become idle")

    async def _send(self, state: State, purpose: str, family: int, url: str,
                    strategy: str | None = None) -> Reply:
        index = next(self._indices)
        reply = await self._client.complete(
            url, body(self._seed, self._plan.id, state.attempt, family, index,
                      self._model), strategy)
        self._writer.write(
            "init", phase=self._plan.id, attempt=state.attempt,
            purpose=purpose, family=family, index=index, url=url,
            status=reply.status, pod=reply.pod,
            cached_tokens=reply.cached_tokens, error=reply.error)
        if not reply.succeeded(INIT_TOKENS):
            raise NotQualified(f"a request to {purpose} failed: "
                               f"{reply.error or reply.status}")
        return reply

    async def _warm_shapes(self, state: State) -> None:
        """Cold prompts at each concurrency, on both engines at once."""
        async def warm(url: str) -> None:
            family = FIRST_WARM_UP_FAMILY
            for concurrency in WARM_UP:
                await asyncio.gather(*(
                    self._send(state, "warm shapes", family + i, url)
                    for i in range(concurrency)))
                family += concurrency

        await asyncio.gather(*(warm(e.url) for e in self._fleet.engines))

    async def _warm_both(self, state: State) -> None:
        """Every group on both engines, then again to see that it is there."""
        for purpose in "warm groups", "verify groups":
            before = [await e.counters() for e in self._fleet.engines]
            await asyncio.gather(*(
                self._send(state, purpose, family, engine.url)
                for engine in self._fleet.engines
                for family in state.families))
        for engine, old in zip(self._fleet.engines, before):
            new = await engine.counters()
            rate = ratio(grown(old, new, "hits"), grown(old, new, "queries"))
            state.warm_hit_rate[engine.name] = rate
            if rate is not None and rate < WARM_HIT_RATE:
                raise NotQualified(f"groups are not warm on {engine.name}: "
                                   f"hit rate {rate:.3f}")

    async def _route(self, state: State, family: int) -> str | None:
        reply = await self._send(state, "bootstrap", family,
                                 self._fleet.router.url, BOOTSTRAP_STRATEGY)
        return self._fleet.name_of(reply.pod)

    async def _bootstrap(self, state: State) -> None:
        """One request a group, one after another; the split is what it is."""
        for family in state.families:
            name = await self._route(state, family)
            if name is None:
                raise NotQualified("target-pod names no engine")
            state.index[str(family)] = name

    async def _sort_candidates(self, state: State) -> None:
        """Candidates twice each; four that stay on A and four on B, the hot
        group, one of B's, first."""
        for family in range(1, CANDIDATES + 1):
            state.candidates.append(
                {"family": family, "first": await self._route(state, family)})
        for candidate in state.candidates:
            candidate["second"] = await self._route(state,
                                                    candidate["family"])
        sides = {e.name: [c["family"] for c in state.candidates
                          if c["first"] == c["second"] == e.name]
                 for e in self._fleet.engines}
        half = GROUPS // 2
        if any(len(families) < half for families in sides.values()):
            raise NotQualified("candidates by engine: " + ", ".join(
                f"{name} {len(f)}" for name, f in sides.items()))
        for name in reversed(sides):
            state.families += sides[name][:half]
            state.index.update((str(f), name) for f in sides[name][:half])
