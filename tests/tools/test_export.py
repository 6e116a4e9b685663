"""Exported policies, run by ONNX Runtime, against the policies that they came from."""

import json
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from saved_runs import POLICIES, TOLD, drawn_steps, trained, with_env
from space_envs import SpaceEnv
from torch import nn

from accel_rl.__main__ import main
from accel_rl.agents.graph import PolicyGraph
from accel_rl.spaces import discrete, follow, leaves_of, views
from accel_rl.tools import export
from accel_rl.tools.export import ExportOptions, export_run
from accel_rl.tools.policy import SavedPolicy, load_policy

CASES = POLICIES | {
    "small-images": ["algo=a2c", "env=test_export:Images", "model=minatar"],
    "atari": ["algo=a2c", "env=pong", "horizon=4"],
    "bounds": ["algo=a2c", "env=test_export:number"],
    "multi-discrete": ["algo=ppo", "env=test_export:integers"],
    "gru-floats": ["algo=ppo", "env=test_export:number", "memory=gru", *TOLD],
    "recurrent-pqn": ["algo=pqn", "memory=lstm", "minibatch_size=64"],
}


@pytest.fixture(autouse=True)
def no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the exporter's may start a thread for progress bars, which would stay."""
    if find_spec("tqdm") is not None:
        monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)


number, integers = (partial(SpaceEnv, name) for name in ("number", "multi-discrete"))


class Images(SpaceEnv):
    def __init__(self) -> None:
        super().__init__("discrete")
        self.observation_space = Box(0, 255, (4, 10, 10), np.uint8)


class Branching(nn.Module):
    """Its forward branches on values, which no graph can."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(num_inputs, num_actions + 1)

    def forward(self, observation: torch.Tensor) -> Any:
        y = self.layer(observation.flatten(1).float())
        if y.sum() > 1e9:
            y = y * 2
        return y[:, :-1], y[:, -1]


def branching(observation_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return Branching(int(np.prod(observation_shape)), num_actions)


def run_graph(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    runtime = pytest.importorskip("onnxruntime", reason="of the extra export")
    session = runtime.InferenceSession(folder / "policy.onnx")
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def flat(name: str, space: Any, values: Any) -> dict[str, Any]:
    """The arrays of a value of a space by the names that the graph has for them."""
    tree = views(space, values) if isinstance(values, np.ndarray) else values
    return {
        ".".join((name, *path)): np.ascontiguousarray(follow(tree, path))
        for path, _ in leaves_of(space)
    }


def play_both(policy: SavedPolicy, folder: Path, num_steps: int = 3, n: int = 5) -> None:
    """Steps of ``n`` places, whose observations are drawn; everything that both give is equal."""
    told = json.loads((folder / "export.json").read_text())
    given = {port["name"]: port for port in told["inputs"]}
    state = np.zeros((n, *given["state"]["shape"][1:]), np.float32) if "state" in given else None
    for observation, is_first, reward in drawn_steps(policy.env_spec, num_steps, n):
        inputs = flat("observation", policy.env_spec.observation, observation)
        inputs |= {"state": state, "is_first": is_first} if state is not None else {}
        inputs |= {"reward": reward} if "reward" in given else {}
        found = run_graph(folder, inputs)
        expected = flat("action", policy.env_spec.action, policy(observation, is_first, reward))
        assert [port["name"] for port in told["outputs"]] == list(found)
        for port in told["outputs"]:
            array = found[port["name"]]
            assert (list(array.shape[1:]), array.dtype.name) == (port["shape"][1:], port["dtype"])
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
        if "next_state" in found:
            state = found["next_state"]
            remembered = policy._states.get_state().numpy()
            np.testing.assert_allclose(state, remembered, rtol=1e-5, atol=1e-5)


def exported(run_dir: Path) -> Path:
    pytest.importorskip("onnxruntime", reason="of the extra export")
    pytest.importorskip("onnxscript", reason="of the extra export")
    pytest.importorskip("safetensors", reason="of the extra export")
    export_run(run_dir, ExportOptions())
    return run_dir / "export"


@pytest.mark.nightly
@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("case", CASES)
def test_exported_graph_acts_as_the_policy_that_was_saved(case: str, tmp_path) -> None:
    pytest.importorskip("onnxruntime", reason="of the extra export")
    run_dir = trained(tmp_path / "run", *with_env(CASES[case]))
    play_both(load_policy(run_dir, greedy=True), exported(run_dir))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    return trained(folder, "env=control_envs:Swing", "algo=ppo", "normalize_observation=true")


def test_logits_values_and_weights_are_those_of_the_network(run_dir) -> None:
    folder = exported(run_dir)
    from safetensors.numpy import load_file

    agent: Any = load_policy(run_dir).agent
    observation = np.ones((4, 3), np.float32)
    found = run_graph(folder, {"observation": observation})
    with torch.no_grad():
        output = agent.evaluate(agent.normalizer(torch.from_numpy(observation)))
    np.testing.assert_allclose(found["distribution"], output.logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["value"], output.value, rtol=1e-5, atol=1e-5)
    weights = load_file(folder / "policy.safetensors")
    for name, tensor in agent.model.state_dict().items():
        np.testing.assert_array_equal(weights.pop(name), tensor.numpy())
    np.testing.assert_array_equal(
        weights.pop("normalizer/mean/observation"), agent.normalizer.mean["observation"]
    )
    assert list(weights) == ["normalizer/scale/observation"]


def test_command_says_what_it_wrote_and_replaces_nothing_unasked(run_dir, tmp_path, capsys) -> None:
    pytest.importorskip("onnxscript", reason="of the extra export")
    out = tmp_path / "files"
    assert main(["export", str(run_dir), f"out={out}"]) == 0
    names = ["policy.onnx", "policy.safetensors", "export.json"]
    assert capsys.readouterr().out == "".join(f"written: {out / name}\n" for name in names)
    assert sorted(each.name for each in out.iterdir()) == sorted(names)
    assert main(["export", str(run_dir), f"out={out}"]) == 1
    assert f"{out}/policy.onnx exists; choose another out=DIRECTORY" in capsys.readouterr().err


def test_network_that_branches_on_values_is_refused_in_one_sentence(tmp_path, capsys) -> None:
    pytest.importorskip("onnxscript", reason="of the extra export")
    run_dir = trained(tmp_path / "run", "env=catch", "model=test_export:branching")
    assert main(["export", str(run_dir)]) == 1
    message = capsys.readouterr().err
    assert "model=test_export:branching: torch cannot export this network to ONNX" in message
    assert message.count("\n") == 1
    assert not (run_dir / "export").exists()


def test_agent_of_a_users_own_class_is_refused() -> None:
    class Own:
        model = nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"acts by an agent of its own class, Own, which"):
        PolicyGraph(Own(), discrete(2), discrete(2))


def test_missing_packages_are_told_with_the_extra(run_dir, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    pytest.importorskip("onnx", reason="of the extra export")
    with pytest.raises(ValueError, match=r'needs onnxscript.*pip install "accel_rl\[export\]"'):
        export_run(run_dir, ExportOptions())


def test_place_that_can_hold_no_files_is_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    for out, said in (("a/b", "there is no directory"), ("file", "is no directory; name one")):
        with pytest.raises(ValueError, match=said):
            export.check_folder(tmp_path / out, [], overwrite=False)
