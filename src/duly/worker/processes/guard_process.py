"""The guard: a small process beside a worker that starts programs for it and makes sure that they end.

It is run by its path (`python -I -S …/guard_process.py DESCRIPTOR WORKER`) with the standard library alone, so that it
holds no code of the user's. It has one thread and never blocks. That makes four things possible that a worker, with its
threads and handlers, cannot do:

- between fork and exec it can safely ask the kernel to kill the program when the guard dies;
- it learns that the worker is gone, whatever the cause: the kernel closes the worker's end of the socket. Programs that
  have not ended are killed then, so that no run goes on while another worker holds its lease;
- its memory and environment hold nothing of the worker's that a program could find in `/proc`;
- orphans of a program become its children (Linux), so it reaps them and knows when a whole process group has ended.

A process that leaves its group on purpose (a daemon, `setsid`) is not followed, and processes that a program left
running when it ended by itself are left alone, as cron does.

The worker sends, as length-prefixed JSON:
    {"id", "start": [argv], "env": {…}, "cwd", "as": null | [uid, gid]}, with descriptors for standard input, output
                                                and error
    {"id", "stop": seconds}                     SIGTERM to the group, SIGKILL when it is still there after that long
    {"id", "forget": true}                      the program has ended; processes that it left running are not followed
The guard answers, as lines of JSON:
    {"id", "started": pid} or {"id", "refused": errno, "what": "cwd" | "argv" | "fork" | "account", "why"}
    {"id", "ended": code}                       the program itself; negative: a signal ended it
    {"id", "gone": true}                        after a stop: the group is empty
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HEADER = struct.Struct(">IB")
# Pause between checks whether a stopped group is empty: the guard is not told of every process that ends in it.
LOOK_SECONDS = 0.02
# After SIGKILL only a process that hangs inside the kernel is left; it is given up after this long.
KILLED_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
# Signals that Python or the guard ignores; a program gets their default handling back.
_RESTORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


class ProcessGroup:
    """One program and the processes it started: a process group, named by the program's pid."""

    def __init__(self, number: int, pid: int, status: int) -> None:
        self.number = number
        self.pid = pid
        #: A pipe that a successful exec closes; before that, an error is written to it.
        self.status: int | None = status
        self.ended = False
        self.stopping = False
        self.kill_at = 0.0
        self.give_up_at: float | None = None

    def send(self, number: signal.Signals) -> None:
        # The pid cannot be reused: this is called only while a process of the group is known to exist.
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if not self.ended:  # forked, but its group is not made yet
                os.kill(self.pid, number)
        except PermissionError:  # a process of another user is left in the group
            pass

    def is_empty(self) -> bool:
        """Whether no process of the group is left. Asked after the program was reaped: a zombie would count as one."""
        if not self.ended:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class GuardProcess:
    def __init__(self, worker: socket.socket, worker_pid: int) -> None:
        self._worker = worker
        self._worker_pid = worker_pid
        self._worker.setblocking(False)
        self._worker.set_inheritable(False)  # if a program held it too, the worker would not see the guard end
        self._selector = selectors.DefaultSelector()
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._outbox = bytearray()
        self._groups: dict[int, ProcessGroup] = {}
        self._prctl = _find_prctl()

    def run(self) -> None:
        """Serves the worker until it is gone, then kills every group that is left."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A signal to a whole group of processes is meant for the worker, which ends gracefully and needs its
            # programs.
            signal.signal(number, _ignore)
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        if self._prctl is not None:
            # The guard's memory holds secrets of jobs: no other process may read it. An exec resets this for programs.
            self._prctl(_PR_SET_DUMPABLE, 0)
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
            # A process that a handler forked may hold the worker's end of the socket: this signal then wakes the guard.
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
        self._selector.register(woken, selectors.EVENT_READ, lambda: _drain(woken))
        self._selector.register(self._worker, selectors.EVENT_READ, self._receive)
        try:
            while os.getppid() == self._worker_pid:
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._reap()
                self._look_after_stops()
                self._flush()
        except EOFError:
            pass
        finally:
            # Also after an error of the guard itself: no program may stay behind.
            for group in self._groups.values():
                if not group.is_empty():
                    group.send(signal.SIGKILL)

    # Messages

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._worker, 65536, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            raise EOFError from None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        if not data:
            raise EOFError
        self._received += data
        while len(self._received) >= HEADER.size:
            length, count = HEADER.unpack_from(self._received)
            end = HEADER.size + length
            if len(self._received) < end:
                return
            message = json.loads(self._received[HEADER.size : end])
            del self._received[:end]
            given, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            if "start" in message:
                self._start(message, given)
                for descriptor in given:
                    os.close(descriptor)
            elif "stop" in message:
                self._stop(message["id"], message["stop"])
            else:
                self._groups.pop(message["id"], None)

    def _tell(self, number: int, **fields: object) -> None:
        self._outbox += json.dumps({"id": number, **fields}).encode() + b"\n"

    def _flush(self) -> None:
        # A worker that is stopped for a while reads nothing; the guard must go on regardless.
        try:
            while self._outbox:
                del self._outbox[: self._worker.send(self._outbox)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            raise EOFError from None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        if self._selector.get_key(self._worker).events != events:
            self._selector.modify(self._worker, events, self._receive)

    # Starting

    def _start(self, message: dict[str, Any], given: list[int]) -> None:
        number = message["id"]
        status, status_end = os.pipe()
        guard = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(status)
            os.close(status_end)
            self._tell(number, refused=error.errno, what="fork", why=str(error.strerror))
            return
        if pid == 0:
            self._become(guard, message["start"], message["env"], message["cwd"], message["as"], given, status_end)
        os.close(status_end)
        os.set_blocking(status, False)
        group = self._groups[number] = ProcessGroup(number, pid, status)
        self._selector.register(status, selectors.EVENT_READ, lambda: self._read_status(group))

    def _become(
        self,
        guard: int,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        account: list[int] | None,
        given: list[int],
        status_end: int,
    ) -> None:
        """Runs in the forked child and becomes the program. Never returns."""
        part = "argv"
        try:
            os.setsid()
            if account is not None:
                part = "account"
                _turn_into(account[0], account[1], given)
                part = "argv"
            if self._prctl is not None:  # after the change of account, which resets it
                self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
                if os.getppid() != guard:  # the guard died before the kernel was asked
                    os._exit(1)
            signal.set_wakeup_fd(-1)
            for signal_number in _RESTORED:
                signal.signal(signal_number, signal.SIG_DFL)
            for number, descriptor in enumerate(given):
                os.dup2(descriptor, number)
            if cwd is not None:
                part = "cwd"
                os.chdir(cwd)
                part = "argv"
            elif account is not None:
                _go_home(env.get("HOME", "/"))
            os.execvpe(argv[0], argv, env)  # noqa: S606 - a command is a program, without a shell
        except OSError as error:
            _say_refused(status_end, error.errno or 0, part, str(error.strerror))
        except BaseException as error:  # noqa: BLE001 - after any error: there must not be a second guard
            _say_refused(status_end, errno.EINVAL, part, str(error))
        finally:
            os._exit(127)

    def _read_status(self, group: ProcessGroup) -> None:
        if group.status is None:
            return
        try:
            refusal = os.read(group.status, 4096)
        except BlockingIOError:
            return
        self._selector.unregister(group.status)
        os.close(group.status)
        group.status = None
        if refusal:
            del self._groups[group.number]  # its process ends at once and is reaped like any other
            self._tell(group.number, **json.loads(refusal))
            if group.stopping:
                self._tell(group.number, gone=True)
        else:
            self._tell(group.number, started=group.pid)

    # Ending

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for group in list(self._groups.values()):
                    if group.pid == pid:
                        self._program_ended(group, os.waitstatus_to_exitcode(status))

    def _program_ended(self, group: ProcessGroup, code: int) -> None:
        self._read_status(group)
        if group.number not in self._groups:  # the program never started
            return
        group.ended = True
        self._tell(group.number, ended=code)
        if not group.stopping and group.is_empty():
            del self._groups[group.number]

    def _stop(self, number: int, seconds: float) -> None:
        group = self._groups.get(number)
        if group is None or group.is_empty():
            self._groups.pop(number, None)
            self._tell(number, gone=True)
            return
        if not group.stopping:
            group.stopping = True
            group.kill_at = time.monotonic() + seconds
            if seconds > 0:
                group.send(signal.SIGTERM)
        else:
            group.kill_at = min(group.kill_at, time.monotonic() + seconds)

    def _look_after_stops(self) -> None:
        now = time.monotonic()
        for group in [group for group in self._groups.values() if group.stopping]:
            if not group.is_empty() and group.kill_at <= now and group.give_up_at is None:
                group.give_up_at = now + KILLED_SECONDS
                group.send(signal.SIGKILL)
            if group.is_empty() or (group.give_up_at is not None and group.give_up_at <= now):
                del self._groups[group.number]
                self._tell(group.number, gone=True)

    def _patience(self) -> float | None:
        return LOOK_SECONDS if any(group.stopping for group in self._groups.values()) else None


def _turn_into(uid: int, gid: int, given: list[int]) -> None:
    """Switches to another account, irrevocably."""
    for descriptor in given:
        with suppress(OSError):  # so that the program may open `/dev/stderr` and the like
            os.fchown(descriptor, uid, gid)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _go_home(home: str) -> None:
    """Enters the home folder: from the worker's folder a program could reach files below one that is closed to it."""
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")


def _say_refused(status_end: int, number: int, part: str, why: str) -> None:
    with suppress(OSError):
        os.write(status_end, json.dumps({"refused": number, "what": part, "why": why[:500]}).encode())


def _ignore(*_: object) -> None:
    """A handler instead of SIG_IGN, so that the signal still wakes the guard."""


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _find_prctl() -> Callable[[int, int], object] | None:
    """prctl, on Linux. Elsewhere only a living guard can end the programs, when it sees the socket closed."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda option, value: prctl(
        ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


if __name__ == "__main__":
    GuardProcess(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
