"""`python -m torture.checker FOLDER`: prints the findings. Exit code: 0 without findings, 1 with, 2 for bad records."""

from __future__ import annotations

import sys
from pathlib import Path

from . import BadRecords, check


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m torture.checker FOLDER (it has run.json, audit.jsonl, sink.jsonl, …)", file=sys.stderr)
        return 2
    try:
        findings = check(Path(arguments[0]))
    except BadRecords as error:
        print(f"these records cannot be checked: {error}", file=sys.stderr)
        return 2
    for finding in findings:
        print(f"{finding.invariant}: {finding.message}")
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
