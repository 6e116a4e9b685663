"""Every space through both samplers: parallel equals serial, and it is what was played."""

import functools
import mmap
from functools import partial
from typing import Any

import numpy as np
import pytest
from batches import LoopBatch
from sampler_cases import assert_same_rollouts
from space_envs import PAIRS, MaskedEnv, SpaceEnv
from tiers import PROCESSES, processes, slow, slow_processes

from accel_rl.envs import Batched, EnvError, EnvSpec, StepResult, make_env_factory
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.samplers import (
    ParallelSampler,
    PolicyInput,
    SamplerConfig,
    SamplerError,
    SerialSampler,
)
from accel_rl.spaces import Leaf, discrete, random_values, views, zeros
from accel_rl.system.states import decode_state, encode_state

T, B = 9, 6


def config(reset_policy: Any = "immediate", **options: Any) -> SamplerConfig:
    more = {"num_groups": 2, "num_workers": 2, "decorrelation_steps": 6, **options}
    return SamplerConfig(num_envs=B, horizon=T, reset_policy=reset_policy, **more)


def random_policy(space: Any, step: PolicyInput) -> Any:
    """Actions that follow from the noise alone, allowed ones where there is a mask."""
    out = zeros(space, len(step.noise))
    names = step.observation.dtype.names or ()
    for i, noise in enumerate(step.noise):
        rng = np.random.default_rng(int(noise * 2**53))
        mask = step.observation["action_mask"][i : i + 1] if "action_mask" in names else None
        if mask is not None and not np.frombuffer(mask.tobytes(), np.uint8).any():
            mask = None  # it waits for its reset
        out[i] = random_values(space, rng, 1, mask)[0]
    return out


def as_mapping(policy: Any, space: Any, step: PolicyInput) -> Any:
    """The same as a mapping of arrays, of lists in it."""
    return views(space, policy(step))


@functools.cache
def spec_of(name: str) -> EnvSpec:
    return GymnasiumEnv(partial(SpaceEnv, name), name).spec


@pytest.mark.slow
@PROCESSES
@pytest.mark.parametrize(
    ("name", "reset_policy"),
    [
        ("dict", "immediate"),
        slow("box", "wait"),
        slow("tuple", "wait"),
        slow("discrete", "immediate"),
    ],
)
def test_parallel_equals_serial_and_goes_on_from_a_state(name: str, reset_policy: str) -> None:
    factory = make_env_factory(partial(SpaceEnv, name))
    options = config(reset_policy, num_workers=1)
    policy = partial(random_policy, spec_of(name).action)
    mapped = partial(as_mapping, policy, spec_of(name).action)
    with SerialSampler(factory, config=options, seed=3) as serial:
        with ParallelSampler(factory, config=options, seed=3) as parallel:
            for _ in range(4):
                one, other = serial.collect(policy), parallel.collect(mapped)
                assert_same_rollouts(one, other)
                assert one.truncated.any()
            states = [
                decode_state(encode_state(s.get_state()._asdict())) for s in (serial, parallel)
            ]
            assert states[0]["observation"].dtype == one.observation.dtype
            assert np.array_equal(states[0]["observation"], states[1]["observation"])
            state = parallel.get_state()
            expected = serial.collect(policy)
            resumed = SerialSampler(factory, config=options, seed=3)
            resumed.start(state)
            assert_same_rollouts(expected, resumed.collect(policy))
            resumed.close()


@pytest.mark.parametrize("name", PAIRS)
def test_rollout_is_what_was_played(name: str) -> None:
    """One environment, played by hand with the rollout's own actions."""
    factory, space = make_env_factory(partial(SpaceEnv, name)), spec_of(name).action
    options = SamplerConfig(num_envs=1, horizon=20, num_groups=1)
    played = GymnasiumEnv(partial(SpaceEnv, name), name)
    out = zeros(played.spec.observation)
    with SerialSampler(factory, config=options, seed=5) as sampler:
        rollout = sampler.collect(partial(random_policy, space))
    played.seed(np.random.SeedSequence(5, spawn_key=(0, 0, 0)).spawn(2)[0])
    played.reset(out)
    for t in range(20):
        assert rollout.observation[t, 0].tobytes() == out.tobytes()
        action = rollout.action[t, 0]
        result = played.step(int(action) if name == "discrete" else action, out)
        assert rollout.reward[t, 0] == np.float32(result.reward)
        if result.episode_ended:
            if result.truncated:
                (slot,) = np.flatnonzero(rollout.final_step[:, 0] == t)
                assert rollout.final_observation[slot, 0].tobytes() == out.tobytes()
            played.reset(out)


# ---- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "in_info", "reset_policy", "kind"),
    [
        ("discrete", True, "wait", SerialSampler),
        ("multi-discrete", False, "wait", SerialSampler),
        ("dict", True, "immediate", SerialSampler),
        ("dict", False, "wait", SerialSampler),
        processes("multi-discrete", True, "immediate", ParallelSampler),
        slow_processes("dict", False, "wait", ParallelSampler),
    ],
)
def test_masks_are_obeyed_in_random_steps_and_by_a_policy(
    name: str, in_info: bool, reset_policy: str, kind: Any, monkeypatch: Any
) -> None:
    keys = ["action_mask"] if in_info else []
    factory = make_env_factory(partial(MaskedEnv, name, in_info), info_keys=keys)
    monkeypatch.setattr(MaskedEnv, "illegal", 0)
    space = GymnasiumEnv(partial(MaskedEnv, name, in_info), name, keys).spec.action
    policy = partial(random_policy, space)
    options = config(reset_policy, decorrelation_steps=8, num_workers=1)
    with SerialSampler(factory, config=options, seed=1) as serial:
        with kind(factory, config=options, seed=1) as other:
            for _ in range(3):
                rollout = serial.collect(policy)
                assert_same_rollouts(rollout, other.collect(policy))
    assert rollout.valid.sum() > 0 and MaskedEnv.illegal == 0


@pytest.mark.parametrize("autoreset", ["disabled", "next_step", "same_step"])
def test_masks_are_obeyed_in_batches(autoreset: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(MaskedEnv, "illegal", 0)

    def make(n: int) -> LoopBatch:
        return LoopBatch(n, make_env_factory(partial(MaskedEnv, "discrete")), autoreset)

    policy = partial(random_policy, discrete(6))
    with SerialSampler(Batched(make), config=config(decorrelation_steps=20), seed=1) as sampler:
        for _ in range(4):
            assert sampler.collect(policy).episode_ended.any()
    assert MaskedEnv.illegal == 0


@pytest.mark.parametrize("autoreset", ["disabled", "next_step", "same_step"])
def test_mask_of_a_batch_that_allows_nothing_is_one_error(autoreset: str) -> None:
    def make(n: int) -> LoopBatch:
        return LoopBatch(n, partial(ClosedEnv, 2), autoreset)

    with SerialSampler(Batched(make), config=config(decorrelation_steps=0)) as sampler:
        with pytest.raises(SamplerError, match=r"environment 0: its action_mask allows no action"):
            sampler.collect(lambda step: np.zeros(len(step.noise), int))


class ClosedEnv:
    """Allows nothing after ``num_steps`` steps; at the end of an episode it may."""

    def __init__(self, num_steps: int, mask: int = 4) -> None:
        self.num_steps = num_steps
        parts = {"place": Leaf((), np.float32), "action_mask": Leaf((mask,), np.bool_)}
        self.spec = EnvSpec(name="closed", observation=parts, action=discrete(4))

    def seed(self, seed: Any) -> None:
        pass

    def reset(self, out: Any) -> None:
        self.t = 0
        self.write(out)

    def step(self, action: Any, out: Any) -> StepResult:
        self.t += 1
        self.write(out)
        ended = self.t == 3
        return StepResult(0.0, 0.0, ended, False, ended)

    def write(self, out: Any) -> None:
        out["place"] = self.t
        out["action_mask"][:] = self.t < self.num_steps

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "decorrelation_steps", "num_steps"),
    [
        (SerialSampler, 0, 0),
        (SerialSampler, 50, 2),
        (SerialSampler, 0, 2),
        processes(ParallelSampler, 0, 2),
        slow_processes(ParallelSampler, 50, 0),
    ],
)
def test_mask_that_allows_nothing_is_an_error_that_names_the_environment(
    kind: Any, decorrelation_steps: int, num_steps: int
) -> None:
    options = config(num_workers=1, decorrelation_steps=decorrelation_steps)
    with pytest.raises(RuntimeError, match=r"environment \d \(closed\): its action_mask allows no"):
        with kind(partial(ClosedEnv, num_steps), config=options) as sampler:
            sampler.collect(lambda step: np.zeros(len(step.noise), int))


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_mask_may_allow_nothing_where_an_episode_has_ended(reset_policy: str) -> None:
    with SerialSampler(partial(ClosedEnv, 3), config=config(reset_policy)) as sampler:
        for _ in range(2):
            rollout = sampler.collect(lambda step: np.zeros(len(step.noise), int))
    assert rollout.terminated.any()


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
def test_mask_of_another_shape_is_refused_by_the_name_of_the_environment(kind: Any) -> None:
    message = r"EnvSpec of closed: action_mask is bool of shape \[3\].*bool of shape \[4\]"
    with pytest.raises(ValueError, match=message):
        kind(partial(ClosedEnv, 9, mask=3), config=config())


def test_mask_in_info_is_needed_in_each_step_and_of_its_shape() -> None:
    env = MaskedEnv("discrete", in_info=True)
    ours = GymnasiumEnv(lambda: env, "masked", ["action_mask"])
    out = zeros(ours.spec.observation)
    for told_, message in (({}, "without action_mask"), ({"action_mask": [True]}, r"shape \(6,\)")):
        env.tell = lambda told_=told_: told_  # type: ignore[method-assign]
        with pytest.raises(EnvError, match=f"masked returned .*{message}"):
            ours.reset(out)


# ---- bad actions, infos --------------------------------------------------------------------------

BAD = [
    ("discrete", np.zeros(B - 1, int), r"shape \(5,\) for 6 observations"),
    ("discrete", np.zeros((B, 1), int), r"shape \(6, 1\)"),
    ("discrete", np.zeros(B), "dtype float64; .*integers"),
    ("discrete", np.full(B, 3), r"action 3; .*0 \.\. 2"),
    ("discrete", np.full(B, -1), r"action -1; .*0 \.\. 2"),
    ("box", np.full((B, 2, 2), 2.5), r"the action 2.5 at \[0, 0\]; it must be at most 2.0: clip"),
    ("box", np.full((B, 2, 2), np.nan), "the action nan; it must be finite"),
    ("box", np.zeros((B, 4)), r"actions of shape \(6, 4\) .* shape \(6, 2, 2\)"),
    ("box", np.full((B, 2, 2), "a"), "actions of dtype <U1"),
    ("multi-discrete", np.zeros((B, 2, 2), int), r"the action 0 at \[0, 1\]; .* at least 1"),
    ("multi-discrete", np.zeros((B, 2, 2)), "actions of dtype float64; .* integers"),
    ("multi-binary", np.full((B, 5), 2), "the action 2 at .* at most 1"),
    ("integers", np.full((B, 3), 256), "the action 256 at .* at most 255"),
    ("dict", {"gear": np.zeros(B, int)}, r"they must be a mapping with the keys \['gas', 'gear'\]"),
    ("dict", np.zeros(B), r"they must be a mapping with the keys \['gas', 'gear'\]"),
    (
        "dict",
        {"gear": np.full(B, 2), "gas": np.zeros((B, 2))},
        r"the action\['gear'\] 2; .* -1 .. 1",
    ),
    (
        "dict",
        {"gear": np.zeros(B, int), "gas": np.full((B, 2), 2.0)},
        r"the action\['gas'\] 2.0 at \[0\]; .* at most 1.0",
    ),
    (
        "tuple",
        (np.zeros((B, 2), int), {"deep": np.full(B, 4)}),
        r"the action\['1'\]\['deep'\] 4; .* 0 .. 3",
    ),
]


@pytest.mark.parametrize(("name", "actions", "message"), BAD)
def test_action_that_is_not_in_the_space_is_one_error(name, actions, message) -> None:
    options = config(num_groups=1, decorrelation_steps=0)
    with SerialSampler(make_env_factory(partial(SpaceEnv, name)), config=options) as sampler:
        with pytest.raises(ValueError, match=message):
            sampler.collect(lambda step: actions)


def pages(array: np.ndarray) -> set[int]:
    first, size = array.ctypes.data, mmap.PAGESIZE
    return set(range(first // size, (first + array.nbytes - 1) // size + 1))


def test_observations_of_serial_samplers_are_on_pages_of_their_own() -> None:
    """A GPU registers whole pages, each once, and evaluations have a sampler beside training's."""
    samplers = [SerialSampler(make_env_factory("catch"), config=config()) for _ in range(4)]
    for sampler in samplers:
        sampler.start()
    observations = [sampler.rollout.observation for sampler in samplers]
    others = [getattr(each.rollout, name) for each in samplers for name in ("action", "reward")]
    assert all(each.ctypes.data % mmap.PAGESIZE == 0 for each in observations)
    taken = set.union(*map(pages, observations))
    assert len(taken) == sum(len(pages(each)) for each in observations)
    assert not taken & set.union(*map(pages, others))
    for sampler in samplers:
        sampler.close()
