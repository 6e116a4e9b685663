"""Which of Gymnasium's rules does each vector environment keep?

    python benchmarks/vector/vector_conformance.py [out=benchmarks/results/vector_conformance]

Runs `accel_rl.vector.check_vectoriser` on what makes a vector environment of any environments, and
`accel_rl.vector.check` on ready-made ones: ours, Gymnasium's, and ale-py's and EnvPool's where
these are installed. Prints and writes OUT.md: a table of the rules, and how each broken one is
broken.
"""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.vector import Report, VectorEnv, check, check_vectoriser
from benchmarks.harness.options import parse

PACKAGES = ("gymnasium", "ale-py", "envpool", "numpy")
ABORTS = ("wrong number of actions is refused",)  # EnvPool ends the whole process
MARKS = {"holds": "yes", "broken": "**no**", "not tested": ""}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to check."""

    num_steps: int = 600
    """steps of each ready-made environment"""
    out: str = "benchmarks/results/vector_conformance"
    """where to write, without the ending"""


def vectorisers() -> dict[str, Callable[..., Any]]:
    """What makes a vector environment of any environments."""

    def ours(make: Any, n: int, mode: AutoresetMode) -> Any:
        return VectorEnv(make, n, autoreset_mode=mode, info_keys=("count",))

    def gymnasiums(kind: Any, make: Any, n: int, mode: AutoresetMode) -> Any:
        return kind([make] * n, autoreset_mode=mode)

    return {
        "accel_rl VectorEnv": ours,
        "Gymnasium SyncVectorEnv": partial(gymnasiums, SyncVectorEnv),
        "Gymnasium AsyncVectorEnv": partial(gymnasiums, AsyncVectorEnv),
    }


def ready_made() -> dict[str, Callable[[], Any]]:
    """Vector environments as they come, four environments each."""

    def ale(mode: AutoresetMode) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv("breakout", 4, autoreset_mode=mode)

    def cartpole() -> Any:
        return gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")

    found: dict[str, Callable[[], Any]] = {
        "accel_rl VectorEnv, CartPole": partial(VectorEnv, "CartPole-v1", 4),
        "accel_rl VectorEnv, Breakout": partial(VectorEnv, "breakout", 4),
        "Gymnasium CartPoleVectorEnv": cartpole,
        "ale-py AtariVectorEnv": partial(ale, AutoresetMode.NEXT_STEP),
        "ale-py AtariVectorEnv, same step": partial(ale, AutoresetMode.SAME_STEP),
    }
    if _is_installed("envpool"):
        for name in ("CartPole-v1", "Breakout-v5"):
            found[f"EnvPool {name}"] = partial(OfEnvPool, name, 4)
    return found


class OfEnvPool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """An EnvPool with the attributes and the seeded `reset` of Gymnasium, which it has not.

    It takes its seed when it is made, so it is made anew for each.
    """

    def __init__(self, name: str, num_envs: int) -> None:
        self._name, self.num_envs = name, num_envs
        self._make(0)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def _make(self, seed: int) -> None:
        import envpool

        settings = {"env_type": "gymnasium", "num_envs": self.num_envs, "seed": seed}
        self._pool = envpool.make(self._name, **settings)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self._make(seed)
        return self._pool.reset()

    def step(self, actions: Any) -> Any:
        return self._pool.step(actions.astype("int32"))


def main() -> None:
    """Checks, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    warnings.simplefilter("ignore")  # Gymnasium prints the tracebacks of environments that raise
    counting = {
        f"{name}, {mode.name}": check_vectoriser(vectorise, mode)
        for name, vectorise in vectorisers().items()
        for mode in AutoresetMode
    }
    played = {
        name: check(
            make, num_steps=options.num_steps, leave_out=ABORTS if "EnvPool" in name else ()
        )
        for name, make in ready_made().items()
    }
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in PACKAGES
        if _is_installed(package)
    ]
    text = "\n".join(
        [
            "# Which rules of Gymnasium's vector environments hold",
            "",
            f"`python benchmarks/vector/vector_conformance.py` with {', '.join(versions)}. An "
            "empty cell was not tested: the rule does not apply, no episode ended, or the test (a "
            "wrong number of actions, for EnvPool) aborts the process.",
            "",
            "## Environments that count, compared array by array with a plain loop",
            "",
            *tabulate(counting),
            "",
            "## Ready-made environments",
            "",
            *tabulate(played),
            "",
        ]
    )
    out = Path(f"{options.out}.md")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    print(text)


def _is_installed(package: str) -> bool:
    return bool(importlib.metadata.packages_distributions().get(package.replace("-", "_")))


def tabulate(reports: dict[str, Report]) -> list[str]:
    """Lines of Markdown: a row for each rule, then a sentence for each broken one."""
    rules = [each.rule for each in next(iter(reports.values())).findings]
    lines = ["| | " + " | ".join(reports) + " |", "|---|" + "---|" * len(reports)]
    for number, rule in enumerate(rules):
        marks = [MARKS[report.findings[number].verdict] for report in reports.values()]
        lines.append(f"| {rule} | " + " | ".join(marks) + " |")
    broken = [
        f"- {name}: {each.rule}: {each.detail}"
        for name, report in reports.items()
        for each in report.broken
    ]
    return [*lines, "", *broken] if broken else lines


if __name__ == "__main__":
    main()
