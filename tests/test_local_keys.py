"""The file of a local key is written whole or not at all, and counts only if it is a private file of this user."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from duly import local_keys
from duly.errors import ConfigError
from duly.local_keys import LocalKey, announced, key_file, key_for, obtain_key, read_key

ADDRESS = "http://127.0.0.1:47113"


@pytest.fixture(autouse=True)
def users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local_keys, "user_home", lambda: tmp_path / "home of the user")
    return tmp_path / "home of the user"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return key_file(tmp_path / "home" / "below")


def test_a_key_is_made_once_and_private_whatever_the_umask_is(file: Path) -> None:
    before = os.umask(0)
    try:
        key = obtain_key(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len(key) == len("duly_local_") + 64
    assert obtain_key(file) == key == read_key(file)
    assert os.listdir(file.parent) == ["api.key"]
    assert key_file(Path("/h"), "4711") == Path("/h/keys/4711.key")


def test_those_who_start_at_once_agree(file: Path) -> None:
    found: list[str] = []
    together = threading.Barrier(8)

    def start() -> None:
        together.wait()
        found.append(obtain_key(file))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from duly import local_keys
step = sys.argv[2]
real = getattr(os, step)
def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, step, killed)
local_keys.obtain_key(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link"])
def test_a_crash_half_way_leaves_no_half_key(file: Path, step: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(file), step], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not file.exists()
    assert read_key(file) is None
    assert obtain_key(file) == read_key(file)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_a_key_that_others_could_read_is_replaced_with_a_word(
    file: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    key = obtain_key(file)
    file.chmod(mode)
    with pytest.raises(ConfigError, match="could be read by others"):
        read_key(file)
    assert obtain_key(file) != key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "could be read by others" in caplog.text
    assert key not in caplog.text


def test_what_is_no_private_file_of_this_users_is_refused(file: Path, tmp_path: Path) -> None:
    key = obtain_key(tmp_path / "another")
    ways: list[Callable[[], None]] = [
        lambda: file.symlink_to(tmp_path / "another"),
        lambda: file.symlink_to(tmp_path / "nothing"),
        lambda: os.mkfifo(file, 0o600),
        lambda: file.mkdir(mode=0o700),
    ]
    for make in ways:
        file.parent.mkdir(parents=True, exist_ok=True)
        make()
        for ask in (read_key, obtain_key):
            with pytest.raises(ConfigError, match="cannot be used as a local key"):
                ask(file)
        assert not LocalKey(file).opens(key)
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()


@pytest.mark.parametrize("content", ["", "\n", "duly_local_", "duly_local_" + "0" * 63, "x" * 100_000, "duly_local_é"])
def test_a_file_with_something_else_in_it_is_refused(file: Path, content: str) -> None:
    obtain_key(file)
    file.write_text(content)
    for ask in (read_key, obtain_key):
        with pytest.raises(ConfigError, match="does not hold a local key; delete it"):
            ask(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(file: Path) -> None:
    key = obtain_key(file)
    os.chown(file, 65534, 65534)
    for ask in (read_key, obtain_key):
        with pytest.raises(ConfigError, match="belongs to another user"):
            ask(file)
    assert not LocalKey(file).opens(key)


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set DULY_HOME"):
        obtain_key(key_file(tmp_path / "file"))


def test_a_server_sees_a_deleted_and_a_replaced_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first, known = obtain_key(file), LocalKey(file)
    assert known.opens(first)
    for wrong in ("", "duly_local_", first[:-1], f"{first}0", first.upper(), first.replace("local", "other")):
        assert not known.opens(wrong)
    file.unlink()
    assert known.opens(first)  # a server may notice a second later
    now += 1
    assert not known.opens(first)
    second = obtain_key(file)
    now += 1
    assert known.opens(second)
    assert not known.opens(first)


def test_looking_at_a_key_does_not_look_at_the_file_each_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, known, looked = obtain_key(file), LocalKey(file), 0
    real = local_keys.read_key

    def counted(path: Path) -> str | None:
        nonlocal looked
        looked += 1
        return real(path)

    monkeypatch.setattr(local_keys, "read_key", counted)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    assert all(known.opens(key) for _ in range(1000))
    assert looked == 1


# The key for an address


ELSEWHERE = [
    "https://127.0.0.1:47113",
    "http://127.0.0.1:47114",
    "http://127.0.0.2:47113",
    "http://[::1]:47113",
    "http://duly.example.org:47113",
    "http://127.0.0.1.nip.io:47113",
    "http://localhost.evil.example:47113",
    "http://evil.localhost:47113",
    "http://0.0.0.0:47113",
    "http://[::ffff:10.0.0.1]:47113",
    "http://127.1:47113",
    "http://127.0.0.1:99999",
    "http://",
    "nonsense",
]


def test_a_key_is_found_for_its_own_address_and_for_no_other(file: Path) -> None:
    key = obtain_key(file)
    with announced(ADDRESS, file):
        assert key_for(ADDRESS) == (ADDRESS, key)
        assert key_for(f"{ADDRESS}/below") == (f"{ADDRESS}/below", key)
        # The address is returned, not the name: another program may listen on the name's other address.
        assert key_for("http://LOCALHOST:47113") == (ADDRESS, key)
        assert key_for("http://[::ffff:127.0.0.1]:47113") == (ADDRESS, key)
        assert [key_for(url) for url in ELSEWHERE] == [None] * len(ELSEWHERE)
        assert local_keys.links() == [f"{ADDRESS}/#key={key}"]
    assert key_for(ADDRESS) is None
    assert local_keys.links() == []
    with announced("http://[::1]:47113", file):
        assert key_for("http://localhost:47113") == ("http://[::1]:47113", key)


ANNOUNCED = """
import os, signal, sys
from pathlib import Path
from duly import local_keys
local_keys.user_home = lambda: Path(sys.argv[1])
with local_keys.announced(sys.argv[2], Path(sys.argv[3])):
    print("announced", flush=True)
    signal.pause()
"""


def test_what_a_killed_server_noted_is_not_believed_and_swept_away(file: Path, users_home: Path) -> None:
    key = obtain_key(file)
    arguments = [sys.executable, "-c", ANNOUNCED, str(users_home), ADDRESS, str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "announced\n"
        assert key_for(ADDRESS) == (ADDRESS, key)
        server.kill()
        server.wait()
    assert os.listdir(users_home / "serving") == ["127.0.0.1:47113"]
    assert key_for(ADDRESS) is None, "another program may listen there by now"
    with announced("http://127.0.0.1:47114", file):
        assert os.listdir(users_home / "serving") == ["127.0.0.1:47114"]
    with announced(ADDRESS, file):
        assert key_for(ADDRESS) == (ADDRESS, key)


def test_a_note_that_is_not_this_users_own_is_not_believed(file: Path, users_home: Path) -> None:
    obtain_key(file)
    with announced(ADDRESS, file):
        note = users_home / "serving" / "127.0.0.1:47113"
        for change in (lambda: note.chmod(0o666), lambda: note.write_text("{"), lambda: note.write_text("[1]")):
            change()
            assert key_for(ADDRESS) is None
            note.chmod(0o600)


def test_where_nothing_can_be_noted_the_server_goes_on(
    file: Path, users_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users_home.write_text("a file is in the way")
    with announced(ADDRESS, file), announced(ADDRESS, None):
        assert key_for(ADDRESS) is None
    assert "DULY_API_KEY" in caplog.text
