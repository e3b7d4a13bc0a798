"""The client's own /metrics: TTFT buckets and outcomes by phase."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from aiohttp import web

BOUNDS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30)


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(BOUNDS, value)] += 1
        self._sum += value

    def lines(self, name: str, label: str) -> list[str]:
        lines, seen = [], 0
        for bound, count in zip((*BOUNDS, "+Inf"), self._counts):
            seen += count
            lines.append(f'{name}_bucket{{{label},le="{bound}"}} {seen}')
        return [*lines, f"{name}_sum{{{label}}} {self._sum}",
                f"{name}_count{{{label}}} {seen}"]


class Exporter:
    def __init__(self) -> None:
        self._ttft: dict[str, Histogram] = {}
        self._outcomes: Counter[tuple[str, str]] = Counter()

    def observe(self, phase: str, ttft: float | None, passed: bool) -> None:
        """ttft in seconds of engine time, None when there was no content."""
        histogram = self._ttft.setdefault(phase, Histogram())
        if ttft is not None:
            histogram.observe(ttft)
        self._outcomes[phase, "pass" if passed else "fail"] += 1

    def text(self) -> str:
        lines = ["# HELP study_ttft_seconds Time to first token at the "
                 "client, engine time.",
                 "# TYPE study_ttft_seconds histogram"]
        for phase, histogram in self._ttft.items():
            lines += histogram.lines("study_ttft_seconds",
                                     f'phase="{phase}"')
        lines += ["# HELP study_requests_total Requests by outcome.",
                  "# TYPE study_requests_total counter"]
        lines += [f'study_requests_total{{phase="{phase}",'
                  f'outcome="{outcome}"}} {count}'
                  for (phase, outcome), count in self._outcomes.items()]
        return "\n".join(lines) + "\n"

    async def serve(self, port: int) -> web.AppRunner:
        """Serves on 127.0.0.1 until the runner's cleanup()."""
        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=self.text())

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner
