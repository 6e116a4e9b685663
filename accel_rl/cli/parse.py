"""The command line: ``key=value`` over a preset, and ``--help``.

A key is dotted (``sampler.num_envs``), or its last part alone where that names one option
(``num_envs``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from accel_rl.cli.suggest import suggest, suggest_option
from accel_rl.config import TrainConfig
from accel_rl.options import Option, field_docs, format_value, list_options
from accel_rl.presets import PRESETS, find_preset, ppo
from accel_rl.runs.option_file import exact_text, read_option_file
from accel_rl.runs.saved import read_trusted_config
from accel_rl.system.functions import first_line

Config = TypeVar("Config")

_SCALES = {"num_envs": "sampler.num_envs", "batch_size": "learner.batch_size"}
"""options that some presets scale others by"""

ALL_HELP = "--help=all"
_HELP = {"--help", "-h", ALL_HELP}

_SWEEP_HINT = "; several values are for `sweep`, on its command line"

USAGE = """\
python launch/train.py [key=value ...]     one training run
python launch/train.py --plan [...]        where it would run and how fast, without training
torchrun launch/train.py [key=value ...]   the same as without torchrun
python -m accel_rl [key=value ...]         the same, where accel_rl is installed
python -m accel_rl evaluate|play|plot|report|export|package RUN ...    with saved runs (--help)
python -m accel_rl check env=NAME          what is wrong with an environment (--help)
python -m accel_rl sweep ...               many runs, for each combination of options (--help)

config=FILE reads options from a YAML file, such as the config.yaml of a run. Options on the
command line override the file. run_dir in the file is ignored. If another person's file or run
names code (module:function), it runs only with trust=true.

A key may be shortened to its last part if that names one option: num_envs=64. Counts may be
written as 3e6. `algo=NAME --help` shows the source, main deviations and values of a preset."""


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

    Args:
        options: values by key, such as ``{"algo": "ppo", "env": "catch", "lr": 1e-3}``. Text is
            understood as on the command line.

    Raises:
        UntrustedError: a file or run names code (``module:function``), another person may have
            written it, and ``trust=true`` is not given.
        ValueError: an option is unknown, ambiguous, given twice, of the wrong type, out of range or
            without effect. The message names the option and what is allowed.
    """
    given = {key: exact_text(value) for key, value in options.items()}
    if "resume" in given and "config" not in given:
        return _parse(given, _resumed(given))
    if "config" not in given:
        config = _parse(given, _preset(given.pop("algo", "a2c"), given))
        if config.trust:
            raise ValueError("trust=true has no effect without resume or config; leave it out")
        return config
    path = Path(given.pop("config"))
    if "resume" in given:
        raise ValueError(
            f"config={path} cannot be given with resume={given['resume']}, which has its own "
            "options; leave it out"
        )
    options = read_option_file(path, trust=_trusts(given))
    whole = _over_file(path, options, given)
    try:
        config = _parse(whole, _preset(whole.pop("algo"), whole), set(given))
    except ValueError as error:
        raise ValueError(f"with config={path}: {error}") from error
    return dataclasses.replace(config, trust=False)


def _parse(
    given: dict[str, str], base: TrainConfig, checked: Collection[str] | None = None
) -> TrainConfig:
    """``base`` with the ``given`` options, of which those ``checked`` must have an effect."""
    _refuse_foreign(base, given)
    config, texts = override(base, given)
    names = given if checked is None else checked
    options = {option.key: option for option in list_options(base)}
    full = {resolve_key(key, options) for key in names if key not in ("algo", "config")}
    _refuse_idle(config, {key: text for key, text in texts.items() if key in full})
    return config


def _refuse_idle(config: TrainConfig, given: Mapping[str, str]) -> None:
    """Raises ValueError for one of the ``given`` options, by full key, that changes nothing."""
    options = {option.key: option for option in list_options(config)}
    for key, text in given.items():
        idle = options[key].idle
        if reason := idle and idle(config):
            raise ValueError(f"{key}={text} has no effect, because {reason}; leave it out")


def override(base: Config, given: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """The dataclass instance ``base`` with the given options, and these under their full keys.

    Raises:
        ValueError: an option is unknown, ambiguous, given twice, of the wrong type or out of range.
    """
    options = {option.key: option for option in list_options(base)}
    texts: dict[str, str] = {}
    for key, text in given.items():
        full = resolve_key(key, options)
        if full in texts:
            raise ValueError(f"{full} is given twice")
        if "${" in text or text == "???":  # which OmegaConf would take for something else
            raise ValueError(f"{key}={text} is not valid; write the value itself")
        texts[full] = text
    tree = OmegaConf.structured(base)
    try:
        tree = _merged(tree, options, texts)
    except OmegaConfBaseException:
        for key, text in texts.items():  # one of them alone fails, too
            _check_value(base, options, key, text)
        raise
    try:
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise ValueError(first_line(error)) from error
    assert isinstance(config, type(base))
    return config, texts


def _check_value(base: object, options: Mapping[str, Option], key: str, text: str) -> None:
    """Raises ValueError if the dataclass instance ``base`` takes no ``text`` under ``key``."""
    try:
        _merged(OmegaConf.structured(base), options, {key: text})
    except OmegaConfBaseException as error:
        is_run = isinstance(base, TrainConfig)
        hint = _SWEEP_HINT if is_run and _is_list(options[key], text) else ""
        raise ValueError(
            f"{key}={text} is not valid; it must be: {options[key].type_name}{hint}"
        ) from error


def _merged(tree: Any, options: Mapping[str, Option], texts: Mapping[str, str]) -> Any:
    """OmegaConf's ``tree`` with other values, which are given as text under their full keys."""
    changes = OmegaConf.create()
    for key, text in texts.items():
        OmegaConf.update(changes, key, _value(options[key], text))
    return OmegaConf.merge(tree, changes)


def resolve_key(key: str, options: Mapping[str, Option]) -> str:
    """The full key that ``key`` stands for.

    Raises:
        ValueError: none, or several.
    """
    if key in options:
        return key
    matches = [option.key for option in options.values() if option.name == key]
    if len(matches) > 1:
        raise ValueError(f"{key} may mean {' or '.join(matches)}; write it in full")
    if matches:
        return matches[0]
    groups = {option.group for option in options.values()} - {""}
    if key in groups:
        raise ValueError(f"{key} is a group of options; set one of them, as in {key}.NAME=VALUE")
    raise ValueError(f"unknown option {key}; {suggest_option(key, options)}")


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether ``--help``, ``--help=all`` or ``-h`` is among the arguments."""
    return not _HELP.isdisjoint(arguments)


def help_text(arguments: Sequence[str], width: int) -> str:
    """Options with types, documentation and defaults, in the preset that is asked about.

    Those that most runs need; with ``--help=all`` every one.
    """
    given = split([each for each in arguments if each not in _HELP | {"--plan"}])
    algo = given.get("algo", "a2c")
    base = _preset(algo, given)
    lines = [*USAGE.splitlines(), "", "Presets (algo=NAME)"]
    for name, preset in PRESETS.items():
        lines += help_entry(name, (preset.__doc__ or "").splitlines()[0], width)
    if "algo" in given:
        about = (inspect.getdoc(find_preset(algo)) or "").partition("\n\nRaises:")[0]
        lines += ["", f"algo={algo}", *textwrap.indent(about, "  ").splitlines()]
    options = list_options(base)
    shown = [each for each in options if each.is_common or ALL_HELP in arguments]
    rest = f" (the common ones of {len(options)}; {ALL_HELP} shows all)"
    rest *= len(shown) < len(options)
    lines += ["", f"Options, with their defaults under algo={algo}{rest}"]
    group = ""
    docs = field_docs(TrainConfig)
    for option in shown:
        if option.group != group:
            group = option.group
            lines += ["", f"{group}: {docs[group]}"]
        head = f"{option.key}={format_value(option.default)}  ({option.type_name})"
        lines += help_entry(head, option.doc, width)
    return "\n".join(lines)


def help_entry(head: str, doc: str, width: int) -> list[str]:
    """Lines of ``--help`` about one thing."""
    body = textwrap.wrap(doc, max(width, 40), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [f"  {head}", *body]


def split(arguments: Sequence[str]) -> dict[str, str]:
    """``key=value`` arguments as a dictionary; raises a ValueError for any others."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if key.startswith("-"):
            wanted = f"{key.lstrip('-').replace('-', '_')}={text or 'VALUE'}"
            raise ValueError(f"{argument!r}: options are written without dashes: {wanted}")
        if not equals or not key:
            raise ValueError(
                f"{argument!r} is not of the form key=value without spaces; --help lists the keys"
            )
        if key in given:
            raise ValueError(f"{key} is given twice")
        # As a shell does where it sees a path, of which not every one does behind key=.
        given[key] = os.path.expanduser(text) if text.startswith("~") else text
    return given


def _preset(name: str, given: Mapping[str, str]) -> TrainConfig:
    """The preset ``name``, scaled to the ``given`` number of environments if it has a rule."""
    if name not in PRESETS and ":" not in name:
        raise ValueError(f"algo={name} is unknown; {suggest(name, list(PRESETS))}")
    preset = find_preset(name)
    scales = {}
    for scale in _scales_of(preset):
        text = given.get(scale, given.get(_SCALES[scale]))
        if text is not None and isinstance(number := _number(text), int):
            scales[scale] = number  # text that is no number is refused with the others
    if preset is ppo and {"horizon", "sampler.horizon"} & given.keys():  # its rule is the horizon
        scales.pop("num_envs", None)
    return preset(**scales)


def _scales_of(preset: Callable[..., TrainConfig]) -> list[str]:
    """The options that ``preset`` takes, to scale others by."""
    takes: Mapping[str, object] = {}
    with contextlib.suppress(ValueError, TypeError):  # of what is built in
        takes = inspect.signature(preset).parameters
    return [scale for scale in _SCALES if scale in takes]


def _over_file(path: Path, found: dict[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """``given``, and the options ``found`` in ``path`` that are not given beside them."""
    algo = str(found.pop("algo", given.get("algo", "a2c")))
    try:
        base = _preset(algo, {})
        _refuse_foreign(base, {key: exact_text(each) for key, each in found.items()})
        options = {option.key: option for option in list_options(base)}
        keys = {key: resolve_key(key, options) for key in found}
        if twice := [full for full in keys.values() if [*keys.values()].count(full) > 1]:
            raise ValueError(f"{twice[0]} is given twice")
    except ValueError as error:
        raise ValueError(f"config={path}: {error}") from error
    values = {full: _as_chosen(options[full], found[key]) for key, full in keys.items()}
    texts = {
        key: exact_text(value)
        for key, value in values.items()
        if not {key, options[key].name} & given.keys()
    }
    return {"algo": algo, **texts, **given}


def _as_chosen(option: Option, value: object) -> object:
    """``value``, or the word where YAML has taken off or on, without quotes, for false or true."""
    choices = {choice for kind in option.alternatives for choice in get_args(kind)}
    return ("on" if value else "off") if isinstance(value, bool) and "off" in choices else value


def _trusts(given: Mapping[str, str]) -> bool:
    """Whether ``trust=true`` is among the options given."""
    texts = {"trust": given["trust"]} if "trust" in given else {}
    return override(TrainConfig(), texts)[0].trust


def _resumed(given: dict[str, str]) -> TrainConfig:
    """The config of the run to go on with."""
    run_dir = given.pop("resume")
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


def _is_list(option: Option, text: str) -> bool:
    """Whether ``text`` has several values, as a sweep or YAML writes them, of an option of one."""
    return not option.is_list and re.fullmatch(r"\[.*\]|.*,.*|\d+\.\.\d+", text) is not None


def _value(option: Option, text: str) -> object:
    """What OmegaConf is given, which turns text into the option's type, but knows no 3e6."""
    kinds = option.alternatives
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if any(get_origin(kind) is tuple for kind in kinds):
        parts = (part.strip(" '\"") for part in text.strip("[]").split(","))
        return [part for part in parts if part]
    if bool in kinds and text not in ("0", "1") and _is_integer(text):
        raise ValidationError("OmegaConf would take it for true")
    has_words = any(kind is str or get_origin(kind) is Literal for kind in kinds)
    if int in kinds and (has_words or text.count("e") + text.count(".") > 0):
        return _number(text)
    return text


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> int | str:
    """The integer that ``text`` stands for, 3e6 among them; else ``text``."""
    with contextlib.suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    return text


def _refuse_foreign(base: TrainConfig, given: Mapping[str, str]) -> None:
    """Raises ValueError for an option that only other presets have than that of ``base``."""
    own = _names(base)
    for key in given.keys() - own:
        if algos := [algo for algo, preset in PRESETS.items() if key in _names(preset())]:
            raise ValueError(
                f"{key}={given[key]} cannot be given with algo={base.algo}, which has no such "
                f"option; leave it out, or use one of algo={', '.join(algos)}"
            )


def _names(config: TrainConfig) -> set[str]:
    return {name for option in list_options(config) for name in (option.key, option.name)}
