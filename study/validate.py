#!/usr/bin/python3
"""Validates requests.jsonl.gz and results.json of a folder against their
schemas. Needs python3-jsonschema.

usage: validate.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

from records import read

HERE = Path(__file__).resolve().parent


def validator(name: str) -> Draft7Validator:
    schema: dict[str, Any] = json.loads((HERE / name).read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def main(folder: Path) -> int:
    raw = validator("requests.schema.json")
    wrong = []
    for number, record in enumerate(read(folder / "requests.jsonl.gz"), 1):
        wrong += [f"requests.jsonl.gz:{number}: {error.message}"
                  for error in raw.iter_errors(record)]
    results = json.loads((folder / "results.json").read_text())
    wrong += [f"results.json: {list(error.path)}: {error.message}"
              for error in
              validator("results.schema.json").iter_errors(results)]
    print("\n".join(wrong) or "valid")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
