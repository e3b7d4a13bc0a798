"""The report's figures, as PNG."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the choice of backend)
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from protocol import RATE, REQUESTS, SCENARIOS, TTFT_BOUND  # noqa: E402
from published import FIGURES  # noqa: E402

Record = dict[str, Any]

COLOURS = {"random": "#7f7f7f", "least-request": "#0072b2",
           "prefix-cache": "#d55e00", "least-work": "#009e73"}
MORE_COLOURS = ("#cc79a7", "#56b4e9", "#8c564b", "#bcbd22")
ENGINE_COLOURS = {"A": "#0072b2", "B": "#e69f00"}
MARKERS = {"cold": "s", "warm-uniform": "o", "hot-50": "^", "hot-90": "D"}

plt.rcParams.update({
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.25, "figure.dpi": 110,
    "legend.frameon": False})


class Figures:
    """Draws from results.json and the raw requests, repeat 1 where single
    requests are shown."""

    def __init__(self, results: Record, requests: list[Record],
                 folder: Path) -> None:
        self._folder = folder
        self._scale = results["run"]["speed"] / 1e9
        self._pods = {p: n for n, p in results["run"]["pods"].items()}
        self._measured = [p for p in results["phases"] if p["figures"]]
        self._summary = {(s["scenario"], s["round"], s["strategy"]): s
                         for s in results["summary"]}
        self._strategies = [s for s in results["run"]["strategies"]
                            if any(s == p["strategy"]
                                   for p in self._measured)]
        self._scenarios = [s for s in SCENARIOS
                           if any(s == p["scenario"]
                                  for p in self._measured)]
        self._requests: dict[str, list[Record]] = defaultdict(list)
        for request in requests:
            self._requests[request["phase"]].append(request)
        more = iter(MORE_COLOURS * 4)
        self._colours = {s: COLOURS.get(s) or next(more)
                         for s in self._strategies}

    def draw(self) -> list[tuple[str, str]]:
        """(file, caption) of each."""
        drawn = [
            (self._cdfs(), "TTFT of every request, by scenario: the share "
             "that had its first token within that time. Solid round one, "
             "dashed round two; the vertical line is the 2 s bound."),
            (self._bars("ttft_p95", "TTFT P95, s", "ttft-p95.png"),
             "P95 of TTFT, the rounds apart. Diamonds: published."),
            (self._bars("passed", "passes of 96", "passes.png"),
             "Requests within all bounds. Diamonds: published."),
            (self._split(), "Where the requests went. Vertical marks: "
             "published share of A. In cold and warm phases it is chance "
             "which replica gets more."),
            (self._hits_against_tail(), "The study's point: a hit rate is "
             "not a latency. Each point is a phase."),
        ]
        drawn += [(self._queues(s), f"{s}: requests in flight (lines, from "
                   "the client) and waiting in the engine (filled, from the "
                   "snapshots).") for s in self._scenarios]
        drawn.append((self._scatter(), "TTFT of every request of round one "
                      "against its arrival, by replica."))
        return drawn

    def _save(self, name: str) -> str:
        plt.savefig(self._folder / name, bbox_inches="tight")
        plt.close()
        return name

    def _phase(self, scenario: str, number: int,
               strategy: str) -> Record | None:
        for p in self._measured:
            if (p["scenario"], p["round"], p["strategy"],
                    p["repeat"]) == (scenario, number, strategy, 1):
                return p
        return None

    def _ttfts(self, phase: Record) -> list[tuple[float, float, str]]:
        """(arrival, TTFT, replica) of the requests that had content."""
        return [(r["scheduled_ns"] * self._scale,
                 (r["first_ns"] - r["sent_ns"]) * self._scale,
                 self._pods.get(r["pod"], "?"))
                for r in self._requests[phase["phase"]] if r["first_ns"]]

    def _cdfs(self) -> str:
        columns = min(2, len(self._scenarios))
        rows = -(-len(self._scenarios) // columns)
        figure, axes = plt.subplots(rows, columns, squeeze=False,
                                    figsize=(5 * columns, 3.2 * rows),
                                    sharey=True)
        for ax in axes.flat[len(self._scenarios):]:
            ax.set_visible(False)
        for scenario, ax in zip(self._scenarios, axes.flat):
            for phase in self._measured:
                if phase["scenario"] != scenario or phase["repeat"] != 1:
                    continue
                times = sorted(t for _, t, _ in self._ttfts(phase))
                ax.step(times, [(i + 1) / REQUESTS
                                for i in range(len(times))], where="post",
                        color=self._colours[phase["strategy"]], lw=1.4,
                        ls="-" if phase["round"] == 1 else "--")
            ax.axvline(TTFT_BOUND, color="black", lw=0.8)
            ax.set_xscale("log")
            ax.set_xlim(0.1, 20)
            ax.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20],
                          ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])
            ax.set_title(scenario)
            ax.set_xlabel("TTFT, s of engine time")
        for row in axes:
            row[0].set_ylabel("share of the 96 arrivals")
        self._strategy_legend(figure)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        return self._save("ttft-cdf.png")

    def _strategy_legend(self, figure: Any, *more: Any) -> None:
        figure.legend(handles=[
            *(Patch(color=self._colours[s], label=s)
              for s in self._strategies), *more],
            loc="lower center", ncol=len(self._strategies) + len(more))

    def _bars(self, field: str, label: str, name: str) -> str:
        figure, axes = plt.subplots(
            1, len(self._scenarios), squeeze=False, sharey=True,
            figsize=(2.9 * len(self._scenarios), 3.4))
        for scenario, ax in zip(self._scenarios, axes[0]):
            self._bar_group(ax, scenario, field)
            ax.set_title(scenario)
            ax.grid(axis="x", visible=False)
        axes[0][0].set_ylabel(label)
        self._strategy_legend(figure, Line2D(
            [], [], marker="D", color="black", mfc="white", ls="",
            label="published"))
        figure.tight_layout(rect=(0, 0.09, 1, 1))
        return self._save(name)

    def _bar_group(self, ax: Axes, scenario: str, field: str) -> None:
        width = len(self._strategies) + 1
        for number in (1, 2):
            for i, strategy in enumerate(self._strategies):
                x = (number - 1) * width + i
                known = self._summary.get((scenario, number, strategy))
                value = known and known[field]
                if value:
                    ax.bar(x, value["median"], 0.9,
                           color=self._colours[strategy])
                    if value["n"] > 1:
                        ax.vlines(x, value["p10"], value["p90"],
                                  color="black", lw=1)
                theirs = FIGURES.get((scenario, number, strategy),
                                     {}).get(field)
                if theirs is not None:
                    ax.plot(x, theirs, "D", ms=6, mec="black", mfc="white")
        middle = (len(self._strategies) - 1) / 2
        ax.set_xticks([middle, middle + width], ["round 1", "round 2"])

    def _split(self) -> str:
        phases = [p for p in self._measured if p["repeat"] == 1]
        figure, ax = plt.subplots(figsize=(7.5, 0.24 * len(phases) + 1.2))
        for y, phase in enumerate(phases):
            left = 0
            for name, colour in ENGINE_COLOURS.items():
                count = phase["figures"]["split"][name]
                ax.barh(y, count, 0.8, left=left, color=colour)
                ax.text(left + count / 2, y, str(count), ha="center",
                        va="center", color="white" if name == "A"
                        else "black", fontsize=7)
                left += count
            theirs = FIGURES.get((phase["scenario"], phase["round"],
                                  phase["strategy"]), {}).get("split")
            if theirs:
                ax.vlines(theirs[0], y - 0.5, y + 0.5, color="black", lw=2.5)
        ax.set_yticks(range(len(phases)), [p["phase"] for p in phases],
                      fontsize=7)
        ax.invert_yaxis()
        ax.margins(y=0.01)
        ax.set_xlim(0, REQUESTS)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("requests")
        figure.legend(handles=[
            *(Patch(color=c, label=n) for n, c in ENGINE_COLOURS.items()),
            Line2D([], [], color="black", lw=2.5, label="published A")],
            loc="lower center", ncol=3)
        figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))
        return self._save("split.png")

    def _hits_against_tail(self) -> str:
        figure, ax = plt.subplots(figsize=(7, 4.2))
        for phase in self._measured:
            f = phase["figures"]
            if f["hit_rate"]["all"] is not None and f["ttft"]["p95"]:
                ax.plot(100 * f["hit_rate"]["all"], f["ttft"]["p95"],
                        MARKERS[phase["scenario"]], ms=8, alpha=0.85,
                        color=self._colours[phase["strategy"]])
        ax.axhline(TTFT_BOUND, color="black", lw=0.8)
        ax.set_yscale("log")
        ax.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20],
                      ["0.2", "0.5", "1", "2", "5", "10", "20"])
        ax.set_xlabel("KV hit rate of the phase, % of prompt tokens")
        ax.set_ylabel("TTFT P95, s")
        ax.legend(handles=[
            *(Patch(color=c, label=s) for s, c in self._colours.items()),
            *(Line2D([], [], marker=MARKERS[s], color="black", ls="",
                     label=s) for s in self._scenarios)],
            loc="center left", bbox_to_anchor=(1, 0.5))
        return self._save("hits-tail.png")

    def _queues(self, scenario: str) -> str:
        here = [p for p in self._measured if p["scenario"] == scenario]
        rounds = sorted({p["round"] for p in here})
        strategies = [s for s in self._strategies
                      if any(s == p["strategy"] for p in here)]
        figure, axes = plt.subplots(
            len(strategies), len(rounds), squeeze=False, sharex=True,
            sharey=True, figsize=(10, 1.7 * len(strategies) + 0.8))
        for strategy, row in zip(strategies, axes):
            for number, ax in zip(rounds, row):
                phase = self._phase(scenario, number, strategy)
                ax.set_title(f"{strategy}, round {number}", fontsize=9,
                             loc="left")
                if phase:
                    self._queue(ax, phase)
                else:
                    ax.text(0.5, 0.5, "not measured", ha="center",
                            transform=ax.transAxes)
            row[0].set_ylabel("requests")
        for ax in axes[-1]:
            ax.set_xlabel("seconds of engine time")
        figure.legend(handles=[
            *(Line2D([], [], color=c, label=f"{n} in flight")
              for n, c in ENGINE_COLOURS.items()),
            *(Patch(color=c, alpha=0.35, label=f"{n} waiting")
              for n, c in ENGINE_COLOURS.items())],
            loc="lower center", ncol=4)
        figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
        return self._save(f"queue-{scenario}.png")

    def _queue(self, ax: Axes, phase: Record) -> None:
        for name, colour in ENGINE_COLOURS.items():
            changes = sorted(
                change for r in self._requests[phase["phase"]]
                if self._pods.get(r["pod"]) == name
                for change in ((r["sent_ns"] * self._scale, 1),
                               (r["end_ns"] * self._scale, -1)))
            times, levels = [0.0], [0]
            for time, change in changes:
                times.append(time)
                levels.append(levels[-1] + change)
            ax.step(times, levels, where="post", color=colour, lw=1.1)
            waiting = [(s["seconds"], s["engines"][name]["waiting"])
                       for s in phase["snapshots"]
                       if s["engines"][name]
                       and s["engines"][name]["waiting"] is not None]
            if waiting:
                ax.fill_between(*zip(*waiting), color=colour, alpha=0.35,
                                lw=0)

    def _scatter(self) -> str:
        figure, axes = plt.subplots(
            len(self._scenarios), len(self._strategies), squeeze=False,
            sharex=True, sharey=True,
            figsize=(2.7 * len(self._strategies),
                     2 * len(self._scenarios) + 0.5))
        for scenario, row in zip(self._scenarios, axes):
            for strategy, ax in zip(self._strategies, row):
                phase = self._phase(scenario, 1, strategy)
                for name, colour in ENGINE_COLOURS.items():
                    points = [(x, y) for x, y, pod in self._ttfts(phase)
                              if pod == name] if phase else []
                    if points:
                        ax.plot(*zip(*points), "o", ms=2.8, color=colour)
                ax.axhline(TTFT_BOUND, color="black", lw=0.8)
                ax.set_yscale("log")
                ax.set_yticks([0.2, 1, 2, 5, 10],
                              ["0.2", "1", "2", "5", "10"])
                ax.minorticks_off()
                ax.set_xlim(0, REQUESTS / RATE)
                ax.set_title(f"{scenario}, {strategy}", fontsize=8)
            row[0].set_ylabel("TTFT, s")
        for ax in axes[-1]:
            ax.set_xlabel("arrival, s")
        figure.legend(handles=[
            Line2D([], [], marker="o", ls="", color=c, label=n)
            for n, c in ENGINE_COLOURS.items()], loc="lower center", ncol=2)
        figure.tight_layout(rect=(0, 0.3 / figure.get_figheight(), 1, 1))
        return self._save("scatter.png")
