"""Mutants of access to the API: the local key, its file, and where it is sent."""

from __future__ import annotations

from mutants.mutant import Mutant

_FILES = ("test_local_keys.py",)
_API = ("api/test_local_key.py",)

MUTANTS = (
    Mutant(
        "loopback-is-a-proof",
        "a caller through a proxy or from another account of the machine is admin",
        "api/access.py",
        "if not given:\n            if self._open and not await self.has_keys():",
        "if not given:\n            if not await self.has_keys():",
        _API,
    ),
    Mutant(
        "open-takes-commands",
        "every account on the machine runs programs as the worker",
        "operations/rights.py",
        'commands = holds(role, "operator") and not anybody',
        'commands = holds(role, "operator")',
        ("cli/test_door.py",),
    ),
    Mutant(
        "local-key-for-the-world",
        "the local key opens an API that others reach",
        "api/access.py",
        "        self._keyed = True\n        self._local_key = None\n",
        "        self._keyed = True\n",
        _API,
    ),
    Mutant(
        "any-key-is-the-local-key",
        "any text that begins like a local key is accepted as one",
        "local_keys.py",
        "return self._key is not None and hmac.compare_digest(given.encode(), self._key.encode())",
        "return self._key is not None",
        _FILES,
    ),
    Mutant(
        "exposed-key-goes-on",
        "a key that others may have read stays valid",
        "local_keys.py",
        "if stat.S_IMODE(found.st_mode) & 0o077:\n            raise Exposed",
        "if False:\n            raise Exposed",
        _FILES,
    ),
    Mutant(
        "strangers-key-file",
        "another user chooses the key",
        "local_keys.py",
        "        if found.st_uid != os.geteuid():\n            raise ConfigError(",
        "        if False:\n            raise ConfigError(",
        _FILES,
    ),
    Mutant(
        "key-for-a-dead-server",
        "a client sends the key to any program that has taken the port",
        "local_keys.py",
        "        if _lock(descriptor, fcntl.LOCK_SH):\n            return None",
        "        if False:\n            return None",
        _FILES,
    ),
    Mutant(
        "key-through-a-proxy",
        "the local key is sent to a proxy that the environment names",
        "client/clients.py",
        '"trust_env": not self._own_server,',
        '"trust_env": True,',
        _API,
    ),
    Mutant(
        "key-written-in-place",
        "a crash half-way leaves half a key",
        "local_keys.py",
        'draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")',
        "draft = path",
        _FILES,
    ),
)
