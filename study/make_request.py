#!/usr/bin/python3
"""Rebuilds any request of a study byte for byte and writes its body to
standard output. Sends nothing.

The family is the document's number (a candidate's in hot phases, 101 and up
for those that warmed compute shapes), the index the six-digit number of the
request: 0 to 95, or from 900000 on for initialisation requests, as
requests.jsonl.gz has them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from protocol import body


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--results", type=Path, default=Path("results.json"))
    p.add_argument("--phase", required=True)
    p.add_argument("--family", type=int, required=True)
    p.add_argument("--index", type=int, required=True)
    p.add_argument("--attempt", type=int,
                   help="at the initial state (the last one)")
    args = p.parse_args()

    results = json.loads(args.results.read_text())
    run = results["run"]
    phase = next((x for x in results["phases"]
                  if x["phase"] == args.phase), None)
    if phase is None:
        p.error(f"{args.results} has no phase {args.phase}")
    attempt = args.attempt or phase["attempts"][-1]["attempt"]
    sys.stdout.buffer.write(body(run["seed"], args.phase, attempt,
                                 args.family, args.index, run["model"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
