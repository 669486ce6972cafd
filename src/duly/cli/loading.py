"""Loads the user's application from `--app module:attribute`. Every mistake is reported in one sentence."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from duly.errors import ConfigError, DulyError

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.config import Settings

log = logging.getLogger("duly.cli")


def app_to_run(text: str | None, settings: Settings) -> Duly:
    """The application of a worker. Without a name it has no tasks: the worker runs HTTP endpoints and commands only."""
    from duly.app import Duly

    return Duly(settings=settings) if text is None else load_app(text)


def load_app(text: str) -> Duly:
    """Import the application that `text` names, from the current folder or what is installed."""
    from duly.app import Duly

    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"--app must be module:attribute, such as myproject.jobs:app, not {text!r}")
    found: object = _import(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            there = _apps_in(sys.modules[module_name])
            hint = f"; it has {', '.join(there)}" if there else ""
            raise ConfigError(f"--app: module {module_name} has no {attribute!r}{hint}") from None
    if not isinstance(found, Duly):
        raise ConfigError(f"--app: {text} is of type {type(found).__name__}, not a Duly application")
    return found


def _import(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except DulyError as error:  # such as a task with parameters that no payload can provide
        raise ConfigError(f"--app: module {name} cannot be imported: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(f"--app: there is no module {name}, neither in {here} nor installed") from error
        raise ConfigError(f"--app: module {name} cannot be imported: {error}{_where(error)}") from error
    except (Exception, SystemExit) as error:  # an import runs the user's code, which may raise anything
        log.debug("importing %s failed", name, exc_info=error)
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"--app: module {name} cannot be imported: {message}{_where(error)}") from error


def _where(error: BaseException) -> str:
    """The place in the user's code at which the error happened."""
    if isinstance(error, SyntaxError):
        return ""  # its own message says where
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    frames = [frame for frame in frames if frame.filename != __file__]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _apps_in(module: ModuleType) -> list[str]:
    from duly.app import Duly

    return sorted(repr(name) for name, value in vars(module).items() if isinstance(value, Duly))
