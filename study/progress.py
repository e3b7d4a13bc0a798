"""One line on a terminal that tells how far the study is; nothing in a
pipe."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self, phases: int) -> None:
        self._on = sys.stderr.isatty()
        self._phases = phases
        self._number = 0
        self._started = time.monotonic()
        self._phase = ""
        self._sent = self._done = self._passed = 0

    def begin(self, phase: str) -> None:
        self._number += 1
        self._phase = phase
        self._sent = self._done = self._passed = 0
        self._print("preparing")

    def sent(self) -> None:
        self._sent += 1
        self._counts()

    def done(self, passed: bool) -> None:
        self._done += 1
        self._passed += passed
        self._counts()

    def end(self) -> None:
        if self._on:
            print(file=sys.stderr)

    def _counts(self) -> None:
        self._print(f"sent {self._sent} done {self._done} "
                    f"pass {self._passed}")

    def _eta(self) -> str:
        finished = self._number - 1
        if not finished:
            return ""
        spent = time.monotonic() - self._started
        left = round(spent / finished * (self._phases - finished))
        return f"  ETA {left // 60}:{left % 60:02d}"

    def _print(self, text: str) -> None:
        if self._on:
            print(f"\r\033[K[{self._number}/{self._phases}] {self._phase}: "
                  f"{text}{self._eta()}", end="", file=sys.stderr, flush=True)
