"""Simulators. The emulator, OpenCV and Gymnasium load with the first environment, not here."""

from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import EnvFactory, Environment, EnvSpec, EnvState, Resumable, StepResult
from accel_rl.envs.batched import Batched, Results, Simulators
from accel_rl.envs.catch import Catch
from accel_rl.envs.errors import EnvError
from accel_rl.envs.make import is_atari_game, make_env_factory, probe_spec

__all__ = [
    "AtariConfig",
    "Batched",
    "Catch",
    "EnvError",
    "EnvFactory",
    "EnvSpec",
    "EnvState",
    "Environment",
    "Results",
    "Resumable",
    "Simulators",
    "StepResult",
    "is_atari_game",
    "make_env_factory",
    "probe_spec",
]
