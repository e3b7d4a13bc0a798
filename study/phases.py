"""One phase: initial state, arrivals, snapshots, counters."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from hashlib import sha256
from itertools import count
from typing import Any

from attribution import cross_check
from client import Client, Reply, open_loop
from engines import Fleet
from exporter import Exporter
from progress import Progress
from protocol import (E2E_BOUND, OUTPUT_TOKENS, RATE, REQUESTS,
                      SNAPSHOT_SECONDS, TPOT_BOUND, TTFT_BOUND, Plan, body,
                      deal)
from records import Writer
from states import Preparation, State

LAG_PROBE_SECONDS = 0.02
SETTLE_SECONDS = 3


def quantiles(values: list[int]) -> dict[str, int]:
    ordered = sorted(values) or [0]
    return {"p50": ordered[len(ordered) // 2],
            "p99": ordered[len(ordered) * 99 // 100], "max": ordered[-1]}


class Phases:
    """Runs phases one after another and writes their raw records."""

    def __init__(self, fleet: Fleet, client: Client, writer: Writer,
                 exporter: Exporter, progress: Progress, seed: str,
                 model: str, speed: float) -> None:
        self._fleet = fleet
        self._client = client
        self._writer = writer
        self._exporter = exporter
        self._progress = progress
        self._seed = seed
        self._model = model
        self._speed = speed

    async def run(self, plan: Plan) -> None:
        self._progress.begin(plan.id)
        states = await Preparation(
            plan, self._fleet, self._client, self._writer, self._seed,
            self._model, self._speed).run()
        self._writer.write(
            "phase", phase=plan.id, scenario=plan.scenario, round=plan.round,
            repeat=plan.repeat, strategy=plan.strategy,
            attempts=[s.as_record() for s in states],
            started_unix_ns=time.time_ns())
        if states[-1].qualified:
            await self._measure(plan, states[-1])
        self._writer.flush()

    async def _measure(self, plan: Plan, state: State) -> None:
        families = [state.families[g] for g in deal(self._seed, plan)]
        bodies = [body(self._seed, plan.id, state.attempt, family, index,
                       self._model) for index, family in enumerate(families)]
        digests = [sha256(b).hexdigest() for b in bodies]
        before = await self._counters(plan, "before")
        self._writer.write("counters", **before)
        requests: list[dict[str, Any]] = []
        lags: list[int] = []
        zero = time.monotonic_ns()

        async def send(index: int, scheduled: int) -> None:
            self._progress.sent()
            reply = await self._client.complete(
                self._fleet.router.url, bodies[index], plan.strategy)
            requests.append(self._request(plan, index, families[index],
                                          scheduled, zero, reply,
                                          digests[index]))

        watchers = [
            asyncio.create_task(self._snapshots(plan, zero)),
            asyncio.create_task(self._probe_lag(lags)),
        ]
        try:
            await open_loop(REQUESTS, 1 / RATE / self._speed, send)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        await self._after(plan, requests, before)
        self._writer.write(
            "phase_end", phase=plan.id, ended_unix_ns=time.time_ns(),
            load_average=list(os.getloadavg()),
            loop_lag_ns=quantiles(lags))

    def _request(self, plan: Plan, index: int, family: int, scheduled: int,
                 zero: int, reply: Reply, digest: str) -> dict[str, Any]:
        fields = asdict(reply)
        for name in ("sent_ns", "headers_ns", "first_ns", "last_ns",
                     "end_ns"):
            if fields[name] is not None:
                fields[name] -= zero
        record = {"phase": plan.id, "index": index, "family": family,
                  "body_sha256": digest,
                  "scheduled_ns": scheduled - zero, **fields}
        self._writer.write("request", **record)
        ttft, passed = self._judge(reply)
        self._exporter.observe(plan.id, ttft, passed)
        self._progress.done(passed)
        return record

    def _judge(self, reply: Reply) -> tuple[float | None, bool]:
        """TTFT in engine time and whether it passes, for the display; what
        is published is computed from the raw records."""
        if reply.first_ns is None or reply.last_ns is None:
            return None, False
        scale = self._speed / 1e9
        ttft = (reply.first_ns - reply.sent_ns) * scale
        tpot = ((reply.last_ns - reply.first_ns) * scale
                / (OUTPUT_TOKENS - 1))
        e2e = (reply.end_ns - reply.sent_ns) * scale
        return ttft, (reply.succeeded(OUTPUT_TOKENS) and ttft <= TTFT_BOUND
                      and tpot <= TPOT_BOUND and e2e <= E2E_BOUND)

    async def _counters(self, plan: Plan, at: str) -> dict[str, Any]:
        *engines, router = await asyncio.gather(
            *(e.counters() for e in self._fleet.engines),
            self._fleet.router.counters())
        return {"phase": plan.id, "at": at, "engines": {
            e.name: c for e, c in zip(self._fleet.engines, engines)},
            "router": router}

    async def _after(self, plan: Plan, requests: list[dict[str, Any]],
                     before: dict[str, Any]) -> None:
        """The counters once the last requests are counted everywhere."""
        pods = {e.name: e.pod for e in self._fleet.engines}
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            after = await self._counters(plan, "after")
            if cross_check(requests, pods, before, after)["agree"] \
                    or time.monotonic() > end:
                break
            await asyncio.sleep(0.1)
        self._writer.write("counters", **after)

    async def _snapshots(self, plan: Plan, zero: int) -> None:
        interval = round(SNAPSHOT_SECONDS / self._speed * 1e9)
        for number in count():
            left = zero + number * interval - time.monotonic_ns()
            await asyncio.sleep(left / 1e9)
            taken = time.monotonic_ns() - zero
            *loads, inflight = await asyncio.gather(
                *(e.load() for e in self._fleet.engines),
                self._fleet.router.inflight())
            engines = {e.name: load
                       for e, load in zip(self._fleet.engines, loads)}
            router = None if inflight is None else {
                e.name: inflight.get(e.pod) for e in self._fleet.engines}
            self._writer.write("snapshot", phase=plan.id, taken_ns=taken,
                               engines=engines, router=router)

    @staticmethod
    async def _probe_lag(lags: list[int]) -> None:
        """How late the event loop comes back: what a first token may have
        waited in this client."""
        while True:
            due = time.monotonic_ns() + round(LAG_PROBE_SECONDS * 1e9)
            await asyncio.sleep(LAG_PROBE_SECONDS)
            lags.append(max(0, time.monotonic_ns() - due))
