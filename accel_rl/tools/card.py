"""The model card of a packaged run: what the Hugging Face Hub shows of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from accel_rl.config import TrainConfig
from accel_rl.runs.yaml_file import code_in
from accel_rl.system.console import printable


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The content of ``scores.json``. Scores are None if no game was finished.

    Attributes:
        env: name of the environment.
        algo: name of the preset.
        training_seed: seed of the run.
        checkpoint_steps: steps after which the policy was saved.
        source: file of the run that has the scores. evaluation.json and evaluation.csv are about
            games of this policy, metrics.csv about the last games of training.
        mean_reward: mean score of a game.
        std_reward: standard deviation of the scores; the divisor is the number of games.
        num_episodes: number of games.
        greedy: whether actions were greedy.
        accel_rl_version: version of accel_rl that made the package.
    """

    env: str
    algo: str
    training_seed: int
    checkpoint_steps: int
    source: str | None = None
    mean_reward: float | None = None
    std_reward: float | None = None
    num_episodes: int = 0
    greedy: bool = False
    accel_rl_version: str

    @property
    def text(self) -> str:
        """The scores as the Hub writes them."""
        return f"{self.mean_reward:.2f} +/- {self.std_reward:.2f}"


_GAMES = {
    "evaluation.json": "whole games of this policy",
    "evaluation.csv": "whole games of this policy, in an evaluation during training",
    "metrics.csv": "the last games of training",
}
_FILES = {
    "config.yaml": "options of the run",
    "evaluation.csv": "evaluations during training",
    "metrics.csv": "scores, losses and speed during training",
    "model.safetensors": "the network, and the moments that normalise observations if it has them",
    "replay.mp4": "the first minute of a game",
    "scores.json": "scores of the policy",
}


def model_card(config: TrainConfig, scores: Scores, files: Sequence[str]) -> str:
    """Return the content of ``README.md``: metadata in YAML for the Hub, then text for people."""
    metadata = OmegaConf.to_yaml(OmegaConf.create(_metadata(config, scores)))
    rows = [
        ("environment", _code(config.env)),
        ("algorithm", _code(config.algo)),
        ("steps of training", f"{scores.checkpoint_steps:,}"),
        ("seed", str(config.seed)),
    ]
    if scores.source is not None:
        how = ", greedy actions" if scores.greedy else ""
        rows += [
            ("mean reward", scores.text),
            ("episodes", f"{scores.num_episodes:,}: {_GAMES[scores.source]}{how}"),
        ]
    trust = ""
    if code := code_in(vars(config)):
        named = " and ".join(_code(f"{option}={value}") for option, value in code.items())
        trust = f"""
The options name code that is not in this directory: {named}. `load_policy` needs its modules, and
`trust=True` to import them.
"""
    return f"""---
{metadata}---

# {_plain(config.algo)} on {_plain(config.env)}

A policy that accel_rl has trained, packaged by version {scores.accel_rl_version}.

{_table(rows)}

## Use

Install `accel_rl[train,hub]`, and what the environment needs. Then:

```python
from accel_rl.tools.policy import load_policy

policy = load_policy("DIRECTORY")  # a copy of these files
```

`policy` takes a batch of observations of the environment and returns an action for each.
`accel_rl evaluate DIRECTORY` plays whole games.
{trust}
## Files

{_table([(_code(name), _FILES[name]) for name in files])}
"""


def _metadata(config: TrainConfig, scores: Scores) -> dict[str, Any]:
    algo, env = _plain(config.algo), _plain(config.env)
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "accel_rl", algo, env]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {
        "type": "mean_reward",
        "value": scores.text if scores.source else None,
        "name": "mean_reward",
        "args": {"num_episodes": scores.num_episodes},
        "verified": False,
    }
    result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": [metric]}
    model = {"name": f"{algo}-{env}", "results": [result]}
    metadata = {"library_name": "accel_rl", "pipeline_tag": "reinforcement-learning", "tags": tags}
    return {**metadata, **({"model-index": [model]} if scores.source else {})}


def _plain(name: str) -> str:
    """``name`` without what has a meaning for the Hub or in Markdown."""
    return re.sub(r"[^\w.-]+", "-", name)


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '').replace('|', '')}`"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
