"""Which runs record CUDA graphs; what these do is in tests/gpu."""

import dataclasses

import pytest
import torch

from accel_rl.algos import A2CConfig
from accel_rl.cli.parse import parse_arguments
from accel_rl.graphs import Graphs
from accel_rl.training.devices import graphs_of, make_graphs

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            ["algo=ga3c", "memory=lstm"],
            "cuda_graphs=on does not support memory=lstm.*cuda_graphs=auto",
        ),
        (["gradient_cosine_interval=2"], "gradient_cosine_interval=2.*use cuda_graphs=auto"),
        (["learners=2", "normalize_advantage=true"], "normalize_advantage=true of several"),
    ],
)
def test_options_that_exclude_graphs_are_named(arguments: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_arguments([*arguments, "cuda_graphs=on"])
    assert make_graphs(parse_arguments(arguments), GPU) is None


@pytest.mark.parametrize("option", ["algo=dqn", "overlap=true", "algo=ga3c"])
def test_a_gpu_has_graphs_unless_they_are_off_and_a_cpu_never(option: str) -> None:
    for choice, is_required in (("auto", False), ("on", True)):
        graphs = make_graphs(parse_arguments([option, f"cuda_graphs={choice}"]), GPU)
        assert isinstance(graphs, Graphs) and graphs.is_required == is_required
    assert make_graphs(parse_arguments([option, "cuda_graphs=off"]), GPU) is None
    assert make_graphs(parse_arguments([option]), CPU) is None
    with pytest.raises(ValueError, match=r"cuda_graphs=on, .*on the CPU; use cuda_graphs=auto"):
        make_graphs(parse_arguments([option, "cuda_graphs=on"]), CPU)


def test_option_of_before_is_refused_with_the_new_one() -> None:
    with pytest.raises(ValueError, match=r"capture.*did you mean cuda_graphs\?"):
        parse_arguments(["algo=a2c", "capture=on"])


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
    maybe, required = (Graphs(GPU, is_required=each) for each in (False, True))
    assert graphs_of(config, model, maybe) is None
    assert graphs_of(config, model, required) is required
    monkeypatch.setattr(own, "is_recorded", True, raising=False)
    assert graphs_of(config, model, maybe) is maybe
