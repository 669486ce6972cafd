"""`python -m torture.report FOLDER …`: writes the report of each checked run and prints the table over all of them."""

from __future__ import annotations

import sys
from pathlib import Path

from . import summary, write


def main(arguments: list[str]) -> int:
    folders = [Path(argument) for argument in arguments]
    missing = [str(folder) for folder in folders if not (folder / "figures.json").is_file()]
    if not folders or missing:
        said = f"not checked yet (python -m torture.checker FOLDER): {', '.join(missing)}" if missing else ""
        print(said or "usage: python -m torture.report FOLDER …", file=sys.stderr)
        return 2
    for folder in folders:
        write(folder)
    print(summary(folders), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
