"""The two engines and the router, as seen through their HTTP interfaces.

A reading that cannot be had is None, never zero.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from client import Client
from prometheus_text import by_label, samples, total

Counters = dict[str, int | None]


@dataclass
class Engine:
    name: str
    url: str
    pod: str
    client: Client

    async def _metrics(self) -> str | None:
        return await self.client.get(f"{self.url}/metrics")

    async def load(self) -> Counters | None:
        text = await self._metrics()
        if text is None:
            return None
        return {"running": total(text, "vllm:num_requests_running"),
                "waiting": total(text, "vllm:num_requests_waiting")}

    async def counters(self) -> Counters | None:
        text = await self._metrics()
        if text is None:
            return None
        ended = samples(text, "vllm:request_success_total")
        return {
            "finished": round(sum(
                s.value for s in ended
                if s.labels.get("finished_reason") != "abort"))
            if ended else None,
            "queries": total(text, "vllm:prefix_cache_queries_total"),
            "hits": total(text, "vllm:prefix_cache_hits_total"),
            "prompt_tokens": total(text, "vllm:prompt_tokens_total"),
            "generation_tokens": total(text, "vllm:generation_tokens_total"),
        }

    async def reset_cache(self) -> bool:
        """True only when the engine says that it was reset."""
        status, text = await self.client.post(
            f"{self.url}/reset_prefix_cache")
        if status != 200:
            return False
        try:
            said = json.loads(text)
        except ValueError:
            return True
        return not (isinstance(said, dict) and said.get("success") is False)


@dataclass
class Router:
    url: str
    metrics_url: str
    client: Client

    async def _metrics(self) -> str | None:
        return await self.client.get(self.metrics_url)

    async def inflight(self) -> dict[str, int] | None:
        text = await self._metrics()
        return by_label(text, "aibrix_inflight_requests", "pod") \
            if text is not None else None

    async def counters(self) -> dict[str, dict[str, int] | int | None] | None:
        text = await self._metrics()
        if text is None:
            return None
        done: dict[str, int] = {}
        answered = samples(text, "aibrix_requests_total")
        for sample in answered:
            if sample.labels.get("status") == "2xx":
                pod = sample.labels.get("pod", "")
                done[pod] = done.get(pod, 0) + round(sample.value)
        prefix = "aibrix_prefix_cache_"
        return {
            "requests": done if answered else None,
            "selections": by_label(
                text, prefix + "routing_selection_total", "selection"),
            "match_percent": by_label(
                text, prefix + "routing_decisions_total",
                "match_percent_bucket"),
            "imbalance": total(text, prefix + "load_imbalance_total"),
            "index_blocks": total(text, "aibrix_index_blocks"),
            "index_capacity": total(text, "aibrix_index_capacity_blocks"),
        }


@dataclass
class Fleet:
    engines: list[Engine]
    router: Router

    def name_of(self, pod: str | None) -> str | None:
        """A or B, or None for a pod that is neither."""
        for engine in self.engines:
            if engine.pod == pod:
                return engine.name
        return None

    async def check(self) -> None:
        """Raises RuntimeError for an engine whose load cannot be read."""
        for engine in self.engines:
            load = await engine.load()
            if load is None or None in load.values():
                raise RuntimeError(f"{engine.url}/metrics has no "
                                   "vllm:num_requests_running and _waiting")

    async def wait_idle(self, limit: float) -> bool:
        """Waits until no engine says it has a request; False after limit
        seconds."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            loads = await asyncio.gather(*(e.load() for e in self.engines))
            if all(load is not None and load["running"] == 0
                   and load["waiting"] == 0 for load in loads):
                return True
            await asyncio.sleep(0.05)
        return False
