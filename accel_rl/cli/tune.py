"""``accel_rl tune``: which groups and workers sample fastest on this machine.

They alter the speed, not the rollouts. A run's environments step with its policy, which does not
learn meanwhile. From the configured groups and workers the search goes from neighbour to neighbour
(`neighbours`), each against the fastest before: the two run by turns, so that whatever else the
machine does slows both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import NamedTuple, Protocol

import torch

from accel_rl.cli.parse import parse_arguments, wants_help
from accel_rl.config import TrainConfig
from accel_rl.options import format_value
from accel_rl.parallel import Ranks
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerError
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system.console import LastingConsole, complain, print_text, tell_error
from accel_rl.system.functions import ExitError
from accel_rl.training.build import agent_of, make_sampler, sampler_share
from accel_rl.training.devices import learner_device, make_capture

USAGE = """\
python -m accel_rl tune [key=value ...]    options with which that run samples fastest here

Takes the options of a training run, tries groups and workers for half a minute, and prints
num_groups, workers_per_core and num_workers to add to them. They change the speed alone."""
SECONDS = 30.0
"""of a trial; what is not compared by then is left out"""
WINDOW_SECONDS = 0.5
"""of one measurement, or one rollout where that takes longer"""
NUM_TURNS = 5
"""of two, the new one of which must be faster in all but one"""
GAIN = 1.02
"""how many times as fast it must be there: for less, nothing need change"""
_MOST_STEPS = 20
"""of a rollout in the trial, so that none takes long"""


class Layout(NamedTuple):
    """Options of the sampler of these names, which alter its speed alone."""

    num_groups: int
    workers_per_core: int
    num_workers: int | None

    def describe(self) -> str:
        """As one would write them on the command line."""
        return " ".join(f"{name}={format_value(value)}" for name, value in self._asdict().items())


class Engine(Protocol):
    """Simulators of some layout; ``num_workers``: how many there are."""

    num_workers: int

    def start(self) -> None: ...

    def measure(self, seconds: float = WINDOW_SECONDS) -> float:
        """Steps a second over so long."""
        ...

    def close(self) -> None: ...


def tune(arguments: Sequence[str]) -> int:
    """Print the options with which a run samples fastest here; returns the exit code.

    Of several learners one is tried, on its share of the cores.
    """
    console = LastingConsole()
    if wants_help(arguments):
        return print_text(USAGE)
    try:
        config = parse_arguments(arguments)
        check_can_tune(config)
        with closing(Trial(config)) as trial, _without_warnings():
            chosen = choose(trial.first, trial.num_envs, trial.make, complain, SECONDS)
    except (ValueError, SamplerError, ExitError) as error:
        tell_error(error, arguments)
        return 1
    console.print(chosen.describe(), markup=False, highlight=False, soft_wrap=True)
    return 0


def check_can_tune(config: TrainConfig) -> None:
    """Raises ValueError where there are no groups and workers to choose."""
    if config.serial:
        raise ValueError("tune chooses groups and workers, and serial=true has none; leave it out")
    if not config.learner.in_rollouts:
        raise ValueError(
            f"tune tries rollout samplers, and algo={config.algo} has a tuner of its own "
            f"(tuner=true), which works while it trains"
        )


class Trial:
    """The policy of a run, and the simulators of one of its learners in any layout.

    Attributes:
        first: the layout that the run has by itself.
        num_envs: environments of one learner.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        num = config.num_learners
        self._ranks = Ranks(size=num, local_size=num)
        self._share = sampler_share(config, self._ranks)
        self.first = Layout(*(getattr(config.sampler, name) for name in Layout._fields))
        self.num_envs = self._share.num_envs
        self._cpus = os.sched_getaffinity(0)
        self._device = learner_device(config, self._ranks)
        spec = config.probe_spec()
        self._agent = agent_of(
            config, spec, self._device, capture=make_capture(config, self._device)
        )

    def make(self, layout: Layout) -> Engine:
        """Simulators in this layout, not started."""
        os.sched_setaffinity(0, self._cpus)
        share = dataclasses.replace(
            self._share,
            **layout._asdict(),
            horizon=min(self._share.horizon, _MOST_STEPS),
            decorrelation_steps=0,
        )
        config = self._config
        sampler = make_sampler(config, share, config.seed, self._device, self._ranks)
        try:
            server = ActionServer(self._agent, sampler, self._device)
        except BaseException:
            sampler.close()
            raise
        return _Simulators(sampler, server)

    def close(self) -> None:
        """Give this process its CPUs back."""
        os.sched_setaffinity(0, self._cpus)


def choose(
    first: Layout,
    num_envs: int,
    make: Callable[[Layout], Engine],
    tell: Callable[[str], None],
    seconds: float,
) -> Layout:
    """The fastest layout that is found within ``seconds``, ``first`` if no other is faster.

    ``make`` gives the simulators of a layout, ``num_envs`` of them, which are started and closed
    here, beside those of the fastest. What cannot be had is not faster. ``tell`` is given a line
    for each.
    """
    began = perf_counter()
    best, fastest = first, make(first)
    try:
        fastest.start()
        fastest.measure()  # gets warm; what is captured is compiled
        end = perf_counter() + seconds
        tell(f"{first.describe()} makes {fastest.measure():,.0f} steps/s")
        tried = {first._replace(num_workers=fastest.num_workers)}
        waiting = neighbours(first, fastest.num_workers, num_envs)
        while waiting and perf_counter() < end:
            layout = waiting.pop(0)
            try:
                other = make(layout)
            except (ValueError, RuntimeError, OSError) as error:
                tell(f"{layout.describe()} is not possible: {error}")
                continue
            try:
                counted = layout._replace(num_workers=other.num_workers)
                if counted not in tried and _is_faster(other, fastest, end, tell, layout):
                    best, fastest, other = layout, other, fastest
                    waiting = neighbours(best, fastest.num_workers, num_envs)
                tried.add(counted)
            finally:
                other.close()
    finally:
        fastest.close()
    rest = ", and time was over" * bool(waiting)
    tell(f"chose {best.describe()} in {perf_counter() - began:.0f} s{rest}")
    return best


def neighbours(layout: Layout, num_workers: int, num_envs: int) -> list[Layout]:
    """Those to try beside ``layout``, which has ``num_workers`` for ``num_envs``.

    Half and twice as many workers; workers that hold a slice of one group in place of all, or the
    other way round; the next larger and smaller number of groups.
    """
    groups, per_core, given = layout
    divisors = [number for number in range(1, num_envs + 1) if num_envs % number == 0]
    at = divisors.index(groups)
    found: list[tuple[int, int, int | None]] = [
        (groups, per_core, 2 * num_workers),
        (groups, per_core, num_workers // 2),
    ]
    if groups > 1:
        found.append((groups, groups if per_core == 1 else 1, given))
    for number in divisors[at + 1 : at + 2] + divisors[:at][-1:]:
        held = 1 if per_core == 1 else number
        found.append((number, held, None if given is None else given // per_core * held))
    return [_fit(*each, num_envs) for each in found]


def _fit(groups: int, per_core: int, number: int | None, num_envs: int) -> Layout:
    """With as many workers as `plan_workers` allows, and as close to ``number``."""
    if number is not None:
        slices = min(max(1, number // per_core), num_envs // groups)
        number = slices * per_core
    return Layout(groups, per_core, number)


def _is_faster(
    other: Engine, fastest: Engine, end: float, tell: Callable[[str], None], layout: Layout
) -> bool:
    """Whether ``other``, of ``layout``, is; no if there is no time to tell before ``end``."""
    try:
        other.start()
        other.measure()
    except (SamplerError, OSError, torch.OutOfMemoryError) as error:
        tell(f"{layout.describe()} is not possible: {error}")
        return False
    losses = 0
    for _ in range(NUM_TURNS):
        if perf_counter() > end:
            return False
        before, now = fastest.measure(), other.measure()
        losses += now < GAIN * before
        if losses > 1:
            break
    verdict = ": kept" * (losses <= 1)
    tell(f"{layout.describe()} makes {now:,.0f} steps/s, against {before:,.0f}{verdict}")
    return losses <= 1


class _Simulators:
    """The environments of a run, in the layout to try, stepping with its policy."""

    def __init__(self, sampler: RolloutSampler, server: ActionServer) -> None:
        self.num_workers = 1
        if isinstance(sampler, ParallelSampler):
            self.num_workers = len(sampler.plan.worker_cpus)
        self._sampler, self._server = sampler, server

    def start(self) -> None:
        self._sampler.start()

    def measure(self, seconds: float = WINDOW_SECONDS) -> float:
        began, steps = perf_counter(), 0
        while (gone := perf_counter() - began) < seconds or not steps:
            rollout = self._sampler.collect(self._server)
            self._server.finish()
            steps += rollout.action.size
        return steps / gone

    def close(self) -> None:
        self._server.close()
        self._sampler.close()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Within, nobody is told that workers share cores: that is being tried."""
    logger = logging.getLogger("accel_rl.system.topology")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False
