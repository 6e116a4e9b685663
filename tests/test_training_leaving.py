"""How a learner of several that has failed leaves the others."""

import os
from contextlib import nullcontext
from typing import NoReturn

import pytest

from accel_rl.parallel import Ranks, Team
from accel_rl.training.console import LastingConsole
from accel_rl.training.run import _run_in_team


@pytest.mark.parametrize("uses_nccl", [False, True])
@pytest.mark.parametrize("error", [ValueError("no such thing"), MemoryError("none left")])
def test_failed_learner_does_not_wait_for_the_others_to_leave_nccl(
    error: Exception, uses_nccl: bool, monkeypatch, capsys
) -> None:
    """What it was is printed before: nothing runs after the process has ended."""
    team, said = Team(Ranks(0, 1)), []
    team.uses_nccl = uses_nccl

    def failing(*_: object) -> int:
        raise error

    def end(code: int) -> NoReturn:
        said.append((code, capsys.readouterr().err))
        raise SystemExit(code)

    monkeypatch.setattr("accel_rl.training.run.end_with_parent", lambda: None)
    monkeypatch.setattr("accel_rl.training.run.meet_by_store", lambda *_: team)
    monkeypatch.setattr("accel_rl.training.run._train", failing)
    monkeypatch.setattr(os, "_exit", end)
    is_known = isinstance(error, ValueError)
    ends = SystemExit if uses_nccl else None if is_known else MemoryError
    with pytest.raises(ends) if ends else nullcontext():
        assert _run_in_team(["env=catch"], LastingConsole(), team.ranks) == 1
    if uses_nccl:
        ((code, text),) = said
        assert code == 1 and ("error: no such thing" if is_known else "MemoryError: none") in text
