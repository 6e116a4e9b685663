"""`VectorEnv` in use: groups, seeds, copies, spaces, Gymnasium's wrappers, and wrong arguments."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting_env import CountingEnv
from echo_env import EchoEnv
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers
from tiers import PROCESSES, SLOW, processes, slow, slow_processes
from toy_envs import ToyEnv

from accel_rl.envs import AtariConfig
from accel_rl.samplers import SamplerError
from accel_rl.vector import VectorEnv

B = 6


def make(**options: Any) -> VectorEnv:
    return VectorEnv(ToyEnv, B, **{"num_workers": 0, "seed": 0, **options})


@pytest.fixture
def env() -> Iterator[VectorEnv]:
    """Reset, with two groups."""
    env = make(num_groups=2)
    env.reset()
    yield env
    env.close()


def play(env: VectorEnv, num_steps: int, **reset: Any) -> list[Any]:
    """All that a number of steps return, each array stacked over time."""
    actions = np.random.default_rng(1).integers(4, size=(num_steps, B))
    env.reset(**reset)
    results = [env.step(row) for row in actions]
    arrays = [np.stack(values) for values in zip(*(r[:4] for r in results), strict=True)]
    return [*arrays, np.stack([r[4]["raw_reward"] for r in results])]


def play_by_groups(env: VectorEnv, num_steps: int) -> list[Any]:
    """The same by `send` and `recv`, put together by ``env_id``."""
    actions = np.random.default_rng(1).integers(4, size=(num_steps, B))
    env.reset()
    got: list[list[Any]] = [[] for _ in range(B)]  # of each environment, step by step
    for group in env.groups:
        env.send(actions[0, group])
    for _ in range(num_steps * len(env.groups)):
        *arrays, infos = env.recv()
        ids = infos["env_id"]
        for number, index in enumerate(ids):
            got[index].append([array[number] for array in (*arrays, infos["raw_reward"])])
        t = len(got[ids[0]])
        if t < num_steps:
            env.send(actions[t, ids])
    return [
        np.stack(each, axis=1) for each in zip(*(zip(*g, strict=True) for g in got), strict=True)
    ]


@pytest.mark.parametrize(
    ("mode", "play_it", "workers", "groups"),
    [
        ("NextStep", play_by_groups, 0, 1),
        ("SameStep", play, 0, 3),
        processes("NextStep", play_by_groups, 1, 2),
        slow_processes("SameStep", play, 2, 1),
        slow_processes("SameStep", play_by_groups, 2, 3),
        slow_processes("NextStep", play, 3, 2),
        slow_processes("NextStep", play_by_groups, 6, 1),
    ],
)
def test_same_seed_gives_the_same_for_all_numbers_of_workers_and_groups(
    mode: str, play_it: Any, workers: int, groups: int
) -> None:
    env = make(autoreset_mode=mode)
    expected = play(env, 30)
    env.close()
    assert expected[2].any() and expected[3].any()  # some episodes end, in either way
    env = make(autoreset_mode=mode, num_workers=workers, num_groups=groups)
    for a, b in zip(expected, play_it(env, 30), strict=True):
        assert np.array_equal(a, b)


def test_reset_with_a_seed_repeats_the_episodes() -> None:
    env = VectorEnv(CountingEnv, B, num_workers=0)
    first, second, other = play(env, 10, seed=3), play(env, 10, seed=3), play(env, 10, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_seeds_and_modes_are_told_as_gymnasium_does() -> None:
    env = VectorEnv("CartPole-v1", 3, num_workers=0)
    env.reset(seed=7)
    assert env.np_random_seed == (7, 8, 9) and len(env.np_random) == 3
    assert env.autoreset_mode is AutoresetMode.NEXT_STEP
    env.close()


def test_environments_in_this_process_are_made_at_once() -> None:
    """Functions made in a loop see the loop's values, as `SyncVectorEnv` and workers do."""
    envs = []
    for g in (1.0, 9.8):
        env = VectorEnv(lambda: gymnasium.make("Pendulum-v1", g=g), 2, num_workers=0)  # noqa: B023
        envs.append(env)
    assert [env.get_attr("g") for env in envs] == [(1.0, 1.0), (9.8, 9.8)]
    for env in envs:
        env.close()


def test_runs_without_a_seed_differ() -> None:
    envs = [make(seed=None) for _ in range(2)]
    first, second = [env.reset()[0] for env in envs]
    assert not np.array_equal(first, second)
    for env in envs:
        env.close()


def test_groups_come_back_in_the_order_they_were_sent(env: VectorEnv) -> None:
    assert env.groups == [slice(0, 3), slice(3, 6)]
    for _ in range(2):
        env.send([0, 0, 0])
    for expected in ([0, 1, 2], [3, 4, 5], [0, 1, 2]):
        observation, reward, terminated, truncated, infos = env.recv()
        assert infos["env_id"].tolist() == expected
        assert infos["_env_id"].all()
        arrays = (observation, reward, terminated, truncated, infos["raw_reward"])
        assert [len(array) for array in arrays] == [3] * 5
        env.send([0, 0, 0])


class WaitsOnOne(ToyEnv):
    """The action 1 waits for the file ``gate``."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def step(self, action: int, out: Any) -> Any:
        while action == 1 and not self.gate.exists():
            time.sleep(0.01)
        return super().step(action, out)


@pytest.mark.slow
@PROCESSES
@pytest.mark.parametrize("first_ready", [True, slow(False)])
def test_group_that_is_ready_first_is_received_first_where_that_is_asked_for(first_ready, tmp_path):
    make_one, gate = partial(WaitsOnOne, tmp_path / "gate"), tmp_path / "gate"
    env = VectorEnv(make_one, 4, num_workers=4, num_groups=2)
    env.reset()
    env.send([1, 1])
    env.send([0, 0])
    received = []
    for _ in range(3):
        if not first_ready:
            while env._pool._orders.owes(1, 1):  # type: ignore[union-attr]
                time.sleep(0.01)
            gate.touch()
        received.append(int(env.recv(first_ready=first_ready)[4]["env_id"][0]))
        env.send([0, 0])
    assert received == ([2, 2, 2] if first_ready else [0, 2, 0])
    gate.touch()


def test_reset_drops_what_was_sent_and_not_received(env: VectorEnv) -> None:
    env.send([0, 0, 0])
    with pytest.raises(SamplerError, match=r"some have been sent; call recv\(\) for these first"):
        env.reset(options={"reset_mask": np.array([False] * 5 + [True])})
    observation, _ = env.reset()
    assert (observation[:, 2] == 0).all()
    with pytest.raises(SamplerError, match=r"nothing has been sent; call send\(\) first"):
        env.recv()
    assert env.step([0] * B)[0].shape == (B, 3)


@PROCESSES
def test_returned_arrays_are_the_callers_own() -> None:
    env = make(num_workers=1, autoreset_mode="SameStep")
    kept, copies = [env.reset()[0]], []
    copies.append(kept[0].copy())
    for _ in range(9):
        *arrays, infos = env.step([1] * B)
        given = [*arrays, *(infos[key] for key in ("raw_reward", "episode_ended"))]
        given += [each for each in infos.get("final_obs", []) if each is not None]
        kept += given
        copies += [array.copy() for array in given]
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))
    kept[-1][...] = 0  # may be written to


@pytest.mark.parametrize("num_workers", [0, processes(1)])
def test_without_copies_observations_are_read_only_views_that_a_step_overwrites(num_workers):
    env = make(copy=False, num_workers=num_workers)
    first, _ = env.reset()
    before = first.copy()
    second, *_ = env.step([0] * B)
    assert np.shares_memory(first, second) and not np.array_equal(before, second)
    with pytest.raises(ValueError, match="read-only"):
        second[0] = 0


def test_atari_game_plays_as_configured() -> None:
    atari = AtariConfig(observation_size="84x84", frame_stack=2)
    env = VectorEnv("breakout", 2, num_workers=0, atari=atari)
    assert env.single_observation_space == gymnasium.spaces.Box(0, 255, (2, 84, 84), np.uint8)
    assert env.single_action_space == gymnasium.spaces.Discrete(4)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation) and observation.any()
    assert env.observation_space.contains(env.step([0, 1])[0])


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_gymnasium_wrappers_work_over_it(mode: AutoresetMode) -> None:
    env: Any = VectorEnv("CartPole-v1", 4, num_workers=0, autoreset_mode=mode)
    env = wrappers.RecordEpisodeStatistics(env)
    env = wrappers.NormalizeReward(wrappers.ClipReward(env, -1, 1))
    if mode is not AutoresetMode.SAME_STEP:  # which they do not take
        env = wrappers.DtypeObservation(env, np.float64)
    if mode is AutoresetMode.NEXT_STEP:  # the only one that it takes
        env = wrappers.NormalizeObservation(env)
    env = wrappers.DictInfoToList(env)
    env.reset(seed=0)
    lengths = []
    for _ in range(60):
        *_, terminated, truncated, infos = env.step(np.ones(4, np.int64))
        assert isinstance(infos, list) and len(infos) == 4
        lengths += [info["episode"]["l"] for info in infos if "episode" in info]
        done = np.asarray(terminated | truncated)
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})
    assert len(lengths) > 10 and all(8 <= length <= 11 for length in lengths)


ELSEWHERE = """
import os, select, signal, sys, sysconfig
import gymnasium, numpy as np, psutil, subprocess  # which have a form for each system
sysconfig.get_paths()
for module in ("fcntl", "resource"):
    sys.modules[module] = None
for name in ("eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open",
             "register_at_fork", "sched_getaffinity", "sched_setaffinity", "EFD_CLOEXEC"):
    delattr(os, name)
del select.epoll
sys.platform = "darwin"
from accel_rl.samplers import SamplerConfig, SamplerError, SerialSampler
from accel_rl.vector import VectorEnv
from toy_envs import ToyEnv
env = VectorEnv(ToyEnv, 4, num_workers=0, num_groups=2, seed=3)
env.reset()
for t in range(20):
    observation = env.step(np.arange(4) % 3)[0]
print(observation.tolist())
env.close()
with SerialSampler(ToyEnv, config=SamplerConfig(num_envs=2)) as sampler:
    print(sampler.collect(lambda step: [0, 0]).valid.all())
try:
    VectorEnv(ToyEnv, 4)
except SamplerError as error:
    print(error)
"""


@SLOW
@PROCESSES
def test_environments_in_this_process_need_nothing_that_only_linux_has() -> None:
    """Simulated: what Python lacks on macOS is taken away."""
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    with closing(VectorEnv(ToyEnv, 4, num_workers=0, seed=3)) as env:
        env.reset()
        for _ in range(20):
            observation = env.step(np.arange(4) % 3)[0]
    printed = done.stdout.splitlines()
    assert printed[:2] == [str(observation.tolist()), "True"]
    assert "need Linux, and this is darwin" in printed[2] and "num_workers=0" in printed[2]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ({"autoreset_mode": "Sometimes"}, "autoreset_mode is 'Sometimes'; .* 'NextStep', 'SameSte"),
        ({"num_envs": 9, "num_groups": 2}, "num_envs=9 .*num_groups=2"),
        ({"affinity": "rotate"}, "affinity is 'rotate'; .*auto or off"),
        ({"num_workers": 9}, "num_workers is 9; .*num_envs=6.* at most 6"),
        ({"cpus": [4095]}, r"cpus=\[4095\] .*not available"),
        ({"env": "breakoot"}, "env=breakoot .*breakout"),
        ({"env": 5}, "env is 5; .*a name or a function"),
        ({"env": lambda: 5}, "is a int; .*a gymnasium.Env"),
        ({"env": "catch", "atari": AtariConfig()}, "atari .*'catch'"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], tokens: str) -> None:
    with pytest.raises(ValueError, match=tokens):
        VectorEnv(**{"env": ToyEnv, "num_envs": B, **arguments})


def reset(**arguments: Any) -> Any:
    return lambda env: env.reset(**arguments)


def masked(mask: Any) -> Any:
    return reset(options={"reset_mask": mask})


@pytest.mark.parametrize(
    ("use", "tokens"),
    [
        (lambda env: env.step([0] * 5), r"shape \(5,\) for 6 observations"),
        (lambda env: env.step(np.zeros((6, 1), int)), r"shape \(6, 1\)"),
        (lambda env: env.step([0.0] * 6), "float64; .*integers"),
        (lambda env: env.step([0, 1, 2, 3, 4, 0]), r"action 4; .*0 \.\. 3"),
        (lambda env: env.step([0, 1, 2, 3, -1, 0]), r"action -1; .*0 \.\. 3"),
        (reset(seed=[1, 2]), "seed .*2 numbers .*num_envs=6"),
        (reset(seed=-1), "seed .*-1"),
        (reset(seed=2**63 - 3), "seed has 9223372036854775808"),
        (reset(options={"level": 3}), r"options .*\['level'\].*toy"),
        (masked(np.ones(5, bool)), r"reset_mask .*shape \(5,\)"),
        (masked(np.ones(6)), "reset_mask is float64"),
        (masked(np.zeros(6, bool)), "reset_mask .*True somewhere"),
    ],
)
def test_wrong_actions_and_resets_are_refused_and_the_next_step_works(env, use, tokens) -> None:
    with pytest.raises(ValueError, match=tokens):
        use(env)
    assert (env.step([0] * B)[0][:, 2] <= 1).all()


def test_use_out_of_turn_is_an_error() -> None:
    env = make(num_groups=2)
    for act in (lambda: env.step([0] * B), lambda: env.send([0] * 3)):
        with pytest.raises(SamplerError, match=r"has not been reset; call reset\(\) first"):
            act()
    with pytest.raises(ValueError, match="the first reset must take all"):
        env.reset(options={"reset_mask": np.array([True, False] * 3)})
    env.reset()
    env.send([0] * 3)
    with pytest.raises(
        SamplerError, match=r"step\(\) concerns all groups.* call recv\(\) for these"
    ):
        env.step([0] * B)
    env.send([0] * 3)
    with pytest.raises(SamplerError, match=r"all groups have been sent; call recv\(\) first"):
        env.send([0] * 3)
    env.close()
    env.close()
    for act in (env.reset, env.recv, lambda: env.step([0] * B), lambda: env.send([0] * 3)):
        with pytest.raises(SamplerError, match="this vector environment is closed"):
            act()


def test_actions_are_those_of_the_space_also_where_it_does_not_start_at_0() -> None:
    theirs = gymnasium.vector.SyncVectorEnv([EchoEnv] * 2)
    with closing(VectorEnv(EchoEnv, 2, num_groups=2, num_workers=0)) as env:
        assert env.single_action_space == theirs.single_action_space
        assert env.action_space == theirs.action_space
        env.reset(), theirs.reset()
        for ours, others in zip(env.step([2, 4])[:2], theirs.step([2, 4])[:2], strict=True):
            np.testing.assert_array_equal(ours, others)
        env.send(np.array([3], np.uint8))
        assert env.recv()[1] == [3.0]
        with pytest.raises(ValueError, match=r"got the action 1; actions must be in 2 \.\. 4"):
            env.step([1, 2])
