"""Prometheus' text format, as far as counters and gauges need it."""

from __future__ import annotations

import re
from typing import NamedTuple

LINE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


def samples(text: str, name: str) -> list[Sample]:
    """All samples of one metric."""
    found = []
    for line in text.splitlines():
        if line.startswith(name):
            match = LINE.match(line)
            if match and match[1] == name:
                labels = dict(LABEL.findall(match[2] or ""))
                found.append(Sample(labels, float(match[3])))
    return found


def total(text: str, name: str) -> int | None:
    """The sum over all labels; None when there is no such metric."""
    found = samples(text, name)
    return round(sum(s.value for s in found)) if found else None


def by_label(text: str, name: str, label: str) -> dict[str, int] | None:
    """Sums by the values of a label; None when there is no such metric."""
    sums: dict[str, float] = {}
    for sample in samples(text, name):
        key = sample.labels.get(label, "")
        sums[key] = sums.get(key, 0) + sample.value
    return {k: round(v) for k, v in sorted(sums.items())} if sums else None
