"""Names on the command line: what they stand for, and what an unknown one may have been meant for.

Loads no other part of accel_rl, so that a misspelt name is answered at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value")

_ELSEWHERE = {
    "batch_size": "minibatch_size",
    "capture": "cuda_graphs",
    "clip_coef": "clip_range",
    "discount": "gamma",
    "discount_factor": "gamma",
    "ent_coef": "entropy_coefficient",
    "env_id": "env",
    "env_name": "env",
    "epsilon_share": "exploration_fraction",
    "exploration_final_eps": "epsilon_final",
    "exploration_fraction": "epsilon_steps",
    "gradient_cosine_interval": "log_norms",
    "gradient_steps": "training_intensity or epochs",
    "gru": "memory",
    "learning_rate": "lr",
    "lstm": "memory",
    "min_steps": "learning_starts",
    "n_envs": "num_envs",
    "n_epochs": "epochs",
    "n_steps": "n_step or horizon",  # of Q-learning, and of rollouts
    "num_steps": "horizon",
    "policy": "model",
    "policy_kwargs": "model",
    "replay_size": "buffer_size",
    "reset_timeout_seconds": "step_timeout_seconds",
    "return_lambda": "q_lambda",
    "rollout_length": "horizon",
    "serial": "num_workers",
    "target_rate": "tau",
    "target_update_steps": "target_update_interval",
    "temperature": "alpha",
    "time_limit_terminal": "bootstrap_on_truncation",
    "total_timesteps": "total_steps",
    "train_freq": "training_intensity or horizon",
    "train_frequency": "training_intensity",
    "update_epochs": "epochs",
    "vf_coef": "value_coefficient",
}
"""names of Stable-Baselines3, CleanRL, others and earlier versions, and ours for the same"""


def split(arguments: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` arguments as a dictionary."""
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
        given[key] = os.path.expanduser(text)
    return given


def resolve_key(key: str, keys: Collection[str]) -> str:
    """Return the one of ``keys``, dotted, that ``key`` stands for."""
    if key in keys:
        return key
    matches = [each for each in keys if _name(each) == key]
    if len(matches) > 1:
        raise ValueError(f"{key} may mean {' or '.join(matches)}; write it in full")
    if matches:
        return matches[0]
    if any(each.startswith(f"{key}.") for each in keys):
        raise ValueError(f"{key} is a group of options; set one of them, as in {key}.NAME=VALUE")
    raise ValueError(f"unknown option {key}; {suggest_option(key, keys)}")


def resolve_keys(given: Mapping[str, Value], keys: Collection[str]) -> dict[str, Value]:
    """Return ``given`` with the key of each option in full, by `resolve_key`."""
    found: dict[str, Value] = {}
    for key, value in given.items():
        full = resolve_key(key, keys)
        if full in found:
            raise ValueError(f"{full} is given twice")
        found[full] = value
    return found


def check_keys(
    given: Mapping[str, Value],
    algo: str,
    keys: Collection[str],
    others: Mapping[str, Collection[str]],
) -> dict[str, Value]:
    """Return the options ``given`` with their keys in full."""
    for key, value in given.items():
        with_it = [name for name, theirs in others.items() if _has(key, theirs)]
        if with_it and not _has(key, keys) and not _ours(key, keys):
            raise ValueError(
                f"{key}={value} cannot be given with algo={algo}, which has no such option; leave "
                f"it out, or use one of algo={', '.join(with_it)}"
            )
    return resolve_keys(given, keys)


def suggest_option(key: str, keys: Collection[str]) -> str:
    """Return what to use in place of ``key``, which none of ``keys`` is called.

    Another library's name for it comes first, then those that have the word in their last part
    (``entropy``: ``entropy_coefficient``), then those that are spelled alike.
    """
    is_full = "." in key
    word = _name(key)
    names = [_name(each) for each in keys]
    found = _ours(key, keys) or [n for n in dict.fromkeys(names) if len(word) > 2 and word in n][:3]
    if not found:
        return suggest(key, list(keys) if is_full else list(dict.fromkeys(names)), 0.7)
    return _question(
        [
            each if is_full or names.count(name) > 1 else name
            for name in found
            for each in keys
            if _name(each) == name
        ]
    )


def suggest(name: str, known: Sequence[str], likeness: float = 0.6) -> str:
    """Ask for those ``known`` that are spelled like ``name``, or say where to find all."""
    spelled = {each.lower(): each for each in known}  # PPO for ppo
    if close := difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=likeness):
        return _question([spelled[each] for each in close])
    return f"there are {', '.join(known)}" if len(known) < 20 else "--help=all lists all"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _has(key: str, keys: Collection[str]) -> bool:
    return key in keys or key in map(_name, keys)


def _ours(key: str, keys: Collection[str]) -> list[str]:
    """Our names for what another library calls ``key``, as far as ``keys`` has them."""
    names = {_name(each) for each in keys}
    found = [name for name in _ELSEWHERE.get(_name(key), "").split(" or ") if name in names]
    return found[:1]


def _question(names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(names)}?"
