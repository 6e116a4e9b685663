"""The parts alone, each in a pinned process with nothing between it and its core.

``emulator``: four `act` calls a step, no observation; at game over a start state saved before.
``environment``: our `AtariEnv` in a plain loop, writing into one array. ``inference``: the network
on one batch after another.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from benchmarks.harness.children import Advance, read_spec, serve

STEPS_AT_ONCE = 64  # about 15 ms


def main() -> None:
    """Measures the part that the specification names."""
    spec = read_spec()
    make = {"emulator": make_emulator, "environment": make_env_loop, "inference": make_inference}
    serve(*make[spec["part"]](spec))


def make_emulator(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """Random play on the emulator alone. ``spec``: game, frame_skip, envs, seed."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    rng = np.random.default_rng(spec["seed"])
    emulators = []
    for _ in range(spec["envs"]):
        emulator = ALEInterface()
        emulator.setInt("random_seed", int(rng.integers(2**31)))
        emulator.setInt("system_random_seed", int(rng.integers(2**31)))
        emulator.setFloat("repeat_action_probability", 0.0)
        emulator.loadROM(roms.get_rom_path(spec["game"]))
        emulators.append(emulator)
    actions = emulators[0].getMinimalActionSet()
    starts = [emulator.cloneState(include_rng=True) for emulator in emulators]
    frames = range(spec["frame_skip"])
    order = itertools.cycle(zip(emulators, starts, strict=True))

    def advance() -> int:
        indices = rng.integers(len(actions), size=STEPS_AT_ONCE).tolist()
        for index, (emulator, start) in zip(indices, order, strict=False):
            action = actions[index]
            for _ in frames:
                emulator.act(action)
            if emulator.game_over():
                emulator.restoreState(start)
        return STEPS_AT_ONCE

    return advance, {"envs": spec["envs"]}


def make_env_loop(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """Random play on our environments, one after another. ``spec``: game, atari, envs, seed."""
    from accel_rl.envs import AtariConfig, make_env_factory

    factory = make_env_factory(spec["game"], AtariConfig(**spec["atari"]))
    envs = [factory() for _ in range(spec["envs"])]
    seeds = np.random.SeedSequence(spec["seed"]).spawn(len(envs) + 1)
    rng = np.random.default_rng(seeds[-1])
    env_spec = envs[0].spec
    rows = np.zeros((len(envs), *env_spec.observation_shape), env_spec.observation_dtype)
    for env, seed, row in zip(envs, seeds[:-1], rows, strict=True):
        env.seed(seed)
        env.reset(row)
    order = itertools.cycle(zip(envs, rows, strict=True))

    def advance() -> int:
        actions = rng.integers(env_spec.num_actions, size=STEPS_AT_ONCE).tolist()
        for action, (env, row) in zip(actions, order, strict=False):
            if env.step(action, row).episode_ended:
                env.reset(row)
        return STEPS_AT_ONCE

    return advance, {"envs": spec["envs"], "atari": spec["atari"]}


def make_inference(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """Actions for batch after batch of noise. ``spec``: batch, and what `network` asks for."""
    from benchmarks.harness.network import make_act

    rng = np.random.default_rng(spec["seed"])
    shape = (6, spec["batch"], *spec["observation_shape"])  # rows of a rollout, not one in cache
    rows = itertools.cycle(rng.integers(256, size=shape, dtype=np.uint8))
    act, settings = make_act(spec)

    def advance() -> int:
        act(next(rows))
        return int(spec["batch"])

    return advance, settings


if __name__ == "__main__":
    main()
