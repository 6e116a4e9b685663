"""The state of a sampler between two rollouts, with which another goes on exactly where it was."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.begins import Begins
from accel_rl.samplers.episodes import EpisodeTracker
from accel_rl.samplers.stepping import Carry, EnvStates


class SamplerState(NamedTuple):
    """``environments``: ``[B]``, each one's state as bytes, or None where it cannot tell.

    ``observation``: ``[B, ...]``, row 0 of the next rollout. ``noise``: state of the generator of
    action noise. ``episode_sums``: ``[3, B]`` and ``is_skipped``: ``[B]``, of the running episodes.
    ``generation``: raised with each start from a state and each replaced worker, so that
    environments that start anew never repeat random numbers. ``begins``: ``[B]``, True where row 0
    of the next rollout is the first of an episode; None in states of before there was such a thing.
    """

    environments: list[bytes | None]
    observation: NDArray[Any]
    noise: dict[str, Any]
    episode_sums: NDArray[np.float64]
    is_skipped: NDArray[np.bool_]
    generation: int
    begins: NDArray[np.bool_] | None = None


def take_state(
    states: EnvStates,
    rollout: Rollout,
    carry: Carry,
    noise: np.random.Generator,
    begins: Begins,
    tracker: EpisodeTracker,
    generation: int,
) -> SamplerState:
    """The state of a sampler made of these, all resets of the rollout being done."""
    observation = rollout.observation[-1].copy()
    observation[carry.is_fresh] = carry.observation[carry.is_fresh]
    return SamplerState(
        environments=[states[b] for b in range(len(observation))],
        observation=observation,
        noise=dict(noise.bit_generator.state),
        episode_sums=tracker.sums.copy(),
        is_skipped=tracker.is_skipped.copy(),
        generation=generation,
        begins=begins.take(),
    )


def restore_state(
    state: SamplerState,
    rollout: Rollout,
    noise: np.random.Generator,
    begins: Begins,
    tracker: EpisodeTracker,
) -> EnvStates:
    """Puts all but the environments themselves back; returns their states.

    Raises:
        ValueError: the state is of other environments, or of another number of them.
    """
    row = rollout.observation[-1]
    if state.observation.shape != row.shape or state.observation.dtype != row.dtype:
        raise ValueError(
            f"the saved state is of environments whose observations are {state.observation.dtype} "
            f"{list(state.observation.shape)}; these have {row.dtype} {list(row.shape)}"
        )
    row[...] = state.observation
    noise.bit_generator.state = state.noise
    states = dict(enumerate(state.environments))
    goes_on = np.array([each is not None for each in state.environments])
    begins.restore(~goes_on if state.begins is None else state.begins | ~goes_on)
    tracker.sums[:, goes_on] = state.episode_sums[:, goes_on]
    tracker.is_skipped[goes_on] = state.is_skipped[goes_on]
    return states
