"""Do two versions of this package train to the same bits? For changes that must change nothing.

    python tests/whole_runs/compare_versions.py OLD NEW [preset ...]

``OLD`` and ``NEW`` are checkouts. Each preset is trained by both for a few updates: on Catch in one
process and with two workers, and on Breakout in one process. Then every value of their last
checkpoints is compared: parameters, optimizer, generators, replay, simulators. GA3C is left out:
its threads come in another order in each run. ``RENAMED`` says what a value of the old version is
called in the new one; None: it is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RENAMED: dict[str, str | None] = {"/counts/training_seconds": None, "/format": None}

RUNS = {
    "catch": ["env=catch", "serial=true"],
    "catch, 2 workers": ["env=catch", "num_workers=2"],
    "catch, overlap": ["env=catch", "serial=true", "overlap=true"],
    "breakout": ["env=breakout", "serial=true"],
}
SHARED = ["seed=3", "total_steps=600", "run_dir=run", "evaluation_interval=0", "log_interval=200"]
ACTOR_CRITIC = ["num_envs=8"]
Q_LEARNING = ["num_envs=4", "replay_size=2000", "min_steps=200", "batch_size=16"]
PRESETS = {
    **dict.fromkeys(("a2c", "a2c_baselines", "a3c", "paac", "ppo", "appo"), ACTOR_CRITIC),
    "ppo_baselines": ACTOR_CRITIC,
    **dict.fromkeys(("dqn", "async_dqn", "double_dqn", "cat_dqn", "rainbow"), Q_LEARNING),
    "eps_rainbow": Q_LEARNING,
}

READ = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
import torch
try:
    from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
except ModuleNotFoundError:  # an older version
    from accel_rl.training.checkpoint import list_checkpoints, load_checkpoint

def walk(value, name):
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from walk(each, f"{name}/{i}")
    elif isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        shape = f"{value.dtype} {list(value.shape)} "
        yield name, shape + hashlib.sha256(bytes(array)).hexdigest()
    else:
        yield name, repr(value)

state = load_checkpoint(list_checkpoints(Path("run"))[-1])
print(json.dumps(dict(walk(state, ""))))
"""


def main() -> None:
    """Compare the two versions; exit with 1 if a value differs."""
    old, new = (Path(argument).resolve() for argument in sys.argv[1:3])
    failures = 0
    for preset in sys.argv[3:] or PRESETS:
        for name, run in RUNS.items():
            options = [f"algo={preset}", *SHARED, *PRESETS[preset], *run]
            before, after = (values_of(version, options) for version in (old, new))
            differing = compare(before, after)
            failures += len(differing)
            print(f"{preset}, {name}: {len(before)} values, {len(differing)} differ", flush=True)
            for each in differing[:10]:
                print(f"    {each}", flush=True)
    sys.exit(failures > 0)


def values_of(version: Path, options: list[str]) -> dict[str, str]:
    """Train in a new folder; return every value of the last checkpoint, by its path."""
    environment = {**os.environ, "PYTHONPATH": str(version), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:

        def run(*arguments: str) -> str:
            command = [sys.executable, *arguments]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"{version}: {options}\n{done.stdout}\n{done.stderr}")
            return done.stdout

        run(str(version / "launch/train.py"), *options)
        values: dict[str, str] = json.loads(run("-c", READ))
        return values


def compare(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what differs, by the names of the old version, then what only the new one has."""
    renamed = {name: RENAMED.get(name, name) for name in before}
    differing = [
        f"{name}: {before[name][:60]} became {after.get(new or '', 'nothing')[:60]}"
        for name, new in renamed.items()
        if new is not None and before[name] != after.get(new)
    ]
    known = {*renamed.values(), *RENAMED}
    return differing + [f"{name} is new" for name in after if name not in known]


if __name__ == "__main__":
    main()
