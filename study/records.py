"""The raw records: JSON lines, compressed, readable at any moment."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Iterator


class Writer:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        # 31: with gzip's header and trailer
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, 31)

    def write(self, record: str, **fields: Any) -> None:
        line = json.dumps({"record": record, **fields},
                          separators=(",", ":")) + "\n"
        self._file.write(self._gzip.compress(line.encode()))

    def flush(self) -> None:
        """What was written can be read even if we are killed now."""
        self._file.write(self._gzip.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        self._file.write(self._gzip.flush())
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
