"""Fixtures of the tests of what a run leaves on the disk."""

from collections.abc import Iterator

import pytest
from saved_runs import undrawn


@pytest.fixture(autouse=True)
def without_curves() -> Iterator[None]:
    """Drawing one takes longer than a short run."""
    with undrawn():
        yield
