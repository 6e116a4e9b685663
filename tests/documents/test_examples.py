"""The examples, run as a reader would, for a few seconds each: they learn."""

import json
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, run
from run_files import rows_of

from accel_rl.cli.parse import parse_arguments
from accel_rl.system.extras import how_to_install

EXAMPLES = ROOT / "examples"

# Argument, and what the last mean return must exceed; chance gives about the number behind.
RUNS = {
    "custom_learner.py": ("200", 0.3),  # -0.6
    "foreign_ppo.py": ("11000", 35),  # 22
    "numpy_policy.py": ("8", 45),  # 3
    "own_loop.py": ("400", 0.8),  # -0.6
    "sb3_ppo.py": ("12000", 0.5),  # -0.6
}


pytestmark = [pytest.mark.processes, pytest.mark.slow]


def example(script: Path, argument: str) -> str:
    return run(["python", str(script), argument], ROOT)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if "ppo" in name or "loop" in name else ())
        for name in RUNS
    ],
)
def test_example_learns(name: str, tmp_path: Path) -> None:
    argument, threshold = RUNS[name]
    output = example(EXAMPLES / name, argument)
    *_, last = re.findall(r"mean return (-?\d+\.\d+)", output)
    assert float(last) > threshold
    if name == "foreign_ppo.py":  # with Gymnasium in that one line, exactly the same
        text = (EXAMPLES / name).read_text()
        ours = 'VectorEnv("CartPole-v1", NUM_ENVS)'
        theirs = '__import__("gymnasium").make_vec("CartPole-v1", NUM_ENVS, "sync")'
        assert text.count(ours) == 1
        (tmp_path / name).write_text(text.replace(ours, theirs))
        assert example(tmp_path / name, argument) == output


def test_own_loop_of_two_learners_learns_and_ends_with_equal_parameters() -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    output = run([sys.executable, *launcher, str(EXAMPLES / "own_loop.py"), "300"], ROOT)
    scores = re.findall(r"mean return (-?\d\.\d+) at first, mean return (-?\d\.\d+)", output)
    assert [float(first) < 0 and float(last) > 0.8 for first, last in scores] == [True, True]
    parameters = re.findall(r"learner ([01]): parameters (\w+)", output)
    assert len(dict(parameters)) == 2
    assert len({check for _, check in parameters}) == 1


def last_row(run_dir: Path, *options: str) -> dict[str, str]:
    """Of a run with these options."""
    run(["accel_rl", "train", *options, f"run_dir={run_dir}"], ROOT)
    return rows_of(run_dir / "metrics.csv")[-1]


def test_own_algorithm_learns(tmp_path: Path) -> None:
    options = [
        "algo=examples.own_algorithm:make",
        "env=catch",
        "num_workers=0",
        "total_steps=40000",
    ]
    row = last_row(tmp_path / "run", *options, "learners=1")
    assert float(row["episode_return_raw_mean"]) > 0.6  # -0.6 by chance
    assert float(row["divergence"]) > 0


@pytest.mark.nightly
def test_minigrid_is_learned(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="pip install minigrid")
    options = [f"config={EXAMPLES}/minigrid_masked.yaml", "trust=true", "total_steps=60000"]
    row = last_row(tmp_path / "run", *options, "learners=1")
    assert float(row["episode_return_raw_mean"]) > 0.5  # 0.1 by chance


def optuna() -> Any:
    return pytest.importorskip("optuna", reason=f"needs {how_to_install('optuna')}")


@pytest.mark.parametrize(("lower", "state"), [(-2.0, "COMPLETE"), (2.0, "PRUNED")])
def test_trial_of_the_search_ends_when_optuna_prunes_it(
    lower: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruner = optuna().pruners.ThresholdPruner(lower=lower)  # returns are between -1 and 1
    monkeypatch.chdir(tmp_path)
    search = runpy.run_path(str(EXAMPLES / "optuna_search.py"))
    study = optuna().create_study(study_name="x", direction="maximize", pruner=pruner)
    study.optimize(search["objective"], n_trials=1)
    (trial,) = study.trials
    steps = list(trial.intermediate_values)
    assert (trial.state.name, len(steps)) == (state, 1 if state == "PRUNED" else 6)
    assert list((tmp_path / "runs" / "optuna" / "x" / "0" / "checkpoints").iterdir())


def test_every_config_of_the_examples_is_read() -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        assert parse_arguments([f"config={path}", "trust=true"]).total_steps >= 10_000, path


@pytest.mark.nightly
def test_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """Without Jupyter, and without the film if what draws CartPole is not installed."""
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text())["cells"]
    sources = ["".join(each["source"]) for each in cells if each["cell_type"] == "code"]
    text = "\n".join(each for each in sources if "film" not in each or find_spec("pygame"))
    (tmp_path / "notebook.py").write_text(f"{text}\nprint(score)\n")
    assert float(run(["python", "notebook.py"], tmp_path).split()[-1]) > 150
