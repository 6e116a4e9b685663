"""Options to a config: ``key=value`` over a preset, a file or a saved run.

A key is dotted (``sampler.num_envs``), or its last part alone where that names one option
(``num_envs``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from accel_rl.cli.index import keys_of_presets
from accel_rl.cli.suggest import check_keys, resolve_keys, split
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec, is_atari_game
from accel_rl.models.make import fits_images
from accel_rl.options import Option, alternatives, list_options
from accel_rl.presets import find_preset, parameters_of, ppo, sees_images
from accel_rl.runs.saved import read_trusted_config
from accel_rl.runs.yaml_file import exact_text, read_option_file
from accel_rl.spaces import Leaf, without_mask

Config = TypeVar("Config")

_SCALES = {"num_envs": "sampler.num_envs", "batch_size": "learner.batch_size"}
"""options that some presets scale others by"""
_SWEEP_HINT = "; several values are for `sweep`, on its command line"
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}


def parse_arguments(arguments: Sequence[str]) -> TrainConfig:
    """Return the configuration for the arguments of a command line, by `make_config`.

    Args:
        arguments: such as ``["algo=ppo", "env=catch"]``.
    """
    return make_config(split(arguments))


def make_config(options: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with the given options, all others as the preset has them.

    Options in the file that ``config`` names are overridden by ``options``. Only ``options`` must
    have an effect.

    Raises:
        UntrustedError: a file or run names code (``module:function``), another person may have
            written it, and ``trust=true`` is not given.
        ValueError: an option is unknown, ambiguous, given twice, of the wrong type, out of range or
            without effect. The message names the option and what is allowed.
    """
    given = {key: os.path.expanduser(exact_text(value)) for key, value in options.items()}
    run_dir, path = given.pop("resume", None), given.pop("config", None)
    file, found = None if path is None else Path(path), dict[str, Any]()
    if file is not None:
        if run_dir is not None:
            raise ValueError(
                f"config={path} cannot be given with resume={run_dir}, which has its own options; "
                "leave it out"
            )
        found = read_option_file(file, trust=_trusts(given))
    with _naming(None if "algo" in given else file):
        both = {key: exact_text(value) for key, value in (found | given).items()}
        base = _preset(both) if run_dir is None else _resumed(run_dir, given)
    known, keys = {option.key: option for option in list_options(base)}, keys_of_presets()
    for own in (found, given):
        own.pop("algo", None)
    with _naming(file):
        values = check_keys(found, base.algo, known, keys)
        texts = {key: exact_text(_as_chosen(known[key], each)) for key, each in values.items()}
    given = check_keys(given, base.algo, known, keys)
    texts |= given
    try:
        config = override(base, texts)
        if "model" not in texts and run_dir is None:
            config = _with_fitting_model(config)
        _refuse_idle(config, given)
    except ValueError as error:
        if path is None:
            raise
        raise ValueError(f"with config={path}: {error}") from error
    if config.trust and run_dir is None:
        if path is None:
            raise ValueError("trust=true has no effect without resume or config; leave it out")
        return dataclasses.replace(config, trust=False)
    return config


@contextlib.contextmanager
def _naming(file: Path | None) -> Iterator[None]:
    """Name the file that options are from in errors within."""
    try:
        yield
    except ValueError as error:
        if file is None:
            raise
        raise ValueError(f"config={file}: {error}") from error


def _refuse_idle(config: TrainConfig, given: Mapping[str, str]) -> None:
    """Raises ValueError for one of the ``given`` options, by full key, that changes nothing."""
    options = {option.key: option for option in list_options(config)}
    for key, text in given.items():
        idle = options[key].idle
        if reason := idle and idle(config):
            raise ValueError(f"{key}={text} has no effect, because {reason}; leave it out")


def to_texts(config: TrainConfig) -> dict[str, str]:
    """Return all options of ``config`` by key, as on the command line, for the other learners."""
    return {option.key: exact_text(option.default) for option in list_options(config)}


def from_texts(texts: Mapping[str, str]) -> TrainConfig:
    """Return the config of which `to_texts` made ``texts``."""
    return override(find_preset(texts["algo"])(), texts)


def override(base: Config, given: Mapping[str, str]) -> Config:
    """Return the dataclass instance ``base`` with the given options."""
    options = {option.key: option for option in list_options(base)}
    texts = resolve_keys(given, options)
    for key, text in given.items():
        if "${" in text or text == "???":  # which a reader of YAML would take for something else
            raise ValueError(f"{key}={text} is not valid; write the value itself")
    hint = _SWEEP_HINT if isinstance(base, TrainConfig) else ""
    values = {key: _value(options[key], text, hint) for key, text in texts.items()}
    config: Config = _replaced(base, values)
    return config


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a dataclass instance with other values, by dotted key."""
    own: dict[str, Any] = {}
    for key, value in values.items():
        group, dot, rest = key.partition(".")
        own[group] = {**own.get(group, {}), rest: value} if dot else value
    groups = {each.name for each in dataclasses.fields(config)} & own.keys()
    for group in groups:
        if dataclasses.is_dataclass(getattr(config, group)):
            own[group] = _replaced(getattr(config, group), own[group])
    return dataclasses.replace(config, **own)


def _preset(given: Mapping[str, str]) -> TrainConfig:
    """The preset that is given, for its environment and the numbers that scale others."""
    preset = find_preset(given.get("algo", "a2c"))
    takes, arguments = parameters_of(preset), dict[str, Any]()
    for scale in _SCALES.keys() & takes:
        for key in {scale, _SCALES[scale]} & given.keys():
            if isinstance(number := _number(given[key]), int):
                arguments[scale] = number  # text that is no number is refused with the others
    if preset is ppo and {"horizon", "sampler.horizon"} & given.keys():  # its rule is the horizon
        arguments.pop("num_envs", None)
    if "is_image" in takes:
        spec = _spec_of(dataclasses.replace(TrainConfig(), env=given.get("env", TrainConfig.env)))
        arguments["is_image"] = spec is None or sees_images(spec)
    if "has_memory" in takes:
        arguments["has_memory"] = given.get("memory", "none").lower() not in ("none", "null")
    return preset(**arguments)


def _spec_of(config: TrainConfig) -> EnvSpec | None:
    """The spec of the environment; None: of an Atari game, or of none."""
    if is_atari_game(config.env):
        return None
    with contextlib.suppress(ValueError):
        return config.probe_spec()
    return None


def _with_fitting_model(config: TrainConfig) -> TrainConfig:
    """``config``, with ``model=auto`` if observations are no images for the preset's network."""
    if config.model == "auto" or (spec := _spec_of(config)) is None:
        return config
    seen = without_mask(spec.observation)
    fits = isinstance(seen, Leaf) and fits_images(config.model, seen)
    return config if fits else dataclasses.replace(config, model="auto")


def _as_chosen(option: Option, value: object) -> object:
    """``value``, or the word where YAML has taken off or on, without quotes, for false or true."""
    choices = {choice for kind in alternatives(option.type) for choice in get_args(kind)}
    return ("on" if value else "off") if isinstance(value, bool) and "off" in choices else value


def _trusts(given: Mapping[str, str]) -> bool:
    """Whether ``trust=true`` is among the options given."""
    texts = {"trust": given["trust"]} if "trust" in given else {}
    return override(TrainConfig(), texts).trust


def _resumed(run_dir: str, given: Mapping[str, str]) -> TrainConfig:
    """The config of the run to go on with."""
    if not run_dir:
        raise ValueError("resume= names no run directory; name one, or leave it out")
    for key in ("algo", "run_dir"):
        if key in given:
            raise ValueError(
                f"{key}={given[key]} cannot be given with resume={run_dir}, which has its own; "
                "leave it out"
            )
    saved = read_trusted_config(run_dir, trust=_trusts(given))
    return dataclasses.replace(saved, resume=run_dir)


def _value(option: Option, text: str, hint: str) -> Any:
    """Return what an option's ``text`` stands for; ``hint``: what else several values are for."""
    kinds = alternatives(option.type)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in kinds:
        with contextlib.suppress(ValueError, KeyError):
            return _converted(kind, text)
    is_list = not option.is_list and re.fullmatch(r"\[.*\]|.*,.*|\d+\.\.\d+", text)
    raise ValueError(
        f"{option.key}={text} is not valid; it must be: {option.type_name}{hint * bool(is_list)}"
    )


def _converted(kind: Any, text: str) -> Any:
    """Return ``text`` as a value of ``kind``, one alternative of an option's type.

    Raises:
        ValueError, KeyError: it stands for none.
    """
    if get_origin(kind) is tuple:
        parts = (part.strip(" '\"") for part in text.strip("[]").split(","))
        return tuple(_converted(get_args(kind)[0], part) for part in parts if part)
    if get_origin(kind) is Literal:
        return {str(each): each for each in get_args(kind)}[text]
    if kind is type(None):
        raise ValueError
    if kind is bool:
        return _BOOLEANS[text.lower()]
    if kind is int:
        return int(_number(text))
    return float(text) if kind is float else text


def _number(text: str) -> int | str:
    """The integer that ``text`` stands for, 3e6 among them; else ``text``."""
    with contextlib.suppress(ValueError, OverflowError):
        if (number := float(text)).is_integer():
            return int(text) if text.lstrip("+-").isdigit() else int(number)
    return text
