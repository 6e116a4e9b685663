"""The policy of a saved run, as an agent and as a function for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from accel_rl.agents import Agent, RecurrentStates, set_normalizer
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec, make_env_factory, probe_spec
from accel_rl.envs.clipped import clip
from accel_rl.options import check_kind, check_seed
from accel_rl.parallel.flat import FlatParameters
from accel_rl.runs.checkpoint import load_checkpoint, taking_from
from accel_rl.runs.saved import PACKAGED_WEIGHTS, find_policy, read_trusted_config
from accel_rl.samplers import PolicyInput
from accel_rl.samplers.base import noise_shape
from accel_rl.spaces import (
    Leaf,
    leaves_of,
    map_leaves,
    tensor_views,
    to_array,
    views,
    write_values,
    zeros,
)
from accel_rl.tools.output import OutputOptions
from accel_rl.tools.weights import unpack_weights
from accel_rl.training.build import agent_of
from accel_rl.training.devices import pick_device
from accel_rl.training.torch_setup import own_torch_state

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(OutputOptions):
    """Options of all commands on one saved run."""

    checkpoint: int | str | None = None
    """Number of steps at which the checkpoint was saved.
    best: the policy of the best evaluation. none: the last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ActingOptions(PolicyOptions):
    """Options of the commands that play games."""

    seed: int = 0
    """Seed of games and actions, combined with the run's own seed. Another seed plays others."""
    greedy: bool = False
    """Take the most probable action, or in Q-learning the action of the largest value.
    false: draw actions as in training; in Q-learning with epsilon_evaluation, as in the papers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the network. auto: the GPU if there is one."""


class OpenedRun(NamedTuple):
    """A saved run and its policy after ``steps`` steps, which is in ``checkpoint``."""

    config: TrainConfig
    spec: EnvSpec
    agent: Agent
    steps: int
    checkpoint: Path


class SavedPolicy:
    """The policy of a saved run, as a function. Use `load_policy` to make it.

    Attributes:
        env_spec: spec of the environment in which it was trained.
        agent: the agent; ``agent.model`` is the network.
    """

    def __init__(
        self, agent: Agent, env_spec: EnvSpec, device: torch.device, rng: np.random.Generator
    ) -> None:
        self.env_spec = env_spec
        self._unbounded = map_leaves(_without_bounds, env_spec.observation)
        self.agent = agent
        self.num_noise = agent.num_noise
        self._states: RecurrentStates | None = None
        self._num_begun = 0  # places at which calls without a sampler have begun an episode
        self._device = device
        self._rng = rng

    def __call__(
        self,
        step: Any,
        is_first: NDArray[np.bool_] | None = None,
        reward: NDArray[Any] | None = None,
    ) -> Any:
        """Choose actions.

        Args:
            step: one observation or a batch ``[n, ...]``, as arrays, lists or tensors of any dtype
                that holds their values, or a `PolicyInput` from a sampler. Observations of a
                mapping are a mapping of these.
            is_first: ``[n]`` bool, True where an observation is the first of its episode. Only a
                policy with a memory needs it, and only without a sampler. It keeps a state for each
                place in the batch.
            reward: ``[n]``, rewards of the previous step, for a policy with
                previous_action_reward=true.

        Returns:
            Actions ``[n, ...]``, or one action for one observation. Actions of a mapping are a
            mapping of arrays. A single integer is counted from 0, even if the action space has
            another start. Floats are within their bounds.

        Raises:
            ValueError: observations have another shape or dtype than the environment's, or a policy
                with a memory lacks ``is_first`` or ``reward``.
        """
        given = step.observation if isinstance(step, PolicyInput) else step
        observation, is_one = self._checked(given)
        n = len(observation)
        if n == 0:  # networks know no shape of nothing
            return views(self.env_spec.action, zeros(self.env_spec.action, 0))
        if isinstance(step, PolicyInput):
            noise, env_slice, is_first = step.noise, step.env_slice, step.is_first
            reward = step.reward
        else:
            is_first = self._told(is_first, n)
            reward = self._told_reward(reward, is_first)
            noise = self._rng.random(noise_shape((n,), self.num_noise))
            env_slice = slice(0, n)
        tensors = tensor_views(self.env_spec.observation, observation)
        observed = map_leaves(lambda each: each.to(self._device), tensors)
        drawn = torch.from_numpy(noise).to(self._device)
        if self.agent.remembers:
            states = self._states_of(env_slice.stop)
            begun = torch.from_numpy(is_first).to(self._device)
            last = torch.from_numpy(reward).to(self._device) if states.needs_reward else None
            action = states.act(observed, drawn, 0, env_slice, begun, last)
        else:
            action = self.agent.act(observed, drawn, slice(0, n))
        arrays = map_leaves(lambda each: each.cpu().numpy(), action)
        clipped = map_leaves(clip, self.env_spec.action, arrays)
        return map_leaves(lambda each: each[0], clipped) if is_one else clipped

    def _states_of(self, num_envs: int) -> RecurrentStates:
        """Return the recurrent states of ``num_envs`` environments or more."""
        states = self._states
        if states is None or states.num_envs < num_envs:
            self._states = RecurrentStates(self.agent, 1, num_envs, self._device)
            if states is not None:
                self._states.set_state(states.get_state())
            return self._states
        return states

    def _told(self, is_first: NDArray[np.bool_] | None, n: int) -> NDArray[np.bool_]:
        """Return a copy of ``is_first``, which must be True at each new place."""
        if not self.agent.remembers:
            return np.zeros(n, np.bool_)
        given = np.array(is_first, ndmin=1)
        if given.shape != (n,) or given.dtype != np.bool_:
            raise ValueError(
                f"the policy of {self.env_spec.name} has a memory and must be told where episodes "
                f"begin: give is_first, [{n}] bool, True where an observation is the first of one"
            )
        new = given[self._num_begun :]
        if not new.all():
            place = self._num_begun + int(new.argmin())
            raise ValueError(
                f"is_first[{place}] is False in the first call with an observation at that place; "
                f"it must be True with the first observation of each episode, as after a reset"
            )
        self._num_begun = max(self._num_begun, n)
        return given

    def _told_reward(
        self, reward: NDArray[Any] | None, is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Return a copy of ``reward``, or zeros if the policy needs no reward."""
        n = len(is_first)
        is_asked = self.agent.remembers and self.agent.model.previous is not None
        if not is_asked or (reward is None and is_first.all()):
            return np.zeros(n, np.float32)
        given = np.array(np.nan if reward is None else reward, np.float32, ndmin=1)
        if given.shape != (n,) or not np.isfinite(given).all():
            raise ValueError(
                f"the policy of {self.env_spec.name} was trained with previous_action_reward=true "
                f"and must be told rewards: give reward, [{n}] numbers, of the step before each "
                f"observation"
            )
        return given

    def _checked(self, given: Any) -> tuple[NDArray[Any], bool]:
        """Return a copy of ``given`` as ``[n, ...]``, and whether it is a single observation."""
        space = self.env_spec.observation
        (path, leaf), *_ = leaves_of(space)
        try:
            array = to_array(_follow(given, path), "observation")
            is_one = array.shape == leaf.shape
            is_batch = array.ndim > 0 and array.shape[1:] == leaf.shape
        except (IndexError, KeyError, TypeError):
            array, is_one, is_batch = np.zeros(1), False, True  # `write_values` says what is wrong
        if not is_one and not is_batch:
            name = "".join(f"[{each!r}]" for each in path)
            shape = ", ".join(map(str, leaf.shape))
            raise ValueError(
                f"got observations{name} of shape {list(array.shape)}; the policy of "
                f"{self.env_spec.name} takes one of shape [{shape}], or a batch with an axis before"
            )
        out = zeros(self._unbounded, 1 if is_one else len(array))
        write_values(self._unbounded, _batch_of_one(given) if is_one else given, out, "observation")
        return out, is_one


def _without_bounds(leaf: Leaf) -> Leaf:
    return Leaf(leaf.shape, leaf.dtype) if leaf.dtype.kind == "f" else leaf


def _follow(given: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        given = given[int(name)] if isinstance(given, tuple) else given[name]
    return given


def _batch_of_one(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _batch_of_one(each) for name, each in given.items()}
    if isinstance(given, tuple):
        return tuple(map(_batch_of_one, given))
    return to_array(given, "observation")[None]


def load_policy(
    run_dir: str | Path,
    checkpoint: int | str | None = None,
    *,
    greedy: bool = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    trust: bool = False,
) -> SavedPolicy:
    """Return the policy of a saved run as a function.

    Args:
        run_dir: directory of the run, or of a package that `accel_rl.tools.package.package_run`
            made of it.
        checkpoint: number of steps at which a checkpoint was saved; "best" for the policy of the
            best evaluation; None for the last checkpoint.
        greedy: True: take the most probable action, or the action of the largest value. False: act
            as in evaluations.
        seed: seed of the actions for arrays of observations.
        device: device of the network.
        trust: import code that the run's options name (``module:function``) even if another person
            made the run.

    Raises:
        ValueError: the run or checkpoint does not exist or cannot be read; it names code and is not
            signed with this user's key; its environment cannot be made here; an argument is
            invalid; or torch's default dtype or device was changed.
    """
    check_kind(int | str | None, checkpoint=checkpoint)
    check_kind(bool, greedy=greedy, trust=trust)
    check_seed(seed)
    where = pick_device(device)
    run = open_run(run_dir, checkpoint, where, greedy=greedy, trust=trust)
    return SavedPolicy(run.agent, run.spec, where, np.random.default_rng(seed))


def open_run(
    run_dir: str | Path,
    checkpoint: int | str | None,
    device: torch.device = _CPU,
    *,
    greedy: bool = False,
    trust: bool = False,
) -> OpenedRun:
    """Return the config, environment and policy of a saved run, as `load_policy` does."""
    config = read_trusted_config(run_dir, trust=trust)
    path = find_policy(Path(run_dir), checkpoint)
    spec = probe_spec(make_env_factory(config.env, config.atari, config.info_keys))
    agent, steps = load_agent(path, config, spec, device, greedy=greedy)
    return OpenedRun(config, spec, agent, steps, path)


def load_agent(
    checkpoint: Path,
    config: TrainConfig,
    spec: EnvSpec,
    device: torch.device,
    *,
    greedy: bool = False,
    env_index: int = 0,
) -> tuple[Agent, int]:
    """Return the agent in a checkpoint or in a package's weights, and its number of steps.

    The agent acts as in evaluations, or greedily. ``env_index``: as in
    `accel_rl.training.build.agent_of`.
    """
    with own_torch_state():
        agent = config.learner.evaluating(agent_of(config, spec, device, env_index=env_index))
    is_packaged = checkpoint.name == PACKAGED_WEIGHTS
    state = unpack_weights(checkpoint, agent.model) if is_packaged else load_checkpoint(checkpoint)
    flat = FlatParameters(agent.model)
    with taking_from(checkpoint):
        flat.from_named_(flat.parameter, state["learner"]["parameters"])
        set_normalizer(agent, state, device)
        steps = int(state["counts"]["steps"])
    return agent.greedy() if greedy else agent, steps
