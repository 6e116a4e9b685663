"""Findings about an environment, one for each rule.

Each rule is tested in a thread of its own, so that the others are tested even if a rule is broken
or the environment hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import psutil

Verdict = Literal["holds", "broken", "not tested"]

_CLOSE_SECONDS = 10.0


class Finding(NamedTuple):
    """The result of checking one rule.

    Attributes:
        rule: the rule, in a few words.
        verdict: ``holds``, ``broken`` or ``not tested``.
        detail: how the rule is broken, or why it was not tested; otherwise empty.
    """

    rule: str
    verdict: Verdict
    detail: str = ""


class Report(NamedTuple):
    """The findings on one environment. ``str(report)`` is a table.

    Attributes:
        findings: one for each rule.
        facts: what the environment is like, in words, by what each is about.
    """

    findings: tuple[Finding, ...]
    facts: Mapping[str, str] = {}

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings of the rules that are broken."""
        return tuple(each for each in self.findings if each.verdict == "broken")

    def __str__(self) -> str:
        width = max(len(each) for each in (*self.facts, *(found.rule for found in self.findings)))
        rows = [f"{name:{width}}  {fact}" for name, fact in self.facts.items()]
        rows += [f"{rule:{width}}  {verdict:10}  {why}" for rule, verdict, why in self.findings]
        return "\n".join(map(str.rstrip, rows))


class Broken(Exception):
    """A rule is broken; the message says how."""


class NotTested(Exception):
    """A rule could not be tested; the message says why."""


def require(holds: object, detail: str) -> None:
    """Raise `Broken` with ``detail`` unless it ``holds``."""
    if not holds:
        raise Broken(detail)


def once(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes ``call`` at its first use, and repeats the outcome later."""
    outcome: list[Any] = []

    def get() -> Any:
        if not outcome:
            outcome.append(Broken("the steps that it looks at have not ended"))
            try:
                outcome[0] = call()
            except Exception as error:
                outcome[0] = error
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return get


def find(
    rules: Mapping[str, Callable[[], object]], timeout: float, leave_out: Sequence[str] = ()
) -> Report:
    """Test each rule in a thread of its own, for ``timeout`` seconds at most."""
    left_out = {rule: Finding(rule, "not tested", "left out") for rule in leave_out}
    return Report(
        tuple(left_out.get(rule) or _find(rule, test, timeout) for rule, test in rules.items())
    )


def _find(rule: str, test: Callable[[], object], timeout: float) -> Finding:
    found = Finding(rule, "broken", f"no answer within {timeout:g} s")

    def run() -> None:
        nonlocal found
        try:
            test()
            found = Finding(rule, "holds")
        except Broken as error:
            found = Finding(rule, "broken", str(error))
        except NotTested as error:
            found = Finding(rule, "not tested", str(error))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            found = Finding(rule, "broken", f"it raised {text[:200]}")

    thread = threading.Thread(target=run, name=f"check: {rule}", daemon=True)
    thread.start()
    thread.join(timeout)
    return found


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Raise `Broken` if a process that was started within goes on, except Python's own tracker."""
    this = psutil.Process()
    before = set(this.children(recursive=True))
    yield
    started = set(this.children(recursive=True)) - before
    _, alive = psutil.wait_procs(started, timeout=_CLOSE_SECONDS)
    with suppress(psutil.NoSuchProcess):
        alive = [each for each in alive if "resource_tracker" not in " ".join(each.cmdline())]
    require(not alive, f"{len(alive)} processes outlive close()")
