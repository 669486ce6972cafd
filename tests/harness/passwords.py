"""Addresses with a password, in every spelling, and a check that no part of the password is shown."""

from __future__ import annotations

from collections.abc import Iterator

MARK = "Zq7XwVj9Kp"
PIECES = [MARK[at : at + 4] for at in range(len(MARK) - 3)]
# Plain and percent-encoded, with odd characters around, and with a beginning that looks like a port.
PASSWORDS = [MARK, *(f"12{odd}{MARK}" for odd in "/?#@:%&= "), *(f"{MARK}{odd}34" for odd in "/?#@:"), f"a%2F{MARK}%40"]


def addresses_with(password: str) -> Iterator[str]:
    """PostgreSQL addresses at port 1, where no server listens."""
    yield f"postgresql://u:{password}@127.0.0.1:1/d"
    yield f"postgres://u:{password}@127.0.0.1:1,[::1]:1/d?sslmode=disable"
    yield f"postgresql://u:{password}@127.0.0.1:port/d"
    yield f"postgresql://u:{password}@[::1/d"
    yield f"postgresql://u:{password}@"
    if password == MARK:  # any other password could be a port and a database
        yield f"postgresql://u:{password}"
    yield f"postgresql://u@127.0.0.1:1/d?password={password}"
    yield f"postgresql://127.0.0.1:1/d?user=u&password={password}&sslmode=nonsense"
    yield f"postgresql://u@127.0.0.1:1/d?sslpassword={password}&connect_timeout=1"
    yield f"postgresql://u@127.0.0.1:1/d?{password}"
    yield f"host=127.0.0.1 port=1 user=u password={password}"
    yield f"u:{password}@127.0.0.1:1/d"
    yield f"postgresql:/u:{password}@127.0.0.1:1/d"
    yield f"mysql://u:{password}@127.0.0.1:1/d"
    yield f"{password}"
    yield f"{password}://u@127.0.0.1:1/d"


def assert_hidden(shown: str, address: str = "") -> None:
    assert not [piece for piece in PIECES if piece in shown], (address, shown)
    # The scheme of a URL is shown in lower case.
    assert MARK.lower() not in shown, (address, shown)
