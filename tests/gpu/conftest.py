"""Marks and fixtures for the tests that need a GPU."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch

Forbidding = Callable[[], AbstractContextManager[None]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.getparent(pytest.Module) for item in items}:
        if module is not None and module.path.parent == Path(__file__).parent:
            module.add_marker(pytest.mark.gpu)
            has_none = not torch.cuda.is_available()
            module.add_marker(pytest.mark.skipif(has_none, reason="needs a CUDA device"))


@pytest.fixture
def forbidding_waits(monkeypatch: pytest.MonkeyPatch) -> Forbidding:
    """In the context that it makes, waiting for the device is an error.

    But for `torch.cuda.Stream.synchronize`, which is how we wait where we mean to.
    """
    wait = torch.cuda.Stream.synchronize

    def wait_anyway(stream: torch.cuda.Stream) -> None:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            wait(stream)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(torch.cuda.Stream, "synchronize", wait_anyway)

    @contextmanager
    def forbidding() -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls it a prototype
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return forbidding
