"""The replay of observations and actions of every space, against a list that keeps all steps."""

import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from replay_worlds import everything
from space_envs import PAIRS, MaskedEnv, SpaceEnv
from tiers import first_quick
from torch import Tensor

from accel_rl.agents import Agent, RolloutTensors
from accel_rl.algos.replay import Priorities, Replay, ReplaySpec
from accel_rl.envs import EnvSpec, make_env_factory
from accel_rl.rollout import Rollout
from accel_rl.runs.checkpoint import load_checkpoint, save_checkpoint
from accel_rl.samplers import ActionServer, SamplerConfig, SerialSampler
from accel_rl.spaces import Leaf, as_bytes, map_leaves, random_values, tensor_views

CPU = torch.device("cpu")
T, B, SLOTS, GAMMA = 5, 3, 23, 0.9
NAMES = [*PAIRS, "masked"]


class Anything(Agent):
    """An agent that takes random actions of a space, whatever it sees."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.spec, self.rng = spec, np.random.default_rng(seed)

    def act(self, observation: Any, noise: Tensor, env_slice: slice, memory: Any = None) -> Any:
        mask = None
        if self.spec.mask is not None:
            mask = observation["action_mask"].numpy()
            mask = mask | ~mask.any(1, keepdims=True)
        values = random_values(self.spec.action, self.rng, len(noise), mask)
        return tensor_views(self.spec.action, values)


class Step(NamedTuple):
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    final: Any


class Played:
    """A sampler of one of the spaces, and the list of the steps of each environment."""

    def __init__(self, name: str, reset_policy: Any = "immediate") -> None:
        env = partial(MaskedEnv, "discrete") if name == "masked" else partial(SpaceEnv, name)
        config = SamplerConfig(num_envs=B, horizon=T, num_groups=1, reset_policy=reset_policy)
        self.sampler = SerialSampler(make_env_factory(env), config=config, seed=3)
        self.spec = self.sampler.env_spec
        agent: Any = Anything(self.spec, seed=1)
        self.server = ActionServer(agent, self.sampler, CPU)
        self.steps: list[list[Step]] = [[] for _ in range(B)]
        self.last: Any = None

    def rollout(self) -> RolloutTensors:
        rollout = self.sampler.collect(self.server)
        for b in range(B):
            self.steps[b] += [self._step(rollout, t, b) for t in range(T)]
        self.last = rollout.observation[T].copy()
        return self.server.finish()

    def _step(self, rollout: Rollout, t: int, b: int) -> Step:
        slots = np.flatnonzero(rollout.final_step[:, b] == t)
        results = (
            getattr(rollout, each)[t, b].item()
            for each in ("reward", "terminated", "truncated", "valid")
        )
        final = rollout.final_observation[slots[0], b].copy() if len(slots) else None
        return Step(
            rollout.observation[t, b].copy(), rollout.action[t, b].copy(), *results, final=final
        )

    def replay(self, n_step: int = 1, **options: Any) -> Replay:
        spec = ReplaySpec(
            size=SLOTS * B,
            num_envs=B,
            horizon=T,
            observation=self.spec.observation,
            action=self.spec.action,
            n_step=n_step,
            gamma=GAMMA,
        )
        return Replay(spec, CPU, **options)

    def transition(self, s: int, b: int, n: int) -> tuple[float, float, Any]:
        """Return, discount and next observation of step ``s``, by the definition."""
        steps, total = self.steps[b], 0.0
        for k in range(n):
            step = steps[s + k]
            total += GAMMA**k * step.reward
            if step.terminated:
                return total, 0.0, None
            if step.truncated:
                return total, GAMMA ** (k + 1), step.final
        following = steps[s + n].observation if s + n < len(steps) else self.last[b]
        return total, GAMMA**n, following


def assert_row(space: Any, tensors: Any, i: int, value: NDArray[Any]) -> None:
    """Row ``i`` of the tensors is ``value`` of the space, in dtype, shape and bits."""
    if not isinstance(space, Leaf):
        assert tensors.keys() == space.keys()
        for name, each in space.items():
            assert_row(each, tensors[name], i, value[name])
        return
    found = tensors[i].numpy()
    assert (found.dtype, found.shape) == (space.dtype, space.shape)
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("name", "n", "reset_policy"),
    first_quick(
        [(name, 3 - i % 2 * 2, ("wait", "immediate")[i // 2 % 2]) for i, name in enumerate(NAMES)],
        3,
    ),
)
def test_every_transition_of_every_space_is_that_of_the_list(
    name: str, n: int, reset_policy: str
) -> None:
    """Through two ends of the ring."""
    played = Played(name, reset_policy)
    replay = played.replay(n)
    priorities = Priorities(replay, alpha=1.0, default=1.0)
    num_valid = num_finals = 0
    with played.sampler, played.server:
        for _ in range(12):
            replay.append(played.rollout())
            priorities.follow()
            batch = replay.gather(*everything(replay))
            for i, (s, b) in enumerate(zip(batch.step.tolist(), batch.env.tolist(), strict=True)):
                step = played.steps[b][s]
                assert batch.valid[i].item() == step.valid
                if not step.valid:
                    continue
                return_, discount, following = played.transition(s, b, n)
                assert_row(played.spec.observation, batch.observation, i, step.observation)
                assert_row(played.spec.action, batch.action, i, step.action)
                assert batch.reward[i].item() == pytest.approx(return_, rel=1e-5)
                assert batch.discount[i].item() == pytest.approx(discount)
                if following is not None:
                    assert_row(played.spec.observation, batch.next_observation, i, following)
                num_valid += 1
                num_finals += step.final is not None
            step, env, probability = priorities.draw(40, torch.Generator().manual_seed(0))
            if replay.can_be_drawn:
                assert replay.gather(step, env).valid.all() and (probability > 0).all()
    assert num_valid > 200 and num_finals > 10


@pytest.mark.parametrize("name", ["box", "dict", "masked"])
def test_replay_goes_on_from_a_checkpoint_of_it_to_the_bit(name: str, tmp_path: Any) -> None:
    played = Played(name)
    replay, other = played.replay(), played.replay()
    with played.sampler, played.server:
        for _ in range(7):
            replay.append(played.rollout())
        path = save_checkpoint(tmp_path, 1, {"replay": replay.get_state()})
        other.set_state(load_checkpoint(path)["replay"])
        for _ in range(3):
            batch = played.rollout()
            for each in (replay, other):
                each.append(batch)
            drawn = (each.gather(*everything(each)) for each in (replay, other))
            for one, two in zip(*drawn, strict=True):
                map_leaves(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), one, two)


def test_environment_that_was_replaced_is_noticed_by_any_leaf() -> None:
    played = Played("dict")
    with played.sampler, played.server:
        batch = copy.deepcopy(played.rollout())
    nothing = torch.zeros(T, B, dtype=torch.bool)
    begun = map_leaves(lambda rows: rows[[T, *range(1, T + 1)]], batch.observation)
    batch = batch._replace(terminated=nothing, truncated=nothing, valid=~nothing).without_finals()
    same = batch._replace(observation=begun)
    for changed, expected in ((None, []), ("camera", [1]), ("on", [1])):
        replay, following = played.replay(), copy.deepcopy(same)
        replay.append(batch)
        if changed is not None:
            place: Any = following.observation
            leaf = place["camera"] if changed == "camera" else place["body"]["on"]
            leaf[0, 1] += 1
        replay.append(following)
        replay.append(following)
        valid = replay.gather(*everything(replay)).valid.view(-1, B)[T - 1]
        assert torch.nonzero(~valid).flatten().tolist() == expected


def test_bytes_are_those_of_the_leaves_without_padding() -> None:
    played = Played("dict")
    with played.sampler, played.server:
        replay = played.replay()
    frame, action = 75 + 3 * 8 + 8 + 3 + 4, 8 + 2 * 8
    results = 4 + 3 + 1 + 8  # a float, three booleans, a byte and an int64
    steps = SLOTS * B
    assert replay.spec.nbytes == steps * (frame + action + results) + steps * frame
    assert frame < as_bytes(np.zeros(1, played.sampler.rollout.observation.dtype)).shape[-1]
