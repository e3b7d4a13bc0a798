"""Where and with what the study ran."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp

REPO = Path(__file__).resolve().parent.parent


def said(*command: str) -> str | None:
    """What a command prints, both ways; None when it is not there."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, cwd=REPO, text=True, check=False,
                          capture_output=True)
    return (done.stdout + done.stderr).strip() if done.returncode == 0 \
        else None


def clock() -> dict[str, Any]:
    monotonic = time.get_clock_info("monotonic")
    return {"unix_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns(),
            "implementation": monotonic.implementation,
            "resolution_s": monotonic.resolution}


def cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return None


def environment(modules: list[Path]) -> dict[str, Any]:
    dirty = said("git", "status", "--porcelain")
    prometheus = said("prometheus", "--version")
    return {
        "command": sys.argv, "clock": clock(),
        "machine": {"system": platform.platform(), "cpu": cpu_model(),
                    "cpus": os.cpu_count(),
                    "load_average": list(os.getloadavg())},
        "versions": {"python": platform.python_version(),
                     "aiohttp": aiohttp.__version__,
                     "nginx": said("nginx", "-v"),
                     "prometheus": prometheus and prometheus.split("\n")[0]},
        "git": {"revision": said("git", "rev-parse", "HEAD"),
                "changed": None if dirty is None else dirty.splitlines()},
        "modules": {m.name: sha256(m.read_bytes()).hexdigest()
                    for m in modules},
    }
