"""What `make` installs has one version each, on each Python that is supported."""

from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OF_A_BUILD_OF_TORCH = ("nvidia-", "cuda-")


def read(name: str) -> list[Requirement]:
    lines = (REPOSITORY / name).read_text().splitlines()
    texts = (line.partition("#")[0].strip() for line in lines if not line.startswith("-r "))
    return [Requirement(text) for text in texts if text]


def constraints(python: str) -> dict[str, str]:
    """Versions by name, on Linux; a name that is listed twice fails."""
    environment = {"python_version": python, "python_full_version": f"{python}.9"}
    found: dict[str, str] = {}
    for each in read("constraints.txt"):
        if each.marker is None or each.marker.evaluate(environment):
            name = canonicalize_name(each.name)
            assert name not in found and str(each.specifier).startswith("==")
            found[name] = str(each.specifier)
    return found


def required() -> list[Requirement]:
    files = ("requirements.txt", "requirements-dev.txt", "requirements-docs.txt")
    return [each for name in files for each in read(name)]


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_have_the_versions_that_are_asked_for(python: str) -> None:
    pinned = constraints(python)
    for each in required():
        assert pinned[canonicalize_name(each.name)] == str(each.specifier), "run make pins"


def test_each_package_that_another_one_needs_is_pinned() -> None:
    pinned = constraints("3.11").keys() | constraints("3.14").keys()
    waiting = [(canonicalize_name(each.name), each.extras) for each in required()]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if name in seen or name.startswith(OF_A_BUILD_OF_TORCH):
            continue
        seen.add(name)
        assert name in pinned, f"{name} has no version in constraints.txt: run make pins"
        try:
            needs = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:  # of the documentation, which not everybody builds
            continue
        for each in needs:
            chosen = [{"extra": extra} for extra in (*extras, "")]
            if each.marker is None or any(map(each.marker.evaluate, chosen)):
                waiting.append((canonicalize_name(each.name), each.extras))
    assert {"torch", "numpy", "werkzeug", "pluggy"} <= seen
