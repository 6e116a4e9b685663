"""Runs with a network of the user's own: every algorithm, and all that is done with a saved run."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from launched_runs import launched
from run_files import parameters_of, rows_of
from saved_runs import quiet, trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.tools.play import PlayOptions, play
from accel_rl.tools.policy import load_policy
from accel_rl.training.train import train

NETS = """\
import numpy as np
import torch
from torch import nn


class Trunk(nn.Module):
    def __init__(self, observation_shape):
        super().__init__()
        self.first = nn.Linear(int(np.prod(observation_shape)), 16)
        self.spare = nn.Linear(3, 3)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, observation):
        return self.frozen(torch.tanh(self.first(observation.flatten(1).float())))


class Policy(nn.Module):
    def __init__(self, observation_shape, num_actions):
        super().__init__()
        self.trunk = Trunk(observation_shape)
        self.policy = nn.Linear(16, num_actions)
        self.value = nn.Linear(16, 1)

    def forward(self, observation):
        x = self.trunk(observation)
        return self.policy(x), self.value(x).squeeze(1)


class Q(nn.Module):
    def __init__(self, observation_shape, num_actions, num_atoms, is_dueling):
        super().__init__()
        self.trunk = Trunk(observation_shape)
        self.head = nn.Linear(16, num_actions * num_atoms)
        self.shape = num_actions, num_atoms

    def forward(self, observation):
        return self.head(self.trunk(observation)).unflatten(1, self.shape)


def differing(observation_shape, num_actions):
    model = Policy(observation_shape, num_actions)
    with torch.no_grad():
        model.policy.weight += np.random.default_rng().normal()
    return model
"""
Q_OPTIONS = ("horizon=4", "learning_starts=20", "buffer_size=200", "batch_size=8")
RUNS = {
    "a2c": ("horizon=5",),
    "dqn": (*Q_OPTIONS, "precision=bfloat16"),
    "a3c": ("horizon=5", "precision=bfloat16"),
    "ppo": ("horizon=20", "minibatch_size=20", "overlap=true", "checkpoint_interval=400"),
    "ga3c": ("horizon=5", "num_workers=none", "num_groups=2", "tuner=false"),
    "rainbow": (*Q_OPTIONS, "num_atoms=5", "evaluation_interval=40", "evaluation_steps=40"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of the networks is; from there they can be imported."""
    monkeypatch.setattr("accel_rl.training.torch_setup.available_cpus", lambda: [0])
    (tmp_path / "my_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    "algo",
    [
        "a2c",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("dqn", "a3c", "ppo", "rainbow")),
        pytest.param("ga3c", marks=[pytest.mark.slow, pytest.mark.processes]),
    ],
)
def test_every_algorithm_learns_with_an_own_network(algo: str, folder: Path) -> None:
    name = "Q" if "dqn" in algo or algo == "rainbow" else "Policy"
    options = (f"algo={algo}", "env=catch", f"model=my_nets:{name}", "total_steps=80")
    more = ("log_norms=true",) if algo != "ga3c" else ()
    run_dir = trained(folder / "run", *options, *RUNS[algo], *more)
    kind = getattr(sys.modules["my_nets"], name)
    torch.manual_seed(0)  # the run's seed
    atoms = 5 if algo in ("cat_dqn", "rainbow") else 1
    arguments = ((10, 5), 3, atoms, False) if name == "Q" else ((10, 5), 3)
    before, after = dict(kind(*arguments).named_parameters()), parameters_of(run_dir)
    assert set(after) == set(before)
    moved = {key.rpartition(".")[0] for key in after if not torch.equal(after[key], before[key])}
    heads = {"head"} if name == "Q" else {"policy", "value"}
    assert moved == {"trunk.first", *heads}
    gc.collect()  # the store's file, before another test finds it
    if more:
        row = rows_of(run_dir / "metrics.csv")[0]
        assert {f"parameter_norm/{layer}" for layer in (*heads, "trunk.spare")} <= set(row)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("algo=ppo", "model=my_nets:Policy"), ("algo=dqn", "model=my_nets:Q", *Q_OPTIONS)],
    ids=["ppo", "dqn"],
)
def test_saved_run_goes_on_is_evaluated_filmed_and_loaded(options, folder: Path) -> None:
    lengths = ("horizon=4", "minibatch_size=8") if options[0] == "algo=ppo" else ()
    run_dir = trained(folder / "run", "env=catch", *options, *lengths)
    before = parameters_of(run_dir)
    train(parse_arguments([f"resume={run_dir}", "total_steps=160"]), quiet())
    assert any(not torch.equal(before[key], each) for key, each in parameters_of(run_dir).items())
    assert evaluate_run(run_dir, EvaluateOptions(num_steps=50), quiet()).num_games > 0
    assert play(run_dir, PlayOptions(max_steps=5), quiet()).num_frames > 0
    policy = load_policy(run_dir, greedy=True)
    assert policy(np.zeros((1, 10, 5), np.float32)).shape == (1,)


def test_saved_run_whose_module_is_not_here_is_one_message(folder: Path, monkeypatch) -> None:
    run_dir = trained(folder / "run", "env=catch", "model=my_nets:Policy")
    (folder / "my_nets.py").unlink()
    monkeypatch.delitem(sys.modules, "my_nets")
    message = r"model=my_nets:Policy: the module my_nets cannot be imported .* on PYTHONPATH"
    with pytest.raises(ValueError, match=message):
        load_policy(run_dir)


def test_network_that_has_changed_since_is_refused_with_the_names(folder: Path) -> None:
    run_dir = trained(folder / "run", "env=catch", "model=my_nets:Policy")
    (folder / "my_nets.py").write_text(NETS.replace("self.value", "self.critic"))
    del sys.modules["my_nets"]
    with pytest.raises(ValueError, match=r"differ in critic.bias, critic.weight, value.bias"):
        load_policy(run_dir)


# ---- from the command line -----------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.slow
def test_learners_begin_with_the_same_parameters_whatever_each_draws(folder: Path) -> None:
    options = "algo=a2c env=catch model=my_nets:differing learners=2 num_workers=0 num_envs=4"
    more = "decorrelation_steps=0 log_interval=40 total_steps=200"
    with launched(folder / "run", *options.split(), *more.split(), cwd=folder) as run:
        run.ends(0)  # their fingerprints are compared at checkpoints
    assert rows_of(folder / "run" / "metrics.csv")


@pytest.mark.parametrize("more", [(), ("learners=2",), ("--plan",)], ids=["run", "two", "plan"])
def test_refusal_is_one_message_before_anything_is_made(
    more, folder: Path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(folder)
    assert main(["train", "algo=a2c", "env=catch", "model=my_nets:Q", "num_workers=0", *more]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "error: model=my_nets:Q: its call with (observation_shape=(10, 5), num_actions=3) failed: "
        "TypeError: Q.__init__() missing 2 required positional arguments: 'num_atoms'"
    )
    assert not (folder / "runs").exists()
