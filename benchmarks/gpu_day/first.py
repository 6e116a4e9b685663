"""The first figures of a GPU: presets with graphs, eager, overlapped and in TF32, side by side.

    python benchmarks/gpu_day/first.py [out=first.jsonl] [budget=200] [cases=[a2c_120,...]]

First the line: the bare emulator on one core and on all that simulate, of which every figure is a
share. Then each case on simulators that are started once, in one process: with random actions,
acting alone, and learning in each way. There are no rows of metrics and no checkpoints, so that a
run makes 1 to 3 % less.

Each figure is a line of JSON in ``out``, written at once, and so is each failure. After an error of
CUDA, which a process does not survive, the program starts itself again with the cases that follow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.algos import LearnerSpec
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.graphs import Graphs
from accel_rl.parallel import Ranks, Team
from accel_rl.samplers import ActionServer
from accel_rl.samplers.base import PolicyInput
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.training.build import agent_of, make_sampler, make_sync
from accel_rl.training.overlap import Overlapped
from accel_rl.training.torch_setup import gpu_arithmetic, quick_switches, tune_malloc
from benchmarks.harness.children import Child
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse

REPLAY = "buffer_size=1000000 learning_starts=4000"
# Options, and the ways in which each is measured.
CASES = {
    "a2c_120": ("algo=a2c num_envs=120", "random acting graphs eager overlap"),
    "a2c_120x20": ("algo=a2c num_envs=120 horizon=20", "acting"),
    "ppo_60": ("algo=ppo num_envs=60 horizon=32 minibatch_size=480", "random graphs eager overlap"),
    "cat_dqn_2048": (
        f"algo=cat_dqn batch_size=2048 num_envs=60 {REPLAY}",
        "random graphs eager overlap tf32",
    ),
    "a2c_16": ("algo=a2c", "random graphs eager"),
    "a2c_15_one_group": ("algo=a2c num_envs=15 num_groups=1", "random graphs"),
    "ppo_8": ("algo=ppo", "random graphs eager"),
    "ppo_8_one_group": ("algo=ppo num_groups=1", "random graphs"),
    "ppo_240": ("algo=ppo num_envs=240 horizon=8 minibatch_size=480", "graphs overlap"),
    "pqn_120": ("algo=pqn num_envs=120 minibatch_size=120", "graphs overlap"),
    "rainbow_512": (f"algo=rainbow batch_size=512 num_envs=60 {REPLAY}", "graphs overlap"),
    "btr_256": (f"algo=btr overlap=false {REPLAY}", "graphs eager overlap tf32"),
}
LONGEST_SECONDS = 25.0
"""that a figure may take beside its measurement: until learning begins and graphs are recorded"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    out: str = "build/first.jsonl"
    """file to which the lines are added"""
    cases: tuple[str, ...] = tuple(CASES)
    """those to measure; line stands for the bare emulator, which comes first"""
    seconds: float = 2.0
    """of one measurement"""
    budget: float = 200.0
    """seconds after which no case begins"""
    device: str = "cuda"
    """where the network is: cuda or cpu"""
    game: str = "breakout"
    """Atari game, or another environment for a dry run"""
    more: str = ""
    """options of training that are added to all cases"""


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write a line after each figure."""
    options = parse(Options, sys.argv[1:] if arguments is None else arguments, __doc__)
    tune_malloc()
    First(options).run()


class First:
    """Measures the cases of ``options``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._began = time.monotonic()
        self._device = torch.device(options.device)
        self._out = Path(options.out)
        self._out.parent.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Measure all cases in their order, each unless time is over."""
        torch.set_num_threads(1)
        cases = self._options.cases
        if cases == tuple(CASES):
            self._tell(case="machine", **describe_machine(usable_cores()))
            cases = ("line", *cases)
        for number, case in enumerate(cases):
            if time.monotonic() - self._began > self._options.budget:
                self._tell(case=case, error="no time was left")
                continue
            with self._telling(cases[number + 1 :], case=case):
                self._measure_line() if case == "line" else self._measure_case(case, cases[number:])

    def _tell(self, **row: Any) -> None:
        row["at"] = round(time.monotonic() - self._began, 1)
        with self._out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if row["case"] != "machine":
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)

    @contextlib.contextmanager
    def _telling(self, following: tuple[str, ...], **row: Any) -> Iterator[None]:
        """Tell an error within; after one of CUDA, go on with ``following`` in a new process."""
        try:
            yield
        except Exception as error:
            self._tell(**row, error=f"{type(error).__name__}: {error}"[:500])
            if "CUDA error" in str(error):
                left = self._options.budget - (time.monotonic() - self._began)
                raise Lost(following, left) from error

    def _measure_line(self) -> None:
        """What the bare emulator makes on one core, and on all but the server's."""
        cores = usable_cores()
        cores = cores[1:] or cores
        for used in (cores[:1], cores):
            spec = {"game": self._options.game, "envs": 1, "frame_skip": 4, "atari": {}}
            spec["part"] = "emulator" if self._is_atari else "environment"
            children = [
                Child("speed/bare.py", spec | {"cpus": core[:1], "seed": core[0]}) for core in used
            ]
            with contextlib.ExitStack() as stack:
                for child in children:
                    stack.callback(child.close)
                for child in children:
                    child.wait_until_ready()
                for child in children:
                    child.ask(self._options.seconds)
                rate = sum(child.answer(self._options.seconds) for child in children)
            self._tell(case="line", cores=len(used), steps_per_second=round(rate))

    def _measure_case(self, case: str, left: tuple[str, ...]) -> None:
        options, (given, ways) = self._options, CASES[case]
        config = parse_arguments(
            [
                *(*given.split(), f"env={options.game}", f"device={options.device}"),
                *("evaluation_interval=0", "decorrelation_steps=0", *options.more.split()),
            ]
        )
        sampler = make_sampler(config, config.sampler, 0, self._device, Ranks())
        with contextlib.closing(sampler):
            sampler.start()
            for way in ways.split():
                with self._telling(left[1:], case=case, way=way):
                    row = self._measure(config, sampler, way)
                    self._tell(case=case, way=way, **row)

    def _measure(self, config: TrainConfig, sampler: RolloutSampler, way: str) -> dict[str, Any]:
        if way == "random":
            rng = np.random.default_rng(0)
            num_actions = sampler.env_spec.num_actions

            def play(step: PolicyInput) -> Any:
                return rng.integers(num_actions, size=len(step.noise))

            return self._collect(sampler, partial(sampler.collect, play))
        if way == "tf32":
            in_tf32 = dataclasses.replace(config.learner, precision="tf32")
            config = dataclasses.replace(config, learner=in_tf32)
        graphs: Graphs | None = None
        if self._device.type == "cuda" and way != "eager":
            graphs = Graphs(self._device, is_required=False)
        torch.manual_seed(0)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        agent = agent_of(config, sampler.env_spec, self._device, graphs=graphs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(gpu_arithmetic(config, self._device))
            if way == "acting":
                server = stack.enter_context(ActionServer(agent, sampler, self._device))

                def collect() -> None:
                    sampler.collect(server)
                    server.finish()

                return self._collect(sampler, collect)
            sync = make_sync(config, agent, Team(Ranks()))
            share = sampler.config
            task = LearnerSpec(sampler.env_spec, share.num_envs, share.horizon, seed=0)
            learner = config.learner.make_learner(agent, sync, task)
            overlapped, server = None, None
            if way == "overlap":
                stack.enter_context(quick_switches())
                overlapped = Overlapped(sampler, agent, learner, sync)
                stack.callback(overlapped.server.close)
                stack.callback(overlapped._thread.shutdown)  # close() would end simulators, too
            else:
                server = stack.enter_context(ActionServer(agent, sampler, self._device))
            parts = sampler, server, learner, overlapped, sync
            row = _Learning(self._options.seconds, *parts).measure()
            self._wait()
        if graphs is not None:
            row["graphs"] = graphs.describe()
        if self._device.type == "cuda":
            row["gpu_gigabytes"] = torch.cuda.max_memory_reserved(self._device) / 1e9
        return row

    def _collect(self, sampler: RolloutSampler, collect: Callable[[], object]) -> dict[str, Any]:
        """Steps a second of rollouts alone, after some that record graphs."""
        for _ in range(6):
            collect()
        began, num = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < self._options.seconds or not num:
            collect()
            num += 1
        rollout = sampler.config.num_envs * sampler.config.horizon
        return {"steps_per_second": round(num * rollout / elapsed)}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def _is_atari(self) -> bool:
        from accel_rl.envs import is_atari_game

        return is_atari_game(self._options.game)


class _Learning:
    """Whole iterations for ``seconds``, after those in which graphs are recorded."""

    def __init__(
        self,
        seconds: float,
        sampler: RolloutSampler,
        server: Any,
        learner: Any,
        overlapped: Overlapped | None,
        sync: Any,
    ) -> None:
        self._seconds, self._sampler = seconds, sampler
        self._server, self._learner = overlapped or server, overlapped or learner
        self._overlapped, self._sync = overlapped, sync
        self._on_gpu = sync.parameters.parameter.is_cuda
        self._steps = 0
        self._host_seconds = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._end = float("inf")

    def measure(self) -> dict[str, Any]:
        """Iterate; return the figures."""
        sync, sampler = self._sync, self._sampler
        if self._overlapped is not None:
            self._overlapped.begin(lambda steps: time.monotonic() < self._end)
        began, warm = time.monotonic(), max(1.0, self._seconds / 2)
        num = 0
        while time.monotonic() < began + warm or sync.num_updates < 8 or num < 6:
            if time.monotonic() > began + warm + LONGEST_SECONDS:
                raise TimeoutError(f"{sync.num_updates} updates in {LONGEST_SECONDS:g} s")
            self._iterate()
            num += 1
        if self._on_gpu:
            torch.cuda.synchronize()
        before, steps, updates = sampler.times, self._steps, sync.num_updates
        self._host_seconds, self._events = 0.0, []
        began = time.monotonic()
        self._end = began + self._seconds
        num = 0
        while time.monotonic() < self._end or num < 3:
            self._iterate()
            num += 1
        if self._overlapped is not None and self._overlapped.is_ahead:
            self._overlapped.collect()
        if self._on_gpu:
            torch.cuda.synchronize()
        elapsed, after = time.monotonic() - began, sampler.times
        made, taken = max(1, sync.num_updates - updates), self._steps - steps
        acts = taken / sampler.config.num_envs * sampler.config.num_groups
        row = {
            "steps_per_second": round(taken / elapsed),
            "updates_per_second": round(made / elapsed, 1),
            "ms_an_action": round(1e3 * (after.policy - before.policy) / acts, 3),
            "ms_update_host": round(1e3 * self._host_seconds / made, 3),
            "waiting_share": round((after.waiting - before.waiting) / elapsed, 3),
            "simulators_busy_share": round((after.simulating - before.simulating) / elapsed, 3),
        }
        if self._events and self._overlapped is None:
            total = sum(first.elapsed_time(last) for first, last in self._events)
            row["ms_update_device"] = round(total / made, 3)
        return row

    def _iterate(self) -> None:
        if self._overlapped is None:
            self._sampler.collect(self._server)
        else:
            self._overlapped.collect()
        self._steps += self._sampler.config.num_envs * self._sampler.config.horizon
        self._sampler.take_episodes()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * self._on_gpu)]  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        batch = self._server.finish()
        if events:
            events[0].record()
        self._learner.update(batch, 0.1, self._steps)
        if events:
            events[1].record()
            self._events.append((events[0], events[1]))
        self._host_seconds += time.perf_counter() - began


class Lost(BaseException):
    """CUDA has failed; the arguments: cases that are left, and seconds."""


if __name__ == "__main__":
    try:
        main()
    except Lost as lost:
        cases, seconds = lost.args
        given = [each for each in sys.argv[1:] if not each.startswith(("cases=", "budget="))]
        given += [f"cases=[{','.join(cases)}]", f"budget={seconds}"]
        if cases:
            os.execv(sys.executable, [sys.executable, __file__, *given])
