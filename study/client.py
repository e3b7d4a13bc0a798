"""The client: one streamed completion with raw timestamps, and open-loop
arrivals that wait for no reply."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Coroutine

import aiohttp

from protocol import REQUEST_TIMEOUT
from sse import SseReader

HEADERS = {"content-type": "application/json"}


@dataclass
class Reply:
    """What came of one POST; times are nanoseconds of the monotonic clock."""

    sent_ns: int
    end_ns: int = 0
    headers_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    status: int | None = None
    pod: str | None = None
    contents: int = 0
    done: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None

    def succeeded(self, tokens: int) -> bool:
        return (self.status == 200 and self.contents > 0 and self.done
                and self.completion_tokens == tokens)

    def _event(self, data: bytes, now: int) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = json.dumps(event["error"])[:500]
        for choice in event.get("choices", []):
            if choice.get("text"):
                self.contents += 1
                self.first_ns = self.first_ns or now
                self.last_ns = now
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens")

    async def read(self, response: aiohttp.ClientResponse) -> None:
        self.headers_ns = time.monotonic_ns()
        self.status = response.status
        self.pod = response.headers.get("target-pod")
        if response.status != 200:
            self.error = (await response.text())[:500]
            return
        reader = SseReader()
        async for chunk in response.content.iter_any():
            now = time.monotonic_ns()
            for data in reader.feed(chunk):
                self._event(data, now)


class Client:
    """Sends to any entry point; never retries."""

    def __init__(self, speed: float) -> None:
        self._timeout = aiohttp.ClientTimeout(
            total=max(REQUEST_TIMEOUT / speed, 30))
        # engines commonly close idle connections after five seconds
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3))

    async def close(self) -> None:
        await self._session.close()

    async def complete(self, url: str, body: bytes,
                       strategy: str | None = None) -> Reply:
        headers = dict(HEADERS)
        if strategy is not None:
            headers["routing-strategy"] = strategy
        reply = Reply(sent_ns=time.monotonic_ns())
        try:
            async with self._session.post(
                    f"{url}/v1/completions", data=body, headers=headers,
                    timeout=self._timeout) as response:
                await reply.read(response)
        except (aiohttp.ClientError, asyncio.TimeoutError,
                ValueError) as error:
            reply.error = f"{type(error).__name__}: {error}"[:500]
        reply.end_ns = time.monotonic_ns()
        return reply

    async def get(self, url: str) -> str | None:
        """The text at url, or None when it cannot be had."""
        try:
            async with self._session.get(
                    url, timeout=aiohttp.ClientTimeout(total=5)) as response:
                return await response.text() if response.status == 200 \
                    else None
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return None

    async def post(self, url: str) -> tuple[int | None, str]:
        """An empty POST: the status (None without one) and the text."""
        try:
            async with self._session.post(
                    url, timeout=aiohttp.ClientTimeout(total=30)) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return None, str(error)


Send = Callable[[int, int], Coroutine[Any, Any, None]]


async def open_loop(count: int, interval: float, send: Send) -> None:
    """Calls send(i, scheduled_ns) at fixed times, whatever became of the
    earlier ones, then waits for all. Cancelled, it cancels them."""
    start = time.monotonic_ns() + 50_000_000
    tasks: list[asyncio.Task[None]] = []
    try:
        for i in range(count):
            scheduled = start + round(i * interval * 1e9)
            await asyncio.sleep((scheduled - time.monotonic_ns()) / 1e9)
            tasks.append(asyncio.create_task(send(i, scheduled)))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
