"""What the interfaces of other libraries ask of the `VectorEnv` behind them."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from accel_rl.vector.vector_env import VectorEnv


def check_wrapped(env: object, mode: AutoresetMode, library: str) -> None:
    """Raises ValueError unless it is a `VectorEnv` in ``mode``, of one group, that copies."""
    if not isinstance(env, VectorEnv):
        raise ValueError(
            f"env is {env!r}; it must be a VectorEnv, as in "
            f'VectorEnv("CartPole-v1", num_envs=8, autoreset_mode="{mode.value}")'
        )
    found = env.metadata["autoreset_mode"]
    if found is not mode:
        raise ValueError(
            f"the VectorEnv has autoreset_mode={found}; {library} needs {mode.name}: give "
            f'autoreset_mode="{mode.value}"'
        )
    if len(env.groups) > 1 or not env.copy:
        raise ValueError(
            f"the VectorEnv has num_groups={len(env.groups)} and copy={env.copy}; {library} "
            f"steps all at once and keeps observations: leave both out"
        )
