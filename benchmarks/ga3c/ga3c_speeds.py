"""CPU A3C, GA3C, PAAC and two-group A2C with networks of growing size: GA3C's Table 2.

All of one network are measured in one interleaved run, and so is what their parts cost alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from torch.distributed import TCPStore

from accel_rl.envs import is_atari_game
from benchmarks.harness.interleave import Case, Result, measure
from benchmarks.harness.report import Row, find, make_rows, ratio, spread
from benchmarks.scaling.scaling_report import predict_row

if TYPE_CHECKING:
    from benchmarks.ga3c.ga3c import Options

TIMEOUT_SECONDS = 120.0
HORIZON = 5
PROTOCOL = ("observation_size=84x84", "episodic_lives=false", "press_fire=false")
"""the same simulators for all"""
PAPER_FACTORS = {
    "nips": 1361 / 352,
    "ga3c_large_stride4": 1271 / 113,
    "ga3c_large_stride3": 1206 / 97,
    "ga3c_large_stride2": 874 / 43,
    "ga3c_large_stride1": 490 / 11,
}
"""of GA3C's predictions a second to CPU A3C's, on its first system with a GPU"""


class QueuedCosts(NamedTuple):
    """Seconds of one thread, or of the device, for one step of one environment."""

    simulator: float
    inference: float
    update: float


def queued_bound(
    costs: QueuedCosts, threads: tuple[int, int, int], cores: int, *, has_device: bool
) -> float:
    """The most steps a second of GA3C if nothing but its parts cost time.

    ``threads``: predictors, trainers and agents, none of which does two things at a time. On the
    cores run the simulators, and without a device all else too:

        min(cores / (simulator + inference + update), predictors / inference, trainers / update,
            agents / simulator)
    """
    predictors, trainers, agents = threads
    computing = costs.inference + costs.update
    on_cores = costs.simulator if has_device else costs.simulator + computing
    limits = [cores / on_cores, agents / costs.simulator]
    limits += [predictors / costs.inference, trainers / costs.update]
    return min(*limits, 1 / computing) if has_device else min(limits)


def run_speeds(
    options: Options, machine: dict[str, Any], cpus: list[int], console: Console
) -> list[Row]:
    """A row for each engine and network: its speed, CPU use, and what its parts allow."""
    rows: list[Row] = []
    for network in options.networks:
        stores: list[TCPStore] = []
        cases = [*make_cases(options, network, cpus, stores)]
        console.print(f"predictions a second, {network}", highlight=False)
        results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=console)
        rows += summarise(list(results.values()), len(machine["cores_used"]))
    return rows


def make_cases(
    options: Options, network: str, cpus: list[int], stores: list[TCPStore]
) -> Iterator[Case]:
    """Engines of one network and their parts; A3C's learners find each other by ``stores``."""
    learners = options.learners or len(cpus)
    for engine in options.engines:
        given = [f"algo={engine}", f"env={options.game}", f"model={network}"]
        given += [*(PROTOCOL if is_atari_game(options.game) else ()), *options.extra.split()]
        row = {"engine": engine, "network": network, "learners": 1, "device": options.device}
        common: dict[str, Any] = {"cpus": cpus, "malloc": "tuned", "timeout": TIMEOUT_SECONDS}
        if engine == "ga3c":
            given += [f"num_envs={options.num_envs}", f"device={options.device}", "tuner=false"]
            row["steps_per_update"] = None  # as many as come
            yield _ga3c_case("train", given, row, common, options)
            yield _ga3c_case("parts", given, row, common, options)
            continue
        num_envs = options.num_envs
        if engine == "a3c":
            row |= {"learners": learners, "device": "cpu"}
            given += [f"learners={learners}", "num_envs=1", "sampler.num_groups=1", "device=cpu"]
            num_envs = 1
        else:
            given += [f"num_envs={num_envs}", f"device={options.device}"]
        row["steps_per_update"] = num_envs * HORIZON
        for what in ("train", "parts"):
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            stores.append(store)
            spec = common | {"what": what, "options": given, "serial": engine == "a3c"}
            spec["store"] = f"127.0.0.1:{store.port}"
            of_rank = [spec | {"rank": rank} for rank in range(row["learners"])]
            if engine == "a3c" and what == "train":  # one thread of learning each
                of_rank = [each | {"cpus": [cpus[each["rank"] % len(cpus)]]} for each in of_rank]
            specs = tuple(of_rank if what == "train" else of_rank[:1])
            name = f"{what}, {engine}, {network}"
            yield Case(name, "scaling/scaling_learner.py", specs, {"part": what} | row)


def _ga3c_case(
    what: str, given: list[str], row: Row, common: dict[str, Any], options: Options
) -> Case:
    least = options.min_training_batch
    given = [*given, f"min_training_batch={least}"]
    spec = common | {"what": what, "options": given}
    batches = [2**k for k in range((options.num_envs - 1).bit_length())]
    spec["prediction_batches"] = [*batches, options.num_envs]
    spec["training_batches"] = sorted({max(least, HORIZON), least + HORIZON})
    row = {"part": what} | row
    return Case(f"{what}, ga3c, {row['network']}", "ga3c/ga3c_child.py", (spec,), row)


def summarise(results: list[Result], cores: int) -> list[Row]:
    """The rows of one network's ``train`` cases; ratios round by round.

    ``of_allowed``: of what the parts allow. ``of_a3c``: of CPU A3C. ``allowed_of_a3c``: what the
    parts say of this.
    """
    rows, measured = make_rows(results)
    numbers = {result.case.name: result.numbers for result in results}
    trained = find(measured, part="train")
    parts = {row["engine"]: row for row in find(measured, part="parts")}
    for row in trained:
        row["numbers"] = numbers[row["name"]]
        _add_use(row, cores)
        if row["engine"] in parts:
            part = parts[row["engine"]]
            row["parts"] = {**part["settings"], "numbers": numbers[part["name"]]}
    for row in trained:
        if row["engine"] in parts:
            simulator = _simulator_seconds(trained)
            if row["engine"] == "ga3c" and not simulator:
                continue
            row["allowed"] = spread(_allowed(row, simulator, cores))
            row["of_allowed"] = ratio(row["rates"], _allowed(row, simulator, cores))
            if row["engine"] == "ga3c":
                row["core_us"] = _core_microseconds(row, _queued_costs(row, simulator), cores)
    for a3c in find(trained, engine="a3c"):
        for row in trained:
            row["of_a3c"] = ratio(row["rates"], a3c["rates"])
            if "allowed" in row and "allowed" in a3c:
                row["allowed_of_a3c"] = row["allowed"]["median"] / a3c["allowed"]["median"]
    return [row for row in rows if row["part"] == "train" or row["error"]]


def _add_use(row: Row, cores: int) -> None:
    """Trainings a second, and shares of CPUs and GPU, of each round; of GA3C its batches.

    ``trained_share``: samples trained on / predictions; 1 where its queues are in balance.
    """
    seconds = [max(each["seconds"] for each in children) for children in row["numbers"]]
    used = [sum(each["cpu_seconds"] for each in children) for children in row["numbers"]]
    row["cpu_share"] = spread([a / b / cores for a, b in zip(used, seconds, strict=True)])
    gpu = [children[0].get("gpu_share") for children in row["numbers"]]
    row["gpu_share"] = None if None in gpu else spread(gpu)
    if row["engine"] != "ga3c":
        rates = [rate / row["steps_per_update"] for rate in row["rates"]]
        row["trainings_per_second"] = spread(rates)
        return
    done = [children[0] for children in row["numbers"]]
    row["trainings_per_second"] = spread([each["trainings"] / each["seconds"] for each in done])
    row["trained_share"] = spread([each["samples"] / each["predictions"] for each in done])
    row["prediction_batch"] = statistics.median(
        each["predictions"] / max(1, each["prediction_batches"]) for each in done
    )
    row["training_batch"] = statistics.median(
        each["samples"] / max(1, each["trainings"]) for each in done
    )


def _simulator_seconds(trained: Sequence[Row]) -> list[float]:
    """Of a step, in each round, from the parts of the engine that has measured it with most
    environments.
    """
    for engine in ("a2c", "paac", "a3c"):
        for row in find(trained, engine=engine):
            if "parts" in row:
                return [children[0]["simulator"] for children in row["parts"]["numbers"]]
    return []


def _allowed(row: Row, simulator: list[float], cores: int) -> list[float]:
    """Steps a second that the parts allow, round by round."""
    has_device, part = row["device"] == "cuda", row["parts"]
    if row["engine"] != "ga3c":
        return [
            predict_row(children[0], row, part["shape"], cores, has_device=has_device)
            for children in part["numbers"]
        ]
    threads = tuple(row["settings"]["threads"])
    return [
        queued_bound(costs, threads, cores, has_device=has_device)
        for costs in _queued_costs(row, simulator)
    ]


def _queued_costs(row: Row, simulator: list[float]) -> list[QueuedCosts]:
    """GA3C's parts, each alone, in each round."""
    batches = row["prediction_batch"], row["training_batch"]
    costs = []
    for seconds, children in zip(simulator, row["parts"]["numbers"], strict=False):
        inference, update = (
            _at_batch(children[0], name, batch) / batch
            for name, batch in zip(("inference", "update"), batches, strict=True)
        )
        costs.append(QueuedCosts(seconds, inference, update))
    return costs


def _core_microseconds(row: Row, costs: list[QueuedCosts], cores: int) -> dict[str, float]:
    """Of a step, in the median: what GA3C's processes used, and its parts use alone."""
    done = [children[0] for children in row["numbers"]]
    shares = {
        "agents": [each["cpu_seconds"] - each["own_cpu_seconds"] for each in done],
        "threads": [each["own_cpu_seconds"] for each in done],
        "idle": [cores * each["seconds"] - each["cpu_seconds"] for each in done],
    }
    steps = [each["predictions"] for each in done]
    used = {
        name: statistics.median(a / b for a, b in zip(seconds, steps, strict=True))
        for name, seconds in shares.items()
    }
    alone = {
        name: statistics.median(getattr(each, name) for each in costs)
        for name in QueuedCosts._fields
    }
    return {name: 1e6 * seconds for name, seconds in (used | alone).items()}


def _at_batch(numbers: dict[str, float], name: str, batch: float) -> float:
    """Seconds of a batch of this mean size, between those measured."""
    sizes = sorted(int(key.rpartition("_")[2]) for key in numbers if key.startswith(name))
    return float(np.interp(batch, sizes, [numbers[f"{name}_{size}"] for size in sizes]))
