"""Captured regions: the same updates and actions, compiled once and not anew."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_learners import Run, assert_equal, rollouts

from accel_rl.agents import PolicyAgent
from accel_rl.algos import A2CConfig, DQNConfig
from accel_rl.capture import EAGER, Capture
from accel_rl.cli.parse import parse_arguments
from accel_rl.graphs import Graphs
from accel_rl.system.stopping import StopRequest
from accel_rl.training.build import build
from accel_rl.training.devices import capture_of, make_capture

CPU = torch.device("cpu")
# Of torch itself, while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def assert_compiled_once(num_regions: int) -> None:
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == num_regions
    assert not counters["graph_break"]


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param("ppo", marks=pytest.mark.numeric), "double-dueling-prioritized", "a2c-lstm"],
)
def test_captured_learner_equals_the_eager_one_in_one_graph_for_each_region(name: str) -> None:
    """The loss, the rule and acting; while learning rate, clip range and bias correction change.

    In float64, since rounding decides what PPO clips and so grows with each update.
    """
    captured = Run(name, Capture(CPU, "eager"), CPU, dtype=torch.float64)
    eager = Run(name, EAGER, CPU, dtype=torch.float64)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_equal(captured, eager, tolerance=1e-10)
    assert_compiled_once(num_regions=3)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.nightly  # a minute each
@pytest.mark.parametrize("name", ["a2c-bfloat16", "ppo", "double-dueling-prioritized"])
def test_compiled_learner_equals_the_eager_one(name: str) -> None:
    """Compiled, bfloat16 rounds fewer intermediate results; eager, it is 0.25 from float32 here.

    PPO in float64: its clip range is so tight here that rounding lets a sample count or not.
    """
    dtype = torch.float64 if name == "ppo" else torch.float32
    tolerance = {"a2c-bfloat16": 0.25, "ppo": 1e-9}.get(name, 1e-3)
    captured, eager = Run(name, Capture(CPU), CPU, dtype=dtype), Run(name, EAGER, CPU, dtype=dtype)
    with (
        torch._dynamo.config.patch(error_on_recompile=True),
        torch._inductor.config.patch(compile_threads=1),
    ):
        assert_equal(captured, eager, tolerance)
    assert_compiled_once(num_regions=3)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.slow
def test_numbers_that_change_are_no_part_of_a_region() -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    run = Capture(CPU, "eager")(scaled)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for factor in (1.5, 2.5, 3.5):
            assert run(torch.ones(2), factor).tolist() == [factor, factor]
    assert Capture(CPU, None)(scaled) is scaled


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.slow
def test_copy_of_a_captured_agent_acts_with_its_own_parameters() -> None:
    agent = Run("a2c", Capture(CPU, "eager"), CPU, model="mlp").agent
    assert isinstance(agent, PolicyAgent)
    other = copy.deepcopy(agent)
    batch = next(rollouts(CPU, 1))
    uniform = torch.full((6,), 0.5, dtype=torch.float64)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.zero_()
        other.model.policy[-1].bias[3] = 100.0  # type: ignore[operator, index, union-attr]
    before = agent.act(batch.observation[0], uniform, slice(0, 6))
    assert other.act(batch.observation[0], uniform, slice(0, 6)).tolist() == [3] * 6
    assert torch.equal(agent.act(batch.observation[0], uniform, slice(0, 6)), before)


# ---- the option ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["algo=ga3c", "lstm=true"], "capture=on does not support lstm=true.*use capture=off"),
        (["gradient_cosine_interval=2"], "gradient_cosine_interval=2.*use capture=off"),
        (["learners=2", "normalize_advantage=true"], "normalize_advantage=true of several"),
    ],
)
def test_options_that_exclude_capturing_are_named(arguments: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_arguments([*arguments, "capture=on"])
    config = parse_arguments([*arguments, "capture=auto"])
    assert make_capture(config, torch.device("cuda")) is EAGER


@pytest.mark.parametrize("option", ["overlap=true", "algo=ga3c"])
def test_what_is_captured_on_a_gpu_alone(option: str) -> None:
    config = parse_arguments([option, "capture=on"])
    assert isinstance(make_capture(config, torch.device("cuda")), Graphs)
    with pytest.raises(ValueError, match=rf"on a CPU with {option}.*use capture=off"):
        make_capture(config, CPU)
    assert make_capture(parse_arguments([option, "capture=auto"]), CPU) is EAGER


def test_by_default_a_gpu_has_graphs_and_a_cpu_compiles_nothing() -> None:
    config, gpu = parse_arguments(["algo=dqn", "env=breakout"]), torch.device("cuda")
    capture = make_capture(config, gpu)
    assert isinstance(capture, Graphs) and not capture.is_required
    assert make_capture(config, CPU) is EAGER
    assert make_capture(parse_arguments(["env=breakout", "capture=off"]), gpu) is EAGER


class OwnNetwork(torch.nn.Module):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(A2CConfig):
    make_learner = A2CConfig.make_learner


@pytest.mark.parametrize("own", [OwnNetwork, OwnConfig])
def test_classes_of_users_are_recorded_if_they_say_so_or_it_is_required(
    own: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_arguments(["algo=a2c", "model=mine:make"])
    model = torch.nn.Linear(1, 1)
    if own is OwnNetwork:
        model = own()
    else:
        config = dataclasses.replace(config, learner=own(), model="mlp")
    maybe, required = (Graphs(torch.device("cuda"), is_required=each) for each in (False, True))
    assert capture_of(config, model, maybe) is EAGER
    assert capture_of(config, model, required) is required
    monkeypatch.setattr(own, "is_recorded", True, raising=False)
    assert capture_of(config, model, maybe) is maybe


LONG = ["algo=dqn", "env=breakout", "capture=auto"]


def test_auto_compiles_a_long_run_on_the_cpu() -> None:
    assert make_capture(parse_arguments(LONG), CPU) is not EAGER
    assert make_capture(parse_arguments([*LONG, "max_minutes=60"]), CPU) is not EAGER


@pytest.mark.parametrize(
    "changes",
    [
        ["total_steps=100000"],  # 870 s, of which 70 would be saved, and 83 are taken
        ["max_minutes=10"],
        ["learners=2"],
        ["env=catch"],
        ["model=mine:make"],
        ["algo=a2c"],
        ["gradient_cosine_interval=5"],
    ],
    ids=" ".join,
)
def test_auto_leaves_as_it_is_what_compiling_was_not_measured_to_pay_for(
    changes: list[str],
) -> None:
    given = {each.partition("=")[0]: each for each in (*LONG, *changes)}
    assert make_capture(parse_arguments(list(given.values())), CPU) is EAGER


def test_auto_compiles_nothing_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    assert make_capture(parse_arguments(LONG), CPU) is EAGER


def test_what_a_base_class_was_measured_to_gain_does_not_count() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(DQNConfig):
        make_learner = DQNConfig.make_learner

    config = parse_arguments(LONG)
    assert make_capture(dataclasses.replace(config, learner=Own()), CPU) is EAGER


def test_missing_compiler_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    config = parse_arguments(["env=catch", "capture=on", "device=cpu"])
    with pytest.raises(ValueError, match=r"needs .*a C\+\+ compiler.*CXX.*use capture=off"):
        make_capture(config, CPU)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.slow
def test_run_with_second_learner_and_evaluations_equals_the_eager_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("accel_rl.training.devices.check_compilers", lambda: None)
    monkeypatch.setattr(
        "accel_rl.training.devices.Capture", lambda device: Capture(device, "eager")
    )

    def final_parameters(capture: str) -> tuple[torch.Tensor, Any]:
        options = "algo=double_dqn env=catch serial=true num_envs=4 evaluation_interval=200"
        few = "evaluation_steps=200 evaluation_envs=4 min_steps=200 replay_size=1000"
        given = [*options.split(), *few.split(), f"capture={capture}"]
        config = parse_arguments(given)
        parts = build(config)
        sampler, server, learner = parts.sampler, parts.server, parts.learner
        with contextlib.closing(sampler):
            parts.start(None)
            for _ in range(16):
                sampler.collect(server)
                learner.update(server.finish(), progress=0.1)
            assert parts.evaluator is not None
            scores = parts.evaluator.evaluate(400, StopRequest())
        return parts.exchange.parameters.parameter.clone(), scores

    captured, scores = final_parameters("on")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    eager, expected = final_parameters("off")
    torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-6)
    assert scores == expected
