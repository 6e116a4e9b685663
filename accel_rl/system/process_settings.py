"""Settings of the whole process, which environments that are made or stepped in it may change.

They are taken back. What environments may need later is left: variables and the search path.
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np


class Setting(NamedTuple):
    """A setting: its name, and functions that return and that set its value."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]


@contextmanager
def taking_back(
    settings: Iterable[Setting], tell: Callable[[str], object] = lambda names: None
) -> Iterator[None]:
    """Restore ``settings`` that other people's code changed within.

    ``tell`` is called with the names of changed settings.
    """
    before = [(each, each.get()) for each in settings]
    try:
        yield
    finally:
        changed = [(each, value) for each, value in before if each.get() != value]
        for each, value in changed:
            each.put(value)
        if changed:
            tell(" and ".join(each.name for each, _ in changed))


def directory(put: Callable[[str], object] = os.chdir) -> Setting:
    """Return the setting of the working directory, an empty text if it was deleted."""

    def get() -> str:
        try:
            return os.getcwd()
        except OSError:
            return ""

    return Setting("the working directory", get, lambda path: path and put(path))


def quick_settings() -> Iterator[Setting]:
    """Yield those of torch, if it is loaded, which spoil updates and take no time to read."""
    if torch := sys.modules.get("torch"):
        yield Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)
        yield Setting("torch's threads", torch.get_num_threads, torch.set_num_threads)
        yield Setting("torch's dtype", torch.get_default_dtype, torch.set_default_dtype)


def all_settings() -> Iterator[Setting]:
    """Yield all but the directory."""
    yield from quick_settings()
    if torch := sys.modules.get("torch"):

        def put_device(device: Any) -> None:
            torch.set_default_device(None if device.type == "cpu" else device)

        yield Setting("torch's device", torch.get_default_device, put_device)
    if threading.current_thread() is threading.main_thread():  # other threads can change none
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD"):
            number = getattr(signal, name, None)  # Windows has not all
            if number is not None and signal.getsignal(number) is not None:
                get, put = partial(signal.getsignal, number), partial(signal.signal, number)
                yield Setting(f"the handler of {name}", get, put)
    yield Setting("warnings that are errors", _errors, _forget_other_errors)
    set_locale = partial(locale.setlocale, locale.LC_ALL)
    yield Setting("the locale", set_locale, set_locale)
    yield Setting("NumPy's errors", np.geterr, lambda value: np.seterr(**value))
    yield Setting("logging", lambda: logging.root.manager.disable, logging.disable)
    yield Setting("garbage collection", gc.isenabled, lambda on: (gc.disable, gc.enable)[on]())
    for name in ("stdout", "stderr"):
        yield Setting(f"sys.{name}", partial(getattr, sys, name), partial(setattr, sys, name))


def _errors() -> list[Any]:
    return [each for each in warnings.filters if each[0] == "error"]


def _forget_other_errors(before: list[Any]) -> None:
    kept = [each for each in warnings.filters if each[0] != "error" or each in before]
    warnings.resetwarnings()  # and what was decided by them
    warnings.filters[:] = kept  # type: ignore[index]
