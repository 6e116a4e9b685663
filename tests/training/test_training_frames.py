"""How far it is from the command line to the work: frames of our own code on the stack."""

import runpy
import sys
from pathlib import Path
from types import FrameType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def frames_to(goals: dict[str, str], arguments: list[str]) -> dict[str, list[str]]:
    """The stack at the first call of each of ``goals``, by ``file:function`` from ``accel_rl`` on.

    From ``launch/train.py`` down to the function itself; frames of libraries do not count.
    """
    found: dict[str, list[str]] = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        for name, goal in goals.items():
            file, _, function = goal.partition(":")
            code = frame.f_code
            if code.co_name != function or not code.co_filename.endswith(file) or name in found:
                continue
            stack, each = [], frame
            while each is not None:
                path = Path(each.f_code.co_filename)
                if any(path.is_relative_to(ROOT / part) for part in ("accel_rl", "launch")):
                    stack.append(f"{path.relative_to(ROOT)}:{each.f_code.co_name}")
                each = each.f_back  # type: ignore[assignment]
            found[name] = stack[::-1]

    before = sys.argv
    sys.argv = ["launch/train.py", *arguments]
    sys.setprofile(watch)
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "launch/train.py"), run_name="__main__")
    finally:
        sys.setprofile(None)
        sys.argv = before
    assert end.value.code == 0
    return found


@pytest.mark.parametrize("sync", ["all_reduce", "store"])
@pytest.mark.parametrize("algo", ["a2c", "ppo", "appo", "dqn"])
def test_loop_and_update_rule_are_few_frames_from_the_command_line(
    algo: str, sync: str, tmp_path
) -> None:
    options = ["env=catch", "serial=true", "total_steps=600", "num_envs=4", f"algo={algo}"]
    options.append(f"sync={sync}")
    if "ppo" in algo:
        options += ["horizon=32", "minibatch_size=64"]
    if algo == "dqn":
        options += ["min_steps=200", "replay_size=1000", "batch_size=8"]
    goals = {
        "collect": "samplers/sampler.py:collect",
        "rule": "parallel/rules.py:step_",
    }
    found = frames_to(goals, [*options, f"run_dir={tmp_path / 'run'}"])
    assert found["collect"][0] == "launch/train.py:<module>"
    assert len(found["collect"]) <= 6, found["collect"]
    assert len(found["rule"]) <= 12, found["rule"]  # three for what a graph holds
