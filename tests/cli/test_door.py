"""Access to an API without keys in its store: only the user who started it has access, from whatever address."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import harness.browser as browser
from duly.local_keys import key_for
from harness.commands import PATIENCE, Ended, Process
from harness.servers import free_port

Start = Callable[..., Process]
Run = Callable[..., Ended]

JOB = {"name": "often", "handler": "greet", "schedule": "every 1h"}
COMMAND = {"name": "x", "handler": {"type": "command", "argv": ["id"]}}
UP = r"Duly is up: (http://127\.0\.0\.1:(\d+))/#key=(duly_local_[0-9a-f]{64})\b"
API = r"its live page at (http://127\.0\.0\.1:(\d+))/#key=(duly_local_[0-9a-f]{64})$"
NGINX = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


def status(address: str, path: str = "/api/v1/stats", body: object = None, **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if data is not None:
        named["Content-Type"] = "application/json"
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data, named), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with closing(refusal):
            return refusal.code, refusal.read().decode()


def key_files(environment: dict[str, str]) -> list[Path]:
    return sorted(Path(environment["DULY_HOME"]).glob("keys/*.key"))


def test_the_printed_link_holds_the_key_which_lies_in_a_private_file_and_in_no_log(
    start: Start, environment: dict[str, str]
) -> None:
    up = start("--log-level", "DEBUG", "up", "--app", "tasks_of_test:app", "--port", "0")
    address, port, key = up.wait_for(UP).groups()
    (file,) = key_files(environment)
    assert file.read_text() == f"{key}\n"
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, os.geteuid())
    assert key_for(address) == (address, key)
    assert key_for(f"http://localhost:{port}/duly") == (f"{address}/duly", key)
    assert status(address)[0] == 401
    assert status(address, Authorization=f"Bearer {key}")[0] == 200
    assert status(address, Authorization=f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}")[0] == 401
    up.press_ctrl_c()
    assert up.end() == 0, up.said
    assert up.said.count(key) == 1, "the key is printed once for its user, and never in a log line"
    assert key_for(address) is None, "the next server on this port must not get the key"

    # Links that were printed before go on working: the key is the same.
    again = start("api", "--port", port)
    assert again.wait_for(API).groups() == (address, port, key)


@contextmanager
def nginx(folder: Path, upstream: str, *lines: str) -> Iterator[str]:
    """A reverse proxy with the plainest configuration."""
    assert NGINX is not None
    port = free_port()
    folder.mkdir()
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{ }}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; {' '.join(lines)} }} }} }}\n"
    )
    process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (scripts/test-services installs it)")
def test_behind_a_plain_reverse_proxy_nobody_gets_in_without_a_key(
    start: Start, duly: Run, project: Path, environment: dict[str, str]
) -> None:
    api = start("api", "--port", "0", DULY_ALLOW_COMMANDS="true")
    address, _, key = api.wait_for(API).groups()
    public = {"Host": "duly.example.org"}
    forwarded = {"X_Forwarded_For": "203.0.113.7", "X_Forwarded_Host": "duly.example.org", "X_Real_IP": "203.0.113.7"}
    with nginx(project / "plain", address) as proxy:
        for headers in (public, {**public, **forwarded}, {}):
            assert status(proxy, **headers)[0] == 401
            assert status(proxy, "/live", **headers)[0] == 401
            assert status(proxy, "/api/v1/jobs", COMMAND, **headers)[0] == 401
        assert duly("job", "list", "--json").lines == []
        assert key_for(proxy) is None, "clients must not send the key to a proxy"
        assert status(proxy, Authorization=f"Bearer {key}", **public)[0] == 200  # the key is valid through a proxy
    with nginx(project / "named", address, "proxy_set_header Host $host;") as proxy:
        assert status(proxy, "/", **public)[0] == 421
        duly("key", "create", "--role", "read")
        deadline = time.monotonic() + PATIENCE
        while status(proxy, "/healthz", **public)[0] != 200:  # within a second, although no request has a key
            assert time.monotonic() < deadline
        # After a restart, from the first request on.
        api.signal(signal.SIGTERM)
        assert api.end() == 0, api.said
        start("api", "--port", address.rpartition(":")[2]).wait_for("Duly's API is at")
        for path in ("/healthz", "/"):
            assert status(proxy, path, **public)[0] == 200


AS_NOBODY = """
import os, sys
import encodings.idna
from http.client import HTTPConnection
port, file = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for method, data in (("GET", None), ("POST", '{"name": "x", "handler": {"type": "command", "argv": ["id"]}}')):
    connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
    connection.request(method, "/api/v1/jobs", data, {"Content-Type": "application/json"})
    print(connection.getresponse().status)
try:
    print(open(file).read())
except PermissionError:
    print("unreadable")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_of_the_machine_gets_in_by_nothing(start: Start, environment: dict[str, str]) -> None:
    port = start("api", "--port", "0").wait_for(API)[2]
    (file,) = key_files(environment)
    for folder in file.parents:  # the file itself must be private, without the help of its folders
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o111)
    tried = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, port, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert tried.stdout.split() == ["401", "401", "unreadable"], tried.stderr


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_in_a_browser_the_link_shows_the_jobs_and_the_key_leaves_the_address(start: Start, duly: Run) -> None:
    assert duly("submit", "greet", "--name", "seen-in-the-page", "--schedule", "every 1h").code == 0
    address, _, key = start("api", "--port", "0").wait_for(API).groups()
    with browser.Browser(f"{address}/#key={key}") as tab:
        shown = "document.getElementById('jobs')?.innerText.includes('seen-in-the-page')"
        tab.until(shown)
        assert tab.ask("location.href") == f"{address}/"
        assert key not in tab.ask("document.documentElement.outerHTML")
        assert tab.ask("document.getElementById('key-form').hidden") is True
        assert (
            tab.ask("[history.length, sessionStorage.length, localStorage.length, document.cookie].join()") == "1,1,0,"
        )
        # Without the link no jobs are shown: this tab has not seen the address `localhost` before.
        bare = address.replace("127.0.0.1", "localhost")
        tab.go(f"{bare}/")
        tab.until(
            "document.getElementById('key-form')?.hidden === false && "
            f"location.host === {bare.removeprefix('http://')!r}"
        )
        assert "duly up" in tab.ask("document.getElementById('key-form').innerText")
        assert tab.ask("document.getElementById('jobs').innerText.trim()") == ""
        # The link also works in a tab that shows the page already.
        tab.go(f"{bare}/#key={key}")
        tab.until(shown)
        assert tab.ask("location.href") == f"{bare}/"


def test_an_open_api_is_a_flag_and_never_goes_with_commands(start: Start, environment: dict[str, str]) -> None:
    for command in ("up", "api"):
        refused = start(command, "--open", "--port", "0", DULY_ALLOW_COMMANDS="true")
        assert refused.end() == 2, refused.said
        assert "do not go together" in refused.output[-1]
    refused = start("up", "--open", "--allow-commands", "--port", "0")
    assert refused.end() == 2, refused.said
    assert "do not go together" in refused.output[-1]
    assert start("api", "--open", "--host", "0.0.0.0", "--port", "0").end() == 2
    opened = start("api", "--open", "--port", "0")
    address = opened.wait_for(r"its live page at (http://127\.0\.0\.1:\d+)/$")[1]
    assert key_files(environment) == []
    assert status(address)[0] == 200
    assert status(address, "/api/v1/jobs", JOB)[0] == 201
    code, said = status(address, "/api/v1/jobs", COMMAND)
    assert (code, "opened to all" in said) == (403, True)
    assert status(address, Host="evil.example")[0] == 421
    assert status(address, "/api/v1/jobs", JOB, Origin="http://evil.example")[0] == 403
    opened.signal(signal.SIGTERM)
    assert opened.end() == 0
    assert "the API is open" in opened.said


def test_the_local_key_goes_on_beside_keys_of_the_store_until_its_file_is_deleted(
    start: Start, duly: Run, environment: dict[str, str]
) -> None:
    api = start("api", "--port", "0")
    address, port, key = api.wait_for(API).groups()
    link = f"{address}/#key={key}\n"
    assert link in duly("key", "link").out
    made = duly("key", "create", "--role", "read", "--json").document["key"]
    for good in (key, made):
        assert status(address, "/api/v1/jobs", Authorization=f"Bearer {good}")[0] == 200
    (file,) = key_files(environment)
    file.unlink()
    assert address not in duly("key", "link").out
    deadline = time.monotonic() + PATIENCE
    while status(address, "/api/v1/jobs", Authorization=f"Bearer {key}")[0] != 401:  # within a second
        assert time.monotonic() < deadline
    assert status(address, "/api/v1/jobs", Authorization=f"Bearer {made}")[0] == 200
    api.signal(signal.SIGTERM)
    assert api.end() == 0
    # If the store has keys, no local key is made.
    start("api", "--port", port).wait_for(rf"its live page at {address}/$")
    assert key_files(environment) == []


def test_stores_do_not_mix_and_servers_of_one_store_agree(
    start: Start, environment: dict[str, str], empty_url: str
) -> None:
    servers = [start("api", "--port", "0") for _ in range(2)]
    keys = {server.wait_for(API)[3] for server in servers}
    assert len(keys) == 1
    other = start("up", "--port", "0", DULY_DATABASE_URL=empty_url).wait_for(UP)
    assert other[3] not in keys
    assert len(key_files(environment)) == 2
    (key,) = keys
    assert status(other[1], Authorization=f"Bearer {key}")[0] == 401


def test_a_file_that_proves_nothing_is_told_in_one_sentence(start: Start, environment: dict[str, str]) -> None:
    api = start("api", "--port", "0")
    address, _, key = api.wait_for(API).groups()
    api.close()  # killed: its note no longer gives the key to clients of this port
    assert key_for(address) is None
    (file,) = key_files(environment)
    file.chmod(0o644)
    warned = start("api", "--port", "0")
    assert warned.wait_for(API)[3] != key
    assert "could be read by others (mode 644); it is replaced" in warned.said
    warned.close()
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    refused = start("api", "--port", "0")
    assert refused.end() == 2
    assert "symbolic link" in refused.output[-1]
    assert "Traceback" not in refused.said
