"""The environments and the agent of a config."""

from __future__ import annotations

import torch

from accel_rl.agents import AnyAgent
from accel_rl.algos import Network
from accel_rl.capture import EAGER, Capture
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvFactory, EnvSpec, make_env_factory
from accel_rl.envs.clipped import clipped
from accel_rl.envs.make import probe_observations
from accel_rl.models.make import fits_images
from accel_rl.presets import IMAGE_MODELS
from accel_rl.spaces import Leaf, seen_space


def factory_of(config: TrainConfig) -> EnvFactory:
    """A factory of the environment that ``config`` names, as its algorithm wants it.

    Raises:
        ValueError: there is no such environment.
    """
    factory = make_env_factory(config.env, config.atari, config.info_keys)
    return clipped(factory) if config.learner.clips_actions else factory


def agent_of(
    config: TrainConfig,
    spec: EnvSpec,
    device: torch.device,
    *,
    capture: Capture = EAGER,
) -> AnyAgent:
    """The agent that ``config`` asks for, with fresh parameters on ``device``.

    A network of the user's own is tried on observations of the environment: others may have
    numbers in them that it need not take.

    Raises:
        ValueError: there is no such network, or it does not fit the environment.
    """
    observations, model = None, config.model
    own = IMAGE_MODELS.get(config.algo)
    seen = seen_space(spec.observation)
    if model == "auto" and own is not None and isinstance(seen, Leaf):
        if fits_images(own, seen.shape, seen.dtype):
            model = own
    if ":" in model:
        observations = probe_observations(factory_of(config), config.sampler.reset_timeout_seconds)
    network = Network(model, spec, device, config.lstm, capture, observations)
    return config.learner.make_agent(network)
