"""Learning from acting's activations: the same gradient, of the same parameters, computed once."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.agents import PolicyAgent
from accel_rl.cli.parse import parse_arguments
from accel_rl.models import PolicyValue, image, make_model
from accel_rl.models.image import A3C_NET, DQN_NET, GA3C_LARGE_NETS, NATURE_NET, ImageNetwork
from accel_rl.models.recall import recall
from accel_rl.parallel import StoreExchange
from accel_rl.samplers import ActionServer, SerialSampler
from accel_rl.training.build import AnyRun, build

PONG = {"algo": "a2c", "env": "pong", "num_envs": 4, "horizon": 3, "decorrelation_steps": 0}
SPECS = pytest.mark.parametrize(
    "spec", [A3C_NET, DQN_NET, NATURE_NET, GA3C_LARGE_NETS[0]], ids=lambda spec: spec.name
)


def some_loss(output: PolicyValue) -> Tensor:
    weights = torch.randn(output.logits.shape, generator=torch.Generator().manual_seed(1))
    loss: Tensor = (output.logits.tanh() * weights).sum() + (output.value.square()).sum()
    return loss


def plain(
    network: ImageNetwork, observation: Tensor, acted: list[Tensor]
) -> tuple[PolicyValue, dict[str, Tensor]]:
    """The network written out, in float64; its output and its parameters.

    A unit counts where it did in ``acted``: rounding may let it count or not.
    """
    p = {name: each.detach().double().requires_grad_() for name, each in network.named_parameters()}
    x = observation.double() / 255
    for number, conv in enumerate(network.convs):
        weight, bias = p[f"convs.{number}.weight"], p[f"convs.{number}.bias"]
        x = F.conv2d(x, weight, bias, conv.stride, conv.padding) * (acted[number] > 0)  # type: ignore[arg-type]
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = (x @ p["hidden.weight"].t() + p["hidden.bias"]) * (acted[-1] > 0)
    logits = x @ p["policy.weight"].t() + p["policy.bias"]
    return PolicyValue(logits, (x @ p["value.weight"].t() + p["value.bias"]).squeeze(1)), p


@pytest.mark.numeric
@SPECS
@pytest.mark.parametrize("convolves_maps", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 0.05)],
    ids=["float32", "bfloat16"],
)
def test_gradient_is_that_of_the_network_written_out(
    spec: Any,
    convolves_maps: bool,
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image, "_CONVOLVES_MAPS", convolves_maps)
    torch.manual_seed(0)
    network = ImageNetwork(spec, (3, 52, 60), 4)
    for each in network.parameters():
        each.data.add_(torch.randn_like(each), alpha=0.02)  # biases and small heads must count
    observation = torch.randint(0, 256, (7, 3, 52, 60), dtype=torch.uint8)
    with torch.inference_mode():
        acted = copy.deepcopy(network).to(dtype).activations(observation)
    output = recall(network, observation, [each.clone() for each in acted])
    some_loss(output).backward()  # type: ignore[no-untyped-call]

    expected, parameters = plain(network, observation, acted)
    some_loss(expected).backward()  # type: ignore[no-untyped-call]
    for given, wanted in zip(output, expected, strict=True):
        assert given.dtype == torch.float32
        assert (given - wanted).norm() < tolerance * wanted.norm()
    for name, each in network.named_parameters():
        gradient, slope = each.grad, parameters[name].grad
        assert gradient is not None and slope is not None and gradient.dtype == torch.float32
        assert (gradient - slope).norm() < tolerance * slope.norm(), name


def build_run(options: list[str]) -> AnyRun:
    given = PONG | dict(each.split("=") for each in options)
    return build(parse_arguments([f"{key}={value}" for key, value in given.items()]))


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize(
    "more",
    [
        # In two groups; two backward passes.
        pytest.param(["num_workers=2"], marks=pytest.mark.processes),
        ["serial=true", "reset_policy=wait"],
        ["serial=true", "gradient_cosine_interval=2"],
        ["serial=true", "algo=ppo", "minibatch_size=12", "epochs=1"],
    ],
    ids=" ".join,
)
def test_runs_make_the_updates_that_they_make_without(more: list[str]) -> None:
    """Each from the same parameters, lest rounding grows; it may still let a unit count or not."""
    built = build_run(more)
    sampler, server, learner = built.sampler, built.server, built.learner
    flat = built.exchange.parameters
    with sampler:
        for _ in range(4):
            sampler.collect(server)
            batch = server.finish()
            assert batch.activations is not None
            state = copy.deepcopy(built.exchange.state_dict())
            learner.update(batch, 0.0)
            known = flat.gradient.clone()
            built.exchange.load_state_dict(state)
            learner.update(batch._replace(activations=None), 0.0)
            assert flat.gradient.norm() > 0
            assert (known - flat.gradient).norm() < 1e-3 * flat.gradient.norm()


@pytest.mark.slow
def test_only_what_follows_the_rollout_is_computed_in_an_update() -> None:
    built = build_run(["serial=true"])
    sampler, server, learner = built.sampler, built.server, built.learner
    seen: list[int] = []
    assert isinstance(built.agent.model, ImageNetwork)
    with sampler:
        sampler.collect(server)
        batch = server.finish()
        first = built.agent.model.convs[0]
        first.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        learner.update(batch, 0.0)
    assert seen == [4]


@pytest.mark.slow
@pytest.mark.parametrize("algo", [["algo=a2c"], ["algo=ppo", "minibatch_size=12"]], ids=str)
def test_in_bfloat16_acting_is_in_it_with_the_parameters_of_the_last_update(
    algo: list[str],
) -> None:
    built = build_run(["serial=true", "precision=bfloat16", "lr=0.01", *algo])
    sampler, server, learner = built.sampler, built.server, built.learner
    model = built.agent.model
    assert isinstance(model, ImageNetwork)
    previous = copy.deepcopy(model)
    with sampler:
        for iteration in range(3):
            sampler.collect(server)
            batch = server.finish()
            assert batch.activations is not None
            observation, features = batch.observation[:-1].flatten(0, 1), batch.activations[-1]
            # As updates compute, so that PPO's ratios begin at 1.
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                present, old = (each.features(observation) for each in (model, previous))
            assert features.dtype == torch.bfloat16
            assert (features - present).norm() < 1e-3 * present.norm()
            assert iteration == 0 or (features - old).norm() > 0.1 * old.norm()
            previous.load_state_dict(model.state_dict())
            learner.update(batch, 0.0)


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("algo", [["algo=a2c"], ["algo=ppo", "minibatch_size=12", "epochs=1"]])
def test_in_bfloat16_the_update_is_that_of_its_own_forward_pass_but_for_rounding(
    algo: list[str],
) -> None:
    built = build_run(["serial=true", "precision=bfloat16", "max_gradient_norm=none", *algo])
    sampler, server, learner = built.sampler, built.server, built.learner
    flat = built.exchange.parameters
    state = built.exchange.state_dict()
    with sampler:
        sampler.collect(server)
        batch = server.finish()
        learner.update(batch, 0.0)
        known = flat.gradient.clone()
        built.exchange.load_state_dict(state)
        learner.update(batch._replace(activations=None), 0.0)
    assert flat.gradient.norm() > 0
    assert (known - flat.gradient).norm() < 0.05 * flat.gradient.norm()


@pytest.mark.slow
@pytest.mark.parametrize("algo", [["algo=a2c"], ["algo=ppo", "minibatch_size=12"]], ids=str)
def test_activations_of_another_precision_are_no_ground_to_learn_on(algo: list[str]) -> None:
    built = build_run(["serial=true", *algo])
    sampler, server, learner = built.sampler, built.server, built.learner
    with sampler:
        sampler.collect(server)
        batch = server.finish()
    short = [each.bfloat16() for each in batch.activations or ()]
    with pytest.raises(AssertionError, match="the ActionServer's precision must be float32"):
        learner.update(batch._replace(activations=short), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("algo", [["algo=a2c"], ["algo=ppo", "minibatch_size=12"]], ids=str)
def test_precision_tf32_learns_from_acting_in_float32(algo: list[str]) -> None:
    built = build_run(["serial=true", "precision=tf32", *algo])
    with built.sampler as sampler:
        sampler.collect(built.server)
        batch = built.server.finish()
    assert batch.activations and batch.activations[-1].dtype == torch.float32
    built.learner.update(batch, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_layers"),
    [
        ([], 3),
        (["model=nature"], 4),
        (["sync=store"], 3),
        (["sync=store", "pull_steps=2"], 0),  # others than those that learn have acted
        (["overlap=true"], 0),  # likewise
        (["precision=bfloat16"], 3),
        (["lstm=true"], 0),
        (["algo=ppo", "minibatch_size=12"], 1),
        (["algo=dqn", "min_steps=100", "replay_size=1000"], 0),
        (["env=catch"], 0),  # no images that are large enough
    ],
    ids=str,
)
def test_who_learns_from_acting(options: list[str], num_layers: int) -> None:
    built = build_run(["serial=true", *options])
    sampler, server = built.sampler, built.server
    with sampler:
        sampler.collect(server)
        assert len(server.finish().activations or ()) == num_layers
    server.close()
    if isinstance(built.exchange, StoreExchange):
        built.exchange._store.close()


def test_other_agents_and_kept_rollouts_are_refused() -> None:
    built = build_run(["serial=true"])
    agent, sampler, cpu = built.agent, built.sampler, torch.device("cpu")
    assert isinstance(agent, PolicyAgent) and isinstance(sampler, SerialSampler)
    plain_agent = PolicyAgent(make_model("mlp", (3,), np.dtype(np.float32), num_actions=4))
    for other, device, keeps in (
        (plain_agent, cpu, False),
        (agent.greedy(), cpu, False),
        (agent, torch.device("cuda"), False),
        (agent, cpu, True),
    ):
        with pytest.raises(ValueError, match="kept_layers=1 needs an agent on the CPU that draws"):
            ActionServer(other, sampler, device, keeps_rollout=keeps, kept_layers=1)
    for number in (-1, 4):
        with pytest.raises(ValueError, match=f"kept_layers is {number}; it must be from 1 to 3"):
            ActionServer(agent, sampler, cpu, kept_layers=number)
    for layers, precision in ((1, "float16"), (0, "bfloat16")):
        with pytest.raises(ValueError, match=f"precision is '{precision}'; it must be float32, or"):
            ActionServer(agent, sampler, cpu, kept_layers=layers, precision=precision)
    built.server.close()


class Scaled(ImageNetwork):
    """Its features are others than its layers give."""

    def features(self, observation: Tensor) -> Tensor:
        return 2 * super().features(observation)


def make_scaled(observation_shape: Any, num_actions: int) -> ImageNetwork:
    return Scaled(A3C_NET, observation_shape, num_actions)


def make_without_bias(observation_shape: Any, num_actions: int) -> ImageNetwork:
    network = ImageNetwork(A3C_NET, observation_shape, num_actions)
    network.convs[1].bias = None  # type: ignore[assignment]
    return network


@pytest.mark.slow
@pytest.mark.parametrize("function", ["make_scaled", "make_without_bias"])
@pytest.mark.parametrize("algo", [["algo=a2c"], ["algo=ppo", "minibatch_size=12"]], ids=str)
def test_networks_of_one_s_own_act_and_learn_as_they_are(function: str, algo: list[str]) -> None:
    built = build_run(["serial=true", f"model=test_recall:{function}", *algo])
    sampler, server, learner = built.sampler, built.server, built.learner
    with sampler:
        sampler.collect(server)
        batch = server.finish()
        assert batch.activations is None
        learner.update(batch, 0.0)
    if function == "make_scaled":
        assert isinstance(built.agent, PolicyAgent) and isinstance(sampler, SerialSampler)
        with pytest.raises(ValueError, match="kept_layers=1 needs"):
            ActionServer(built.agent, sampler, torch.device("cpu"), kept_layers=1)
