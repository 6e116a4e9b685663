"""What an unknown name may have been meant for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from accel_rl.options import Option

_ELSEWHERE = {
    "capture": ["cuda_graphs"],
    "clip_coef": ["clip_range"],
    "discount": ["gamma"],
    "discount_factor": ["gamma"],
    "ent_coef": ["entropy_coefficient"],
    "env_id": ["env"],
    "env_name": ["env"],
    "epsilon_share": ["exploration_fraction"],
    "gru": ["memory"],
    "learning_rate": ["lr"],
    "lstm": ["memory"],
    "min_steps": ["learning_starts"],
    "n_envs": ["num_envs"],
    "n_epochs": ["epochs"],
    "n_steps": ["n_step", "horizon"],  # of Q-learning, and of rollouts
    "num_steps": ["horizon"],
    "replay_size": ["buffer_size"],
    "return_lambda": ["q_lambda"],
    "rollout_length": ["horizon"],
    "target_rate": ["tau"],
    "target_update_steps": ["target_update_interval"],
    "temperature": ["alpha"],
    "time_limit_terminal": ["bootstrap_on_truncation"],
    "total_timesteps": ["total_steps"],
    "update_epochs": ["epochs"],
    "vf_coef": ["value_coefficient"],
}
"""names of Stable-Baselines3, CleanRL, others and earlier versions, and ours for the same"""

_EARLIER = {"serial": "num_workers=0", "workers_per_core": "one_group_per_worker=true"}
"""options of earlier versions, and what they are now"""


def suggest_option(key: str, options: Mapping[str, Option]) -> str:
    """What to use in place of ``key``, which none of ``options`` is called.

    Another library's name for it comes first, then those that have the word in their last part
    (``entropy``: ``entropy_coefficient``), then those that are spelled alike.
    """
    is_full = "." in key
    word = key.rpartition(".")[2]
    names = [option.name for option in options.values()]
    now = _EARLIER.get(word, "")
    if now.partition("=")[0] in names:
        return f"it is {now} now"
    found = [name for name in _ELSEWHERE.get(word, ()) if name in names][:1]
    found = found or _with_word(word, names)
    if not found:
        known = list(options) if is_full else list(dict.fromkeys(names))
        return suggest(key, known, 0.7)
    shown = [
        option.key if is_full or names.count(name) > 1 else name
        for name in found
        for option in options.values()
        if option.name == name
    ]
    return _question(shown)


def suggest(name: str, known: Sequence[str], likeness: float = 0.6) -> str:
    """Those ``known`` that are spelled like ``name``, or where to find all."""
    spelled = {each.lower(): each for each in known}  # PPO for ppo
    if close := difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=likeness):
        return _question([spelled[each] for each in close])
    return f"there are {', '.join(known)}" if len(known) < 20 else "--help=all lists all"


def _with_word(word: str, names: Sequence[str]) -> list[str]:
    """The names with ``word`` at their beginning, at that of a part, or, of 4 letters, anywhere."""
    if len(word) < 2:
        return []
    first = [name for name in names if name.startswith(word)]
    then = [name for name in names if f"_{word}" in name]
    last = [name for name in names if word in name and len(word) > 3]
    return list(dict.fromkeys([*first, *then, *last]))[:3]


def _question(names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(names)}?"
