"""One of several learners, the child of `scaling`.

``what``: ``train``, as the training loop does but for writing metrics; ``sample``, without updates;
``sample_in_step``, likewise with a barrier of all learners after every rollout. ``serial``: whether
simulators are in this process, beside its network.
"""

from __future__ import annotations

import dataclasses
import math
import os
from time import perf_counter
from typing import Any

from benchmarks.harness.children import read_spec, serve, versions
from benchmarks.harness.interleave import Case
from benchmarks.harness.usage import cpu_seconds

TIMEOUT_SECONDS = 120.0
"""that learners wait for each other"""


def learner_case(name: str, spec: dict[str, Any], num_learners: int, row: dict[str, Any]) -> Case:
    """Of ``num_learners`` of these children, which find each other in a store of the case."""
    spec = spec | {"timeout": TIMEOUT_SECONDS}
    specs = tuple(spec | {"rank": rank} for rank in range(num_learners))
    return Case(name, "scaling/scaling_learner.py", specs, row)


def main() -> None:
    """Prepares, and serves."""
    spec = read_spec()
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.cli.parse import parse_arguments
    from accel_rl.training.torch_setup import sampling_threads

    with sampling_threads():
        config = parse_arguments(spec["options"])
        if spec.get("serial"):  # with one environment; the command line asks for two groups
            sampler = dataclasses.replace(config.sampler, num_workers=0)
            config = dataclasses.replace(config, sampler=sampler)
        _serve_learner(config, spec)


def _serve_learner(config: Any, spec: dict[str, Any]) -> None:
    from accel_rl.parallel import Ranks, meet_by_store
    from accel_rl.parallel.meeting import STORE_VARIABLE
    from accel_rl.training.build import build
    from accel_rl.training.devices import all_have_own_gpus
    from accel_rl.training.torch_setup import learning_threads

    os.environ |= {STORE_VARIABLE: spec["store"], "GLOO_SOCKET_IFNAME": "lo"}
    rank, size = spec["rank"], config.num_learners
    team = meet_by_store(Ranks(rank, size, rank, size), spec["timeout"])
    team.open_group(nccl=all_have_own_gpus(config, team))
    parts: Any = build(config, None, team)
    parts.sampler.start()
    is_training, in_step = spec["what"] == "train", config.parallel.sync == "all_reduce"
    own_steps = parts.sampler.config.num_envs * parts.sampler.config.horizon
    seconds = {"agreement_seconds": 0.0, "learning_seconds": 0.0}
    all_steps, last_taken, last_cpu = 0, perf_counter(), cpu_seconds()
    num_threads = parts.num_threads

    def advance() -> int:
        nonlocal all_steps
        parts.sampler.collect(parts.server)
        if is_training:
            began = perf_counter()
            if in_step or size == 1:
                all_steps += config.steps_per_iteration
            else:
                all_steps = team.add_steps(config.steps_per_iteration)
            with learning_threads(num_threads):
                parts.learner.update(parts.server.finish(), 0.0, all_steps)
            seconds["learning_seconds"] += perf_counter() - began
        parts.sampler.take_episodes()
        return own_steps

    while is_training and not parts.sync.num_updates:  # what is measured is to learn
        advance()

    def goes_on(has_time: bool) -> bool:
        """As the training loop agrees to stop; where learners go in step this is the barrier."""
        began = perf_counter()
        if spec["what"] == "sample_in_step" or (is_training and in_step):
            has_time = not team.largest(int(not has_time))
        seconds["agreement_seconds"] += perf_counter() - began
        return has_time

    def take_numbers() -> dict[str, float]:
        nonlocal last_taken, last_cpu
        began, last_taken = last_taken, perf_counter()
        cpu_began, last_cpu = last_cpu, cpu_seconds()
        numbers = {**parts.sync.take_metrics(), **seconds}
        numbers |= {"seconds": last_taken - began, "cpu_seconds": last_cpu - cpu_began}
        seconds.update(dict.fromkeys(seconds, 0.0))
        return {name: value for name, value in numbers.items() if not math.isnan(value)}

    said = {"plan": parts.describe(), "versions": versions("torch", "ale-py")}
    serve(advance, said, take_numbers, goes_on)


if __name__ == "__main__":
    main()
