"""Prints docs/settings.md, made from `duly.config.Settings`: python scripts/settings_table.py > docs/settings.md."""

from __future__ import annotations

import sys
from typing import Any

from pydantic.fields import FieldInfo

from duly.config import Settings

HEAD = """\
# Settings

A setting is read from the environment (`DULY_CONCURRENCY=20`) or from `duly.toml` in the current folder
(`concurrency = 20`). Flags of a command win over the environment, the environment over `duly.toml`, and that over the
defaults. `app = Duly(settings=Settings(...))` (from `duly.config`) sets them in code.

`DULY_URL` and `DULY_API_KEY` are not in this table: they tell a client, and the command line, which API to use.

A setting that does not exist, because it is misspelt or of another version, keeps Duly from starting;
`DULY_UNKNOWN_SETTINGS=warn` turns that into a warning. Variables that Kubernetes makes for Services named `duly…` are
ignored.

This page is made from the code by `make docs`; a test fails when it is out of date.

| environment variable | default | allowed | meaning |
| --- | --- | --- | --- |"""


def main() -> None:
    sys.stdout.write(f"{HEAD}\n")
    for name, field in Settings.model_fields.items():
        sys.stdout.write(
            f"| `DULY_{name.upper()}` | {shown(field.default)} | {allowed(field)} | {field.description} |\n"
        )


def shown(value: Any) -> str:
    if value is None or value == "":
        return "unset" if value is None else "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def allowed(field: FieldInfo) -> str:
    if field.annotation == (bool | tuple[str, ...]):
        return "`true`, `false`, a list"
    if field.annotation is bool:
        return "`true`, `false`"
    bounds = {
        name: value
        for rule in field.metadata
        for name in ("ge", "gt", "le")
        if (value := getattr(rule, name, None)) is not None
    }
    parts = [f"{word} {bounds[name]:,}" for name, word in (("ge", "≥"), ("gt", ">"), ("le", "≤")) if name in bounds]
    return ", ".join(parts)


if __name__ == "__main__":
    main()
