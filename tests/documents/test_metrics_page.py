"""The page about metrics names each column that a run can write, and no other."""

import ast
import re
from itertools import chain

from documents import ROOT

from accel_rl.algos import A2C, DQN, PPO, PQN, SAC
from accel_rl.algos.measure import KINDS
from accel_rl.algos.optimizer import COSINE
from accel_rl.algos.replay_config import PACE_METRICS
from accel_rl.training.metrics import CLIPPED, Scores
from accel_rl.training.overlap import LAG

WRITERS = {
    "accel_rl/training/records.py": ("write_row", "_counts"),
    "accel_rl/parallel/store_sync.py": ("take_metrics",),
    "accel_rl/parallel/all_reduce.py": ("take_metrics",),
    "accel_rl/parallel/gradient_sync.py": ("take_metrics",),
    "accel_rl/ga3c/report.py": ("take",),
}
"""functions that make columns, as the keys of a dictionary"""


def written(path: str, functions: tuple[str, ...]) -> set[str]:
    """Return the texts that are keys of dictionaries in these functions."""
    found = set()
    for each in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(each, ast.FunctionDef) and each.name in functions:
            dicts = (node for node in ast.walk(each) if isinstance(node, ast.Dict))
            keys = chain.from_iterable(node.keys for node in dicts)
            found |= {key.value for key in keys if isinstance(key, ast.Constant)}
    assert found, f"{path}: {functions} make no columns"
    return found


def columns() -> set[str]:
    found = set().union(*(written(*item) for item in WRITERS.items()))
    found |= set(chain.from_iterable(each.metrics for each in (A2C, DQN, PPO, PQN, SAC)))
    found |= {*Scores().summary(), *PACE_METRICS, *KINDS, COSINE, CLIPPED, LAG}
    found |= {"clipped_gradient_norm", "episode_info_<key>_mean"}
    return {
        re.sub("_seconds$", "_share", name) if name != "training_seconds" else name
        for name in found
    }


def test_page_names_each_column_and_no_other() -> None:
    page, _, _ = (ROOT / "docs/metrics.md").read_text().partition("## Evaluations")
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    named = set(chain.from_iterable(re.findall(r"`([^`]+)`", cell) for cell in cells))
    assert named == columns()
