"""A real browser for tests: headless Chromium with one page, controlled over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 120.0
_FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip


def missing() -> str | None:
    """The reason why no browser can be started here, or None."""
    return None if shutil.which("chromium") else "chromium is not installed (scripts/test-services installs it)"


class Browser:
    """One tab. `ask` evaluates an expression in its page; `until` waits until an expression is true."""

    def __init__(self, address: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="duly-chromium-"))
        # Chromium's sandbox does not work for root. Only the test uses this browser, so it can do without.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["chromium", *_FLAGS, *sandbox, f"--user-data-dir={self._folder / 'profile'}", address],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "HOME": str(self._folder)},
            )  # fmt: skip
        self._asked = 0
        self._channel: socket.socket | None = None

    def __enter__(self) -> Self:
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; None while the page cannot evaluate it."""
        self._asked += 1
        asked = {"expression": expression, "returnByValue": True}
        self._send(json.dumps({"id": self._asked, "method": "Runtime.evaluate", "params": asked}).encode())
        while True:
            told = json.loads(self._hear())
            if told.get("id") == self._asked:
                return told.get("result", {}).get("result", {}).get("value")

    def until(self, expression: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression} is never true in:\n{self.ask('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def go(self, address: str) -> None:
        self.ask(f"void (location.href = {json.dumps(address)})")

    def _connect(self) -> None:
        port, path = self._page()
        self._channel = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self._channel.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
        assert head.startswith(b"HTTP/1.1 101"), head

    def _page(self) -> tuple[int, str]:
        """The address of the tab's DevTools: the browser's port and the tab's path."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            found = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", self._log())
            with suppress(OSError, ValueError):
                if found is not None:
                    tabs = json.loads(_get(int(found[1]), "/json/list"))
                    for tab in tabs:
                        if tab["type"] == "page":
                            return int(found[1]), tab["webSocketDebuggerUrl"].split(found[1], 1)[1]
            time.sleep(0.05)
        raise AssertionError(f"chromium did not start:\n{self._log()}")

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _send(self, text: bytes) -> None:
        assert self._channel is not None
        mask = os.urandom(4)
        size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack("!H", len(text))
        masked = bytes(one ^ mask[at % 4] for at, one in enumerate(text))
        self._channel.sendall(b"\x81" + size + mask + masked)

    def _hear(self) -> bytes:
        """The next message, joined from its frames."""
        message = b""
        while True:
            first, size = self._exactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            message += self._exactly(size)
            if first & 0x80:
                return message

    def _exactly(self, count: int) -> bytes:
        assert self._channel is not None
        found = b""
        while len(found) < count:
            part = self._channel.recv(count - len(found))
            assert part, f"chromium closed the connection:\n{self._log()}"
            found += part
        return found


def _get(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as channel:
        channel.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := channel.recv(65536):
            answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if length is not None and len(body) >= int(length[1]):
                return body
    return answer.partition(b"\r\n\r\n")[2]
