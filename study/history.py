"""A real Prometheus beside the study, and the export of what it saw."""

from __future__ import annotations

import gzip
import json
import shutil
import time
import urllib.parse
import urllib.request
from pathlib import Path

from lab import Process, free_ports

NAMES = "aibrix_.+|vllm:.+|study_.+|up"
MAX_POINTS = 10000


class History:
    """Scrapes every five seconds of engine time, 250 ms at the least."""

    def __init__(self, work: Path, targets: dict[str, str],
                 speed: float) -> None:
        self._interval = max(5 / speed, 0.25)
        self._begin = time.time()
        work.mkdir(parents=True)
        (work / "prometheus.yml").write_text(
            self._configuration(targets))
        port, = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._process = Process(work, [
            "prometheus", "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error"])
        self._process.wait_port(port, 20)

    @staticmethod
    def available() -> bool:
        return shutil.which("prometheus") is not None

    def _configuration(self, targets: dict[str, str]) -> str:
        scrapes = []
        for job, url in targets.items():
            parts = urllib.parse.urlsplit(url)
            scrapes.append({
                "job_name": job, "scheme": parts.scheme,
                "metrics_path": parts.path,
                "static_configs": [{"targets": [parts.netloc]}]})
        interval = f"{round(self._interval * 1000)}ms"
        # YAML is a superset of JSON
        return json.dumps({
            "global": {"scrape_interval": interval,
                       "scrape_timeout": interval},
            "scrape_configs": scrapes}, indent=1)

    def export(self, path: Path) -> None:
        """Writes all series since the start as one range query's answer."""
        end = time.time()
        step = max(self._interval, (end - self._begin) / MAX_POINTS)
        query = urllib.parse.urlencode({
            "query": f'{{__name__=~"{NAMES}"}}', "start": self._begin,
            "end": end, "step": step})
        with urllib.request.urlopen(
                f"{self._url}/api/v1/query_range?{query}",
                timeout=120) as answer:
            data = json.load(answer)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump({"start": self._begin, "end": end, "step": step,
                       **data}, file, separators=(",", ":"))

    def stop(self) -> None:
        self._process.stop()
