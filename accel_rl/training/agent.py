"""The environments and the agent of a config."""

from __future__ import annotations

import torch

from accel_rl.algos import AnyAgent, make_agent
from accel_rl.capture import EAGER, Capture
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvFactory, EnvSpec, make_env_factory
from accel_rl.envs.make import probe_observations
from accel_rl.models.make import fits_images
from accel_rl.presets import IMAGE_MODELS


def factory_of(config: TrainConfig) -> EnvFactory:
    """A factory of the environment that ``config`` names.

    Raises:
        ValueError: there is no such environment.
    """
    return make_env_factory(config.env, config.atari, config.info_keys)


def agent_of(
    config: TrainConfig,
    spec: EnvSpec,
    device: torch.device,
    *,
    evaluates: bool = False,
    capture: Capture = EAGER,
) -> AnyAgent:
    """The agent that ``config`` asks for, with fresh parameters on ``device``; see `make_agent`.

    A network of the user's own is tried on observations of the environment: others may have
    numbers in them that it need not take.

    Raises:
        ValueError: there is no such network, or it does not fit the environment.
    """
    observations, model = None, config.model
    if model == "auto" and config.algo in IMAGE_MODELS:
        own = IMAGE_MODELS[config.algo]
        if fits_images(own, spec.observation_shape, spec.observation_dtype):
            model = own
    if ":" in model:
        observations = probe_observations(factory_of(config), config.sampler.reset_timeout_seconds)
    return make_agent(
        config.learner,
        model,
        spec,
        device,
        lstm=config.lstm,
        evaluates=evaluates,
        capture=capture,
        observations=observations,
    )
