"""`duly api` serves the API alone."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Callable

from duly.local_keys import key_for
from harness.commands import Process

Start = Callable[..., Process]


def test_the_api_is_served_until_a_signal_and_nothing_else_is(start: Start) -> None:
    process = start("api", "--port", "0")
    url = process.wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
        assert answer.status == 200
    found = key_for(url)
    assert found is not None
    asked = urllib.request.Request(f"{url}/api/v1/cluster", headers={"Authorization": f"Bearer {found[1]}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        cluster = json.load(answer)
    assert (cluster["nodes"], cluster["workers"]) == ([], [])
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said


def test_beyond_loopback_it_wants_keys_and_a_taken_port_is_said_to_be_so(start: Start) -> None:
    open_to_all = start("api", "--host", "0.0.0.0", "--port", "0")
    assert open_to_all.end() == 2
    assert "key" in open_to_all.said
    assert "Traceback" not in open_to_all.said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("api", "--port", str(taken.getsockname()[1]))
        assert process.end() == 2
        assert "is taken" in process.said
