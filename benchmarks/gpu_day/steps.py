"""What each call runs: programs with time limits, at full or at tiny sizes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("speed", "peers", "deep")
LEARNING = "a2c,'a2c num_envs=120',ppo,'ppo num_envs=64','ppo num_envs=256',pqn"
EAGER = "'a2c num_envs=120 capture=off','ppo num_envs=64 capture=off'"
CAT_DQN = "'cat_dqn batch_size=2048'"


@dataclass(frozen=True)
class Step:
    """One program. ``name``: also of its log. ``seconds``: it may take."""

    name: str
    seconds: float
    command: tuple[str, ...]


def make_steps(call: str, out: Path, *, is_dry: bool, leanrl: str | None = None) -> list[Step]:
    """Return the steps of a call.

    Args:
        call: One of `CALLS`.
        out: Folder for the reports.
        is_dry: Tiny sizes on the CPU.
        leanrl: Folder of LeanRL's scripts; None leaves its PPO out.
    """
    device = f"device={'cpu' if is_dry else 'cuda'}"

    def step(name: str, seconds: float, script: str, *given: str, report: str) -> Step:
        path = str(ROOT / "benchmarks" / script)
        return Step(name, seconds, (sys.executable, path, device, *given, f"out={out}/{report}"))

    def learn(name: str, seconds: float, presets: str, report: str, *given: str) -> Step:
        sizes = ["game=catch", "seconds=0.1", "log_interval=64"] if is_dry else given
        more = [f"presets=[{presets}]", *sizes]
        if "cat_dqn" in presets:
            replay = 1_000 if is_dry else 1_000_000
            more += [f"min_steps={replay // 50}", f"replay_size={replay}"]
        return step(name, seconds, "speed/learning_speed.py", *more, report=report)

    def until(game: str, aim: int, seconds: float) -> Step:
        given = [f"game={game}", f"aim={aim}"] + ["limit_seconds=2"] * is_dry
        return step(game, seconds, "gpu_day/until.py", *given, report=f"until_{game}_gpu")

    if call == "speed":
        sampling = [f"envs_per_core=[{2 if is_dry else 8}]", "cases=[emulator,environment,sampler]"]
        sampling += (
            ["rounds=1", "seconds=0.05", "num_cores=1"] if is_dry else ["rounds=2", "seconds=1"]
        )
        learning = ("seconds=6", "log_interval=20480")
        cat_dqn = ("seconds=90", "log_interval=40960")
        return [
            step("sampling", 120, "speed/speed.py", *sampling, report="sampling_gpu"),
            learn("learning", 210, f"{LEARNING},{EAGER}", "learning_gpu", *learning),
            learn("cat_dqn", 250, CAT_DQN, "learning_cat_dqn_gpu", *cat_dqn),
        ]
    if call == "deep":
        return [until("pong", 18, 125), until("breakout", 400, 520)]
    networks = "nips" if is_dry else "nips,ga3c_large_stride1"
    ga3c = ["engines=[a3c,ga3c]", f"networks=[{networks}]", "rounds=1"]
    ga3c += ["seconds=1", "num_envs=4"] if is_dry else ["seconds=3"]
    steps = [step("ga3c", 300, "ga3c/ga3c_speeds.py", *ga3c, report="ga3c_gpu")]
    if leanrl is not None:
        given = ["algos=[ppo]", "peers=[leanrl]", f"leanrl={leanrl}", "rounds=2", "seconds=4"]
        steps.append(step("leanrl", 90, "peers/peers.py", *given, report="peers_ppo_gpu"))
    return steps
