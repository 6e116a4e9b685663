"""A config as learners send it to one another: plain dictionaries, numbers and text."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from accel_rl.config import TrainConfig
from accel_rl.presets import PRESETS, find_preset


def to_plain(config: TrainConfig) -> dict[str, Any]:
    """Return all options of ``config``, groups as dictionaries, for JSON."""
    return asdict(config)


def from_plain(plain: Any) -> TrainConfig:
    """Return the config of which `to_plain` made ``plain``, also after JSON.

    Raises:
        ValueError: The options are not those of this version of accel_rl, or one is out of range.
    """
    try:
        algo = plain["algo"]
        preset = find_preset(algo) if ":" in algo else PRESETS[algo]
        config = _rebuild(preset(), plain)
    except (KeyError, TypeError):
        raise ValueError(
            "the first learner has other options than this version of accel_rl; install the same "
            "version on all machines"
        ) from None
    assert isinstance(config, TrainConfig)
    return config


def _rebuild(like: Any, plain: dict[str, Any]) -> Any:
    """``plain`` as a dataclass of the kind of ``like``, whose own values do not matter."""
    values = dict(plain)
    for field in fields(like):
        if is_dataclass(getattr(like, field.name)):
            values[field.name] = _rebuild(getattr(like, field.name), plain[field.name])
        elif field.name not in plain:
            raise KeyError(field.name)
    return type(like)(**values)
