"""Which of Gymnasium's rules does each vector environment keep?

    python benchmarks/vector_conformance.py [out=benchmarks/results/vector_conformance]

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
from options import parse

from accel_rl.samplers import VectorEnv
from accel_rl.vector import Report, check, check_vectoriser

PACKAGES = ("gymnasium", "ale-py", "envpool", "numpy")
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
    try:
        import envpool
    except ImportError:
        return found
    for name in ("CartPole-v1", "Breakout-v5"):
        found[f"EnvPool {name}"] = partial(
            envpool.make, name, env_type="gymnasium", num_envs=4, seed=7
        )
    return found


def main() -> None:
    """Checks, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    warnings.simplefilter("ignore")  # Gymnasium prints the tracebacks of environments that raise
    counting = {
        f"{name}, {mode.name}": check_vectoriser(vectorise, mode)
        for name, vectorise in vectorisers().items()
        for mode in AutoresetMode
    }
    played = {name: check(make, num_steps=options.num_steps) for name, make in ready_made().items()}
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in PACKAGES
        if _is_installed(package)
    ]
    text = "\n".join(
        [
            "# Which rules of Gymnasium's vector environments hold",
            "",
            f"`python benchmarks/vector_conformance.py` with {', '.join(versions)}. An empty cell "
            "was not tested, because the rule does not apply or no episode ended.",
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
