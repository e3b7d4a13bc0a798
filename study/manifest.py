"""SHA-256 of every output; `sha256sum -c manifest.sha256` checks them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

NAME = "manifest.sha256"


def write(folder: Path) -> None:
    files = sorted(p for p in folder.rglob("*")
                   if p.is_file() and p.name != NAME)
    (folder / NAME).write_text("".join(
        f"{sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder)}\n"
        for p in files))
