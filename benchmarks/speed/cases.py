"""What `speed` measures: its options, and the cases that follow from them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.interleave import Case
from benchmarks.scaling.scaling_learner import learner_case

KINDS = ("atari", "vector", "batch", "train")
FRAME_SKIP = 4
NUM_ACTIONS = 4  # of a network measured alone: they cost nothing to speak of


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    kinds: tuple[str, ...] = ("atari",)
    """atari, vector, batch, train"""
    cases: tuple[str, ...] = ()
    """parts of names: only cases whose name contains one of them are measured; none: all cases"""
    other: str | None = None
    """directory of another checkout: it runs our cases, too, by turns with this one"""
    game: str = "breakout"
    """Atari game"""
    observation_size: str = "104x80"
    """rows x columns of the image: 104x80 or 84x84"""
    envs_per_core: tuple[int, ...] = (32,)
    """atari: environments a core, in all groups together"""
    groups: tuple[int, ...] = (2,)
    """atari: groups of environments that are served in turn"""
    num_cores: int = 0
    """cores to use; 0: all that this process may"""
    samplers: tuple[str, ...] = ("",)
    """atari: further settings of the sampler, separated by blanks, for a case each"""
    network: bool = True
    """atari: also with A3C-Net in the loop"""
    torch_threads: int = 1
    """of the network on the CPU; 0: one for each core"""
    device: str = "cpu"
    """where the network runs: cpu or cuda"""
    horizon: int = 5
    """steps of each environment in one rollout"""
    peers: tuple[str, ...] = ()
    """atari: vector environments to compare with: envpool, ale, gymnasium"""
    peer_python: str | None = None
    """interpreter for those peers that this one has not; several separated as in PATH"""
    vector: str = "CartPole-v1:64"
    """vector: Gymnasium id and number of environments"""
    batch: tuple[str, ...] = ("gymnasium-vec:CartPole-v1:1024",)
    """batch: simulators that are batches, and numbers of environments; envpool:TASK:NUMBER, too"""
    batch_horizon: int = 64
    """batch: steps of each environment in one rollout"""
    train: tuple[str, ...] = ("algo=a2c env=breakout", "algo=ppo env=breakout")
    """train: options of training, separated by blanks"""
    busy: float = 0.0
    """share of the time that one more process keeps the first of the cores busy, 0 to 1"""
    starts: int = 1
    """times that all processes are started, each time with memory of their own"""
    rounds: int = 5
    """times that everything is measured after each start"""
    seconds: float = 3.0
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of simulators and actions"""
    out: str = "build/speed"
    """where to write, without the ending"""


def make_cases(
    options: Options, cores: list[list[int]], interpreters: dict[str, str]
) -> list[Case]:
    """Everything to measure, in the order of a round.

    ``cores[i]``: CPUs of core ``i``. ``interpreters``: of each peer, as `find_peers` gives them.

    Raises:
        SystemExit: there is no such kind of case.
    """
    if unknown := set(options.kinds) - set(KINDS):
        raise SystemExit(f"kinds has {sorted(unknown)}; it takes {', '.join(KINDS)}")
    makers = {
        "atari": _Atari(options, cores, interpreters).cases,
        "vector": lambda: _vector(options, cores),
        "batch": lambda: _batch(options, cores, interpreters),
        "train": lambda: _train(options, cores),
    }
    cases = [case for kind in options.kinds for case in makers[kind]()]
    return [case for case in cases if any(part in case.name for part in options.cases or ("",))]


@dataclass(frozen=True)
class _Atari:
    """Atari with random actions and with A3C-Net; ``cores[i]`` are the CPUs of core ``i``."""

    options: Options
    cores: list[list[int]]
    interpreters: dict[str, str]

    def cases(self) -> Iterator[Case]:
        yield from self._alone()
        yield from self._samplers()
        yield from self._inference()
        yield from self._peers()

    def _alone(self) -> Iterator[Case]:
        """A process for each CPU, one environment each; also as many as the sampler has."""
        for part, envs in dict.fromkeys(
            (("emulator", 1), ("environment", 1), ("environment", self.options.envs_per_core[0]))
        ):
            specs = [
                self._spec(part=part, envs=envs, frame_skip=FRAME_SKIP)
                | {"cpus": [cpu], "seed": self.options.seed + cpu}
                for cpu in _all(self.cores)
            ]
            row = {"part": part, "envs_per_core": envs}
            yield _case("speed/bare.py", specs, row)

    def _samplers(self) -> Iterator[Case]:
        """For all numbers of environments and of groups, without the network and with it."""
        options = self.options
        for network, envs, groups, more in itertools.product(
            self._networks, options.envs_per_core, options.groups, options.samplers
        ):
            num_envs = envs * len(self.cores)
            sampler = {"num_envs": num_envs, "num_groups": groups, "horizon": options.horizon}
            row = {"part": "sampler", "envs_per_core": envs, "groups": groups}
            row |= {"batch": num_envs // groups, "network": network}
            if more:
                row["sampler_options"] = more
                words = [word.split("=", 1) for word in more.split()]
                sampler |= {key: int(x) if x.isdigit() else x for key, x in words}
            spec = self._spec(part="sampler", env=options.game, sampler=sampler)
            spec |= self._with_network(network)
            case = _case("speed/stepping.py", [spec], row)
            beside = [each.name for each in [*self._alone(), *self._peers()]]
            case.row["beside"] = [
                name for name in beside if f"network={not network}" not in name
            ]  # of peers those with the same network
            yield case

    def _inference(self) -> Iterator[Case]:
        """The network alone, on each batch size that the samplers have."""
        served = {case.row["batch"]: case for case in self._samplers() if case.row["network"]}
        for batch, case in served.items():
            spec = case.specs[0] | {"part": "inference", "batch": batch}
            row = {"part": "inference", "batch": batch, "network": True}
            yield _case("speed/bare.py", [spec | {"num_actions": NUM_ACTIONS}], row)

    def _peers(self) -> Iterator[Case]:
        """Each peer in each mode that it has, its threads pinned and not."""
        cpus = _all(self.cores)
        is_run = cpus == list(range(cpus[0], cpus[0] + len(cpus)))  # they pin to nothing else
        modes = itertools.product(
            self.interpreters.items(), self._networks, (False, True), (False, True)
        )
        for (peer, python), network, asynchronous, pinned in modes:
            if (peer == "gymnasium" and (asynchronous or pinned)) or (pinned and not is_run):
                continue
            envs = self.options.envs_per_core[0]
            spec = self._spec(
                peer=peer,
                num_envs=envs * len(self.cores),
                asynchronous=asynchronous,
                env_threads=len(cpus),
                affinity_offset=cpus[0] if pinned else -1,
            )
            row = {"part": peer, "envs_per_core": envs, "asynchronous": asynchronous}
            row |= {"pinned": pinned, "network": network}
            spec |= self._with_network(network)
            yield _case("speed/peers_sampling.py", [spec], row, python)

    @property
    def _networks(self) -> tuple[bool, ...]:
        return (False, True)[: 1 + self.options.network]

    def _with_network(self, network: bool) -> dict[str, Any]:
        if not network:
            return {"network": False}
        options, threads = self.options, self.options.torch_threads or len(self.cores)
        return {"network": True, "torch_threads": threads, "device": options.device}

    def _spec(self, **more: Any) -> dict[str, Any]:
        options = self.options
        return {
            "game": options.game,
            "atari": {"observation_size": options.observation_size},
            "observation_shape": [4, *map(int, options.observation_size.split("x"))],
            "cpus": _all(self.cores),
            "seed": options.seed,
            "malloc": "tuned",
            **more,
        }


def _vector(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    """`VectorEnv` beside a plain loop and Gymnasium's, and beside our sampler on the game."""
    env, _, number = options.vector.rpartition(":")
    num_envs = int(number)

    def case(env: str, part: str, of: tuple[str, ...] = (), **more: Any) -> Case:
        cpus = [cores[0][0]] if part == "loop" else _all(cores)
        spec = {"part": part, "env": env, "cpus": cpus, "seed": options.seed, **more}
        row = {"kind": "vector", "env": env, "part": part, **next(iter(more.values()), {})}
        made = _case("speed/stepping.py", [spec | {"malloc": "tuned"}], row)
        made.row["beside"] = of
        return made

    loop = case(env, "loop")
    async_env = case(env, "gymnasium", vector_env={"num_envs": num_envs})
    yield from (loop, async_env)
    for groups in (1, 2):
        settings = {"num_envs": num_envs, "num_groups": groups}
        yield case(env, "vector_env", (loop.name, async_env.name), vector_env=settings)
    settings = {"num_envs": num_envs, "num_groups": 2}
    sampler = settings | {"horizon": options.horizon}
    beside = case(options.game, "sampler", sampler=sampler)
    yield beside
    for copy in (False, True):
        more = {"vector_env": settings | {"copy": copy}}
        yield case(options.game, "vector_env", (beside.name,), **more)


def _batch(
    options: Options, cores: list[list[int]], interpreters: dict[str, str]
) -> Iterator[Case]:
    """Batches of simulators in our workers; the same one by one, in bare loops, and in EnvPool."""
    for text in options.batch:
        env, _, number = text.rpartition(":")
        kind, _, task = env.partition(":")
        num_envs = int(number)
        python = (
            interpreters.get("envpool", sys.executable) if kind == "envpool" else sys.executable
        )
        row = {"kind": "batch", "env": env, "num_envs": num_envs}

        def sampler(env: str, part: str, python: str, row: dict[str, Any] = row) -> Case:
            settings = {
                "num_envs": row["num_envs"],
                "horizon": options.batch_horizon,
                "num_workers": len(cores),
            }
            spec = {"part": "sampler", "env": env, "sampler": settings, "cpus": _all(cores)}
            spec |= {"seed": options.seed, "malloc": "tuned"}
            return _case("speed/stepping.py", [spec], {**row, "part": part}, python)

        beside = []
        if kind == "envpool":
            settings = {"num_envs": num_envs, "batch_size": num_envs // 2}
            spec = {"part": "envpool", "env": task, "cpus": _all(cores), "seed": options.seed}
            spec |= {"settings": settings | {"num_threads": len(cores)}, "malloc": "tuned"}
            beside.append(_case("speed/stepping.py", [spec], {**row, "part": "envpool"}, python))
        else:
            beside.append(sampler(task, "looped", python))
            spec = {"part": "vectorised", "env": task, "num_envs": num_envs // len(cores)}
            spec |= {"seed": options.seed, "malloc": "tuned"}
            specs = [spec | {"cpus": cpus} for cpus in cores]
            beside.append(_case("speed/stepping.py", specs, {**row, "part": "bare"}))
        yield from beside
        case = sampler(env, "sampler", python)
        case.row["beside"] = [each.name for each in beside]
        yield case


def _train(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    for text in options.train:
        row = {"kind": "train", "part": "accel_rl", "options": text}
        spec = {"cpus": _all(cores), "malloc": "tuned"}
        yield train_case(f"train {text}", spec | {"options": [*text.split()]}, row)


def train_case(name: str, spec: dict[str, Any], row: dict[str, Any]) -> Case:
    """Our training with the options in ``spec``, by as many learners as they name."""
    found = re.search(r"\blearners=(\d+)", " ".join(spec["options"]))
    if found and int(found[1]) > 1:
        return learner_case(name, spec | {"what": "train"}, int(found[1]), row)
    return Case(name, "speed/training.py", (spec,), row)


def _all(cores: list[list[int]]) -> list[int]:
    return sorted(cpu for core in cores for cpu in core)


def _case(
    script: str, specs: list[dict[str, Any]], row: dict[str, Any], python: str = sys.executable
) -> Case:
    row = {"kind": "atari", **row}
    name = " ".join(
        str(value) if key in ("kind", "env", "part") else f"{key}={value}"
        for key, value in row.items()
    )
    return Case(name, script, tuple(specs), row, python)
