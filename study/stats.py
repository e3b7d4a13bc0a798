"""Statistics in exact arithmetic, so that whoever recomputes them gets the
same last digit."""

from __future__ import annotations

from fractions import Fraction
from typing import Sequence


def percentile(values: Sequence[Fraction], percent: int) -> float | None:
    """Linear interpolation between the closest ranks; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = Fraction((len(ordered) - 1) * percent, 100)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low])
                 * (place - low))


def mean(values: Sequence[Fraction]) -> float | None:
    return float(sum(values) / len(values)) if values else None


def ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
