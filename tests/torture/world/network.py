"""The networks of the processes: a namespace for each where root allows, this machine's own network otherwise.

One more namespace holds a bridge and everything the harness itself listens on, so the machine's own network sees none
of it: not an interface, not an address, not a route. Two runs side by side use the same addresses and never meet.

Packets are dropped by a token bucket too small for any packet (`tc … tbf`), on the node's end for what it sends and on
the bridge's end for what it would receive. That needs no packet filter, which not every kernel has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Debian keeps ip and tc in folders that are not in every account's PATH.
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_PREFIX = "duly-world"
_NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def allowed() -> bool:
    """Whether namespaces and links can be made here: tried, since being root is not enough in every container."""
    if os.geteuid() != 0 or not shutil.which("ip", path=SEARCH) or not shutil.which("tc", path=SEARCH):
        return False
    name = f"{_PREFIX}-{own()}-probe"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        _run("ip", "-n", name, "link", "set", "v0", "up")
        _drop(name, "v0")
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            _run("ip", "netns", "del", name)
    return True


def own() -> str:
    """A name for this process that differs from that of a later process with the same id."""
    return f"{os.getpid()}-{_started(os.getpid())}"


class Network:
    """Namespaces by name, or none: then every address is loopback, and only proxies can separate processes."""

    def __init__(self, *, namespaces: bool) -> None:
        self.namespaces = namespaces
        # Several worlds in one process must not meet either.
        self._label = f"{_PREFIX}-{own()}-{next(_numbers)}"
        self._hub = f"{self._label}-hub"
        self._numbers: dict[str, int] = {}
        self._faulted: set[str] = set()

    def start(self) -> None:
        if not self.namespaces:
            return
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "set", "lo", "up")
        _run("ip", "-n", self._hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._hub, "addr", "add", f"{self.hub_host}/24", "dev", "br0")
        _run("ip", "-n", self._hub, "link", "set", "br0", "up")

    def close(self) -> None:
        for name in [*self._numbers, "hub"] if self.namespaces else []:
            with contextlib.suppress(OSError):
                _run("ip", "netns", "del", f"{self._label}-{name}")
        self._numbers.clear()

    @property
    def hub_host(self) -> str:
        """The address at which the harness listens for its nodes."""
        return "10.213.0.1" if self.namespaces else "127.0.0.1"

    @property
    def hub(self) -> str | None:
        return self._hub if self.namespaces else None

    def add(self, name: str) -> str | None:
        """Adds a process with its own namespace and address. Returns the namespace's name; None without namespaces."""
        self._numbers[name] = number = len(self._numbers) + 10
        if not self.namespaces:
            return None
        namespace, link = f"{self._label}-{name}", f"v{number}"
        _run("ip", "netns", "add", namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", self._hub, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "-n", self._hub, "link", "set", link, "master", "br0")
        _run("ip", "-n", self._hub, "link", "set", link, "up")
        _run("ip", "-n", namespace, "addr", "add", f"{self.host(name)}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        return namespace

    def host(self, name: str) -> str:
        """The address of that process."""
        return f"10.213.0.{self._numbers[name]}" if self.namespaces else "127.0.0.1"

    def inside(self, name: str) -> list[str]:
        """The prefix with which a command runs in the namespace. The process id stays that of the command."""
        return ["nsenter", f"--net={_NETNS / f'{self._label}-{name}'}", "--"] if self.namespaces else []

    # Cables.

    def partition(self, name: str, *, sends: bool = True, receives: bool = True) -> None:
        """Drops what the process sends, what it would receive, or both: no reset, no error, nothing."""
        assert self.namespaces, "without namespaces only the proxies separate processes"
        self._faulted.add(name)
        if sends:
            _drop(f"{self._label}-{name}", "eth0")
        if receives:
            _drop(self._hub, f"v{self._numbers[name]}")

    def unplug(self, name: str) -> None:
        """Takes the process's interface down: its kernel knows, so sending fails at once."""
        assert self.namespaces
        self._faulted.add(name)
        _run("ip", "-n", f"{self._label}-{name}", "link", "set", "eth0", "down")

    def mend(self, name: str) -> None:
        if name not in self._faulted:
            return
        for namespace, link in ((f"{self._label}-{name}", "eth0"), (self._hub, f"v{self._numbers[name]}")):
            with contextlib.suppress(OSError):  # there may be no such rule
                _run("tc", "-n", namespace, "qdisc", "del", "dev", link, "root")
        _run("ip", "-n", f"{self._label}-{name}", "link", "set", "eth0", "up")
        self._faulted.discard(name)

    def mend_all(self) -> None:
        for name in list(self._faulted):
            self.mend(name)


def make_socket(namespace: str | None) -> socket.socket:
    """A TCP socket in this namespace; it stays there when the thread leaves the namespace."""
    with entered(namespace):
        made = socket.socket()
    made.setblocking(False)
    return made


def scratch_folder() -> Path:
    """A folder that other accounts may enter, and that the next run removes if this one cannot."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{own()}-"))
    folder.chmod(0o755)
    return folder


def mount_memory(folder: Path, megabytes: int) -> None:
    """Mounts a small file system in memory."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", f"{_PREFIX}-{own()}", str(folder))


def unmount(folder: Path) -> None:
    # --lazy, because a process that is just ending may still have a file open there.
    _run("umount", "--lazy", str(folder))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sweep() -> list[str]:
    """Removes namespaces, mounts and folders of runs whose process is gone. Returns their names."""
    gone = []
    for name in [path.name for path in _NETNS.glob(f"{_PREFIX}-*")] if _NETNS.exists() else []:
        if _is_left_over(name):
            with contextlib.suppress(OSError):  # another run may be sweeping as well
                _run("ip", "netns", "del", name)
            gone.append(name)
    for line in Path("/proc/mounts").read_text().splitlines() if os.geteuid() == 0 else []:
        source, folder, *_ = line.split()
        if source.startswith(_PREFIX) and _is_left_over(source):
            with contextlib.suppress(OSError):
                unmount(Path(folder))
            gone.append(folder)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*"):
        if _is_left_over(path.name):
            shutil.rmtree(path, ignore_errors=True)
            gone.append(str(path))
    return gone


def leftovers(pid: int) -> list[str]:
    """The namespaces, mounts and folders of the worlds of that process, alive or not."""
    label = f"{_PREFIX}-{pid}-"
    names = [path.name for path in _NETNS.glob(f"{label}*")] if _NETNS.exists() else []
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.startswith(label)]
    return names + mounts + [str(path) for path in Path(tempfile.gettempdir()).glob(f"{label}*")]


def _is_left_over(name: str) -> bool:
    with contextlib.suppress(ValueError, IndexError):
        pid, started = name.removeprefix(f"{_PREFIX}-").split("-")[:2]
        return _started(int(pid)) != int(started)
    return False


def _started(pid: int) -> int:
    """The start time of that process in the kernel's ticks; 0 if there is no such process."""
    try:  # the name in parentheses may contain anything
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


@contextlib.contextmanager
def entered(namespace: str | None) -> Iterator[None]:
    """Sockets that this thread opens inside the block belong to that namespace. The block must not await."""
    if namespace is None:
        yield
        return
    with open("/proc/thread-self/ns/net") as home, open(_NETNS / namespace) as there:
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _drop(namespace: str, link: str) -> None:
    bucket = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", link, "root", *bucket)


def _run(*command: str) -> None:
    program = shutil.which(command[0], path=SEARCH)
    if program is None:
        raise FileNotFoundError(f"{command[0]} is not installed: run scripts/test-services as root")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


_numbers = iter(range(1, 1_000_000))
