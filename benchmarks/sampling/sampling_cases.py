"""What the sampling-speed benchmark measures: its options, and the cases that follow from them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.interleave import Case

FRAME_SKIP = 4
SYNCHRONOUS = ("gymnasium", "sb3", "torchrl")  # a process for each environment
NUM_ACTIONS = 4  # of a network measured alone: they cost nothing to speak of


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    game: str = "breakout"
    """Atari game"""
    observation_size: str = "104x80"
    """rows x columns of the image: 104x80 or 84x84"""
    envs_per_core: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """environments a core, in all groups together"""
    groups: tuple[int, ...] = (1, 2)
    """groups of environments that are served in turn"""
    workers_per_core: tuple[int, ...] = (1, 2)
    """workers on each core: 1, or one for each group"""
    hyperthreads: tuple[int, ...] = (1, 2)
    """hyperthreads of each core to use, as far as there are so many"""
    num_cores: int = 0
    """cores to use; 0: all that this process may"""
    network: bool = True
    """also with A3C-Net in the loop"""
    torch_threads: tuple[int, ...] = (1, 0)
    """threads of the network on the CPU; 0: one for each core; all but the first only at the bar"""
    device: str = "cpu"
    """where the network runs: cpu or cuda"""
    checkpoint: str | None = None
    """weights of a trained A3C-Net, as training saved them; none: initial ones"""
    malloc: str = "tuned"
    """tuned: glibc keeps the memory it has got, as in our training; default: as it comes"""
    horizon: int = 5
    """steps of each environment in one rollout"""
    peers: tuple[str, ...] = ()
    """vector environments to compare with: envpool, ale, gymnasium, sb3, torchrl"""
    peer_envs_per_core: tuple[int, ...] = (32,)
    """environments a core in a peer"""
    peer_python: str | None = None
    """interpreter for those peers that this one has not; several separated as in PATH"""
    bar_envs_per_core: int = 32
    """environments a core at which ours are held against the bars"""
    cases: tuple[str, ...] = ()
    """parts of names: only cases whose name contains one of them are measured; none: all cases"""
    starts: int = 1
    """times that all processes are started, each time with memory of their own"""
    busy: float = 0.0
    """share of the time that one more process keeps the first of the cores busy, 0 to 1"""
    rounds: int = 5
    """times that everything is measured after each start"""
    seconds: float = 3.0
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of games and actions"""
    out: str = "benchmarks/results/sampling_speed"
    """where to write, without the ending"""


def make_cases(
    options: Options, cores: list[list[int]], interpreters: dict[str, str]
) -> list[Case]:
    """Everything to measure, in the order of a round.

    ``cores[i]``: CPUs of core ``i``. ``interpreters``: of each peer, as `find_peers` gives them.
    """
    most = max(len(core) for core in cores)
    cases: list[Case] = []
    for threads in sorted({min(threads, most) for threads in options.hyperthreads}):
        maker = _Maker(options, threads, [core[:threads] for core in cores], interpreters)
        cases += [*maker.alone(), *maker.samplers(), *maker.inference(), *maker.peers()]
    if not options.cases:
        return cases
    return [case for case in cases if any(part in case.name for part in options.cases)]


@dataclass(frozen=True)
class _Maker:
    """Cases on the same hyperthreads; ``cores[i]`` are those of core ``i``."""

    options: Options
    hyperthreads: int
    cores: list[list[int]]
    interpreters: dict[str, str]

    def alone(self) -> Iterator[Case]:
        """(a) and (b), a process for each CPU, one environment each; (b) also as at the bar."""
        many = self.options.bar_envs_per_core // self.hyperthreads
        for part, envs, more in (
            ("emulator", 1, {"cached_starts": False}),
            ("emulator", 1, {"cached_starts": True}),
            ("environment", 1, {}),
            *([("environment", many, {})] if many > 1 else []),
        ):
            specs = [
                self._spec(part=part, envs=envs, frame_skip=FRAME_SKIP, **more)
                | {"cpus": [cpu], "seed": self.options.seed + cpu}
                for cpu in self._cpus
            ]
            row = {"part": part, "envs_per_core": envs * self.hyperthreads, **more}
            yield self._case("sampling/bare.py", specs, row)

    def samplers(self) -> Iterator[Case]:
        """(c) and (d), for all numbers of environments, groups and workers that fit together."""
        for network in (False, True)[: 1 + self.options.network]:
            for envs, (groups, workers) in itertools.product(
                self.options.envs_per_core, self._layouts
            ):
                num_envs = envs * len(self.cores)
                if num_envs < groups * len(self._cpus) // min(workers, self.hyperthreads):
                    continue  # some worker would have no environment of some group
                sampler = {
                    "num_envs": num_envs,
                    "num_groups": groups,
                    "workers_per_core": workers,
                    "horizon": self.options.horizon,
                }
                row = {"part": "sampler", "envs_per_core": envs, "groups": groups}
                row |= {
                    "workers_per_core": workers,
                    "batch": num_envs // groups,
                    "network": network,
                }
                spec = self._spec(sampler=sampler, network=network)
                yield from self._with_threads("sampling/ours.py", spec, row)

    def inference(self) -> Iterator[Case]:
        """The network alone, on each batch size that (d) has."""
        served = [case for case in self.samplers() if case.row["network"]]
        for case in {(c.row["batch"], c.row["torch_threads"]): c for c in served}.values():
            spec = case.specs[0] | {
                "part": "inference",
                "batch": case.row["batch"],
                "num_actions": NUM_ACTIONS,
            }
            row = {"part": "inference", "batch": case.row["batch"], "network": True}
            row["torch_threads"] = case.row["torch_threads"]
            yield self._case("sampling/bare.py", [spec], row)

    def peers(self) -> Iterator[Case]:
        """Each peer in each mode that it has, its threads pinned and not."""
        modes = itertools.product(
            self.interpreters.items(),
            (False, True)[: 1 + self.options.network],
            self.options.peer_envs_per_core,
            (False, True),
            (False, True),
        )
        for (peer, python), network, envs, asynchronous, pinned in modes:
            if (peer in SYNCHRONOUS and (asynchronous or pinned)) or (pinned and not self._is_run):
                continue
            spec = self._spec(
                peer=peer,
                network=network,
                num_envs=envs * len(self.cores),
                asynchronous=asynchronous,
                env_threads=len(self._cpus),
                affinity_offset=self._cpus[0] if pinned else -1,
            )
            row = {"part": peer, "envs_per_core": envs, "asynchronous": asynchronous}
            row |= {"pinned": pinned, "network": network}
            yield from self._with_threads("sampling/peers_sampling.py", spec, row, python)

    @property
    def _cpus(self) -> list[int]:
        return sorted(cpu for core in self.cores for cpu in core)

    @property
    def _is_run(self) -> bool:
        """Whether the CPUs are consecutive: peers pin threads to nothing else."""
        return self._cpus == list(range(self._cpus[0], self._cpus[0] + len(self._cpus)))

    @property
    def _layouts(self) -> list[tuple[int, int]]:
        """Groups and workers a core."""
        pairs = itertools.product(self.options.groups, self.options.workers_per_core)
        return [(groups, workers) for groups, workers in pairs if workers in {1, groups}]

    def _spec(self, **more: Any) -> dict[str, Any]:
        options = self.options
        return {
            "game": options.game,
            "atari": {"observation_size": options.observation_size},
            "observation_shape": [4, *map(int, options.observation_size.split("x"))],
            "cpus": self._cpus,
            "seed": options.seed,
            "malloc": options.malloc,
            **more,
        }

    def _with_threads(
        self, script: str, spec: dict[str, Any], row: dict[str, Any], python: str = sys.executable
    ) -> Iterator[Case]:
        """The case once for each number of torch's threads, or once without a network."""
        if not row["network"]:
            yield self._case(script, [spec], row, python)
            return
        first, *others = dict.fromkeys(n or len(self.cores) for n in self.options.torch_threads)
        is_at_bar = row["envs_per_core"] == self.options.bar_envs_per_core
        for threads in [first, *(others if is_at_bar else [])]:
            more = {"torch_threads": threads, "device": self.options.device}
            more["checkpoint"] = self.options.checkpoint
            yield self._case(script, [spec | more], row | {"torch_threads": threads}, python)

    def _case(
        self,
        script: str,
        specs: list[dict[str, Any]],
        row: dict[str, Any],
        python: str = sys.executable,
    ) -> Case:
        row = {"hyperthreads": self.hyperthreads, **row}
        name = " ".join(f"{key}={value}" for key, value in row.items())
        return Case(name=name, script=script, specs=tuple(specs), row=row, python=python)
