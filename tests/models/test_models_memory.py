"""Recurrent layers, networks with them, and what they are told of the step before."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from recurrent_play import CPU, B, Policy, T, config, copies
from torch import Tensor
from toy_envs import ToyEnv

from accel_rl.agents import PolicyAgent, QAgent
from accel_rl.models import MemorySpec, PreviousInputs, QHead, Sequences, make_model
from accel_rl.models.memory import GRU, LSTM, Memory
from accel_rl.samplers import ActionServer, ParallelSampler, SerialSampler
from accel_rl.spaces import Leaf, discrete

pytestmark = pytest.mark.numeric

F, NUM_INPUTS = 5, 4
SHAPES = (Leaf((6,), np.dtype(np.float32)), 4)
IMAGES = (Leaf((4, 104, 80), np.dtype(np.uint8)), 4)


@pytest.fixture(params=[LSTM, GRU], ids=["lstm", "gru"])
def case(request: pytest.FixtureRequest) -> tuple[Memory, Tensor, Tensor, Tensor]:
    """A layer, inputs, a state, and episodes that begin in the first row, within and at the end."""
    torch.manual_seed(0)
    cell: Memory = request.param(F, NUM_INPUTS)
    for parameter in cell.parameters():  # biases, too
        torch.nn.init.normal_(parameter, std=0.7)
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[0, 0] = is_first[3, 1] = is_first[4, 1] = is_first[T - 1, 2] = True
    return cell, torch.randn(T * B, NUM_INPUTS), torch.randn(B, cell.state_size), is_first


def slow(
    cell: Memory, x: Tensor, state: Tensor, is_first: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Outputs ``[T, B, F]`` and the state after them, one environment and unit after another."""

    def sigmoid(z: float) -> float:
        return 1 / (1 + np.exp(-z))

    w, u = cell.input.weight.detach().double().numpy(), cell.recurrent.weight.detach().numpy()
    bias, inputs = cell.input.bias.detach().numpy(), x.view(T, B, NUM_INPUTS).double().numpy()
    outputs, after = np.zeros((T, B, F)), state.double().numpy().copy()
    for b in range(B):
        for t in range(T):
            if is_first[t, b]:
                after[b] = 0
            before = after[b].copy()
            push, pull = w @ inputs[t, b] + bias, u @ before[:F]
            for j in range(F):
                if isinstance(cell, LSTM):  # Gers et al. 2000
                    i, f, o, g = ((push + pull)[k * F + j] for k in range(4))
                    after[b, F + j] = sigmoid(f) * before[F + j] + sigmoid(i) * np.tanh(g)
                    after[b, j] = sigmoid(o) * np.tanh(after[b, F + j])
                else:  # Cho et al. 2014
                    r, z = (sigmoid((push + pull)[k * F + j]) for k in range(2))
                    n = np.tanh(push[2 * F + j] + r * pull[2 * F + j])
                    after[b, j] = (1 - z) * n + z * before[j]
            outputs[t, b] = after[b, :F]
    return outputs, after


def test_layer_is_that_of_the_formulas_with_zeros_where_episodes_begin(case: Any) -> None:
    cell, x, state, is_first = case
    for found, expected in zip(cell(x, state, is_first), slow(*case), strict=True):
        np.testing.assert_allclose(
            found.view(expected.shape).detach(), expected, rtol=1e-4, atol=1e-6
        )


def test_layer_in_parts_goes_on_from_the_state_before_and_is_in_float32(case: Any) -> None:
    cell, x, state, is_first = case
    whole, after = cell(x, state, is_first)
    for t in range(T):
        part, state = cell(x[t * B : (t + 1) * B], state, is_first[t : t + 1])
        torch.testing.assert_close(part, whole[t * B : (t + 1) * B])
    torch.testing.assert_close(state, after)
    with torch.autocast("cpu", torch.bfloat16):
        short, kept = cell(x, case[2], is_first)
    assert short.dtype == kept.dtype == torch.float32
    assert 0 < float((short - whole).detach().abs().max()) < 0.1


def test_nothing_before_an_episode_has_a_gradient_from_it(case: Any) -> None:
    cell, x, state, is_first = case
    x.requires_grad_()
    outputs, _ = cell(x, state, is_first)
    outputs.view(T, B, F)[4:, 1].sum().backward()
    touched = x.grad.view(T, B, NUM_INPUTS).abs().sum(2) > 0
    expected = torch.zeros(T, B, dtype=torch.bool)
    expected[4:, 1] = True
    assert torch.equal(touched, expected)


@pytest.mark.parametrize(
    ("name", "shapes", "state_size"),
    [("mlp", SHAPES, 4 * 64), ("a3c", IMAGES, 2 * 256), ("nature", IMAGES, 2 * 512)],
)
def test_recurrent_model_has_the_layers_of_the_other_and_lstms_as_wide(
    name: str, shapes: tuple[Leaf, int], state_size: int
) -> None:
    model = make_model(name, *shapes, MemorySpec())
    assert model.state_size == state_size
    observation = torch.randint(256, (T * B, *shapes[0].shape)).to(
        torch.uint8 if name != "mlp" else torch.float32
    )
    is_first = torch.zeros(T, B, dtype=torch.bool)
    output, state = model(observation, Sequences(torch.zeros(B, model.state_size), is_first))
    assert output.logits.shape == (T * B, 4)
    assert output.value.shape == (T * B,)
    assert state.shape == (B, state_size)
    plain = make_model(name, *shapes)
    own = {k: p.shape for k, p in model.named_parameters() if "memory" not in k}
    assert sorted(own.values()) == sorted(p.shape for p in plain.parameters())
    assert bool(state.any())


def test_value_of_an_mlp_leaves_its_policy_alone() -> None:
    model = make_model("mlp", *SHAPES, MemorySpec())
    observation, is_first = torch.randn(T * B, 6), torch.zeros(T, B, dtype=torch.bool)
    output, _ = model(observation, Sequences(torch.zeros(B, model.state_size), is_first))
    output.value.sum().backward()
    moved = {name for name, each in model.named_parameters() if each.grad is not None}
    assert moved
    assert all(name.startswith("value.") for name in moved)


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_networks_have_the_memory_that_is_asked_for(kind: Any, previous: bool) -> None:
    spec = MemorySpec(kind, PreviousInputs(discrete(4)) if previous else None)
    shapes = Leaf((6,), np.dtype(np.float32)), 4
    states = 2 if kind == "lstm" else 1
    size = 5 if previous else 0
    for model, memories in (
        (make_model("mlp", *shapes, spec), 2),
        (make_model("mlp", shapes[0], QHead(4, 1, True), spec), 1),
    ):
        assert model.state_size == memories * states * 64
        weights = [p for n, p in model.named_parameters() if n.endswith("memory.input.weight")]
        gates = 4 if kind == "lstm" else 3
        assert [p.shape for p in weights] == [(gates * 64, 64 + size)] * memories
        told = torch.zeros(T, B, size) if previous else None
        is_first = torch.zeros(T, B, dtype=torch.bool)
        sequences = Sequences(torch.zeros(B, model.state_size), is_first, told)
        _, state = model(torch.randn(T * B, 6), sequences)
        assert state.shape == (B, model.state_size)


SPACES: dict[str, Any] = {
    "one": (discrete(3), torch.tensor([2, 0]), [[0, 0, 1], [1, 0, 0]]),
    "several": (
        Leaf((2,), np.dtype(np.int64), np.array([0, 5]), np.array([1, 7])),
        torch.tensor([[1, 5], [0, 7]]),
        [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]],
    ),
    "floats": (
        Leaf((2,), np.dtype(np.float32), -1, 1),
        torch.tensor([[0.5, -1.0], [0.25, 0.0]]),
        [[0.5, -1.0], [0.25, 0.0]],
    ),
    "floats far from 0": (
        Leaf((2,), np.dtype(np.float32), (100, -1), (200, 1)),
        torch.tensor([[150, 0.5], [175, 0]]),
        [[0, 0.5], [0.5, 0]],
    ),
    "mapping": (
        {"a": discrete(2), "b": Leaf((1,), np.dtype(np.float32), -1, 1)},
        {"a": torch.tensor([1, 0]), "b": torch.tensor([[0.5], [-0.5]])},
        [[0, 1, 0.5], [1, 0, -0.5]],
    ),
}


@pytest.mark.parametrize("space, action, expected", SPACES.values(), ids=SPACES)
def test_actions_are_told_as_indicators_or_floats_and_rewards_behind_them(
    space: Any, action: Any, expected: Any
) -> None:
    inputs = PreviousInputs(space)
    found = inputs(action, torch.tensor([-3.0, 4.5]))
    rows = [[*row, reward] for row, reward in zip(expected, (-3.0, 4.5), strict=True)]
    assert inputs.size == len(rows[0]) and found.tolist() == rows


def make_agent(kind: str = "policy", memory: Any = "lstm") -> Any:
    torch.manual_seed(0)
    spec = MemorySpec(memory, PreviousInputs(discrete(4)))
    shapes = Leaf((3,), np.dtype(np.int64)), 4
    if kind == "policy":
        model = make_model("mlp", *shapes, spec)
        for name, parameter in model.named_parameters():
            parameter.data.mul_(100 if name == "policy.heads.weight" else 3)
        return PolicyAgent(model)
    q_model = make_model("mlp", shapes[0], QHead(4), spec)
    for parameter in q_model.parameters():
        parameter.data.mul_(3)
    return QAgent(q_model, None, torch.tensor([0.3]))


@pytest.mark.parametrize(
    ("kind", "memory", "reset_policy"), [("policy", "gru", "immediate"), ("q", "lstm", "wait")]
)
def test_each_step_is_told_the_action_and_reward_before_it_and_zeros_at_first(
    kind: str, memory: str, reset_policy: Policy
) -> None:
    """Whatever the rollouts' borders, and whether anybody asks for the rollout."""
    agent = make_agent(kind, memory)
    sampler = SerialSampler(ToyEnv, config=config(reset_policy, num_groups=2), seed=1)
    server = ActionServer(agent, sampler, CPU)
    state, is_first = torch.zeros(B, agent.model.state_size), torch.ones(B, dtype=torch.bool)
    told = torch.zeros(B, 5)
    num_told = 0
    with sampler:
        for number in range(7):
            sampler.collect(server)
            if number == 3:  # as evaluations do; what it has seen is known all the same
                rollout = sampler.rollout
                fields = (rollout.observation, rollout.action, rollout.reward, rollout.valid)
                seen, action, reward, valid = (torch.from_numpy(each.copy()) for each in fields)
                ended = torch.from_numpy(rollout.terminated | rollout.truncated)
                kept = None
            else:
                batch = copies(server.finish())
                seen, action, reward, valid = batch[0], batch[1], batch[2], batch[5]
                ended, kept = batch.terminated | batch.truncated, batch
                assert batch.previous is not None and batch.recurrent_state is not None
                sequences = batch.sequences(slice(2, T))
                assert sequences is not None and sequences.previous is not None
            for b in range(B):
                for t in range(T):
                    if not valid[t, b]:
                        is_first[b] = True
                        continue
                    if is_first[b]:
                        state[b], told[b] = 0, 0
                    num_told += bool(told[b].any())
                    if kept is not None:
                        if t == 0 or not is_first[b]:
                            torch.testing.assert_close(kept.previous[t, b], told[b])
                            torch.testing.assert_close(kept.recurrent_state[t, b], state[b])
                        if t >= 2:
                            torch.testing.assert_close(sequences.previous[t - 2, b], told[b])
                    own = (
                        state[b : b + 1],
                        torch.zeros(1, 1, dtype=torch.bool),
                        told[b].view(1, 1, 5),
                    )
                    with torch.no_grad():
                        _, after = agent.model(seen[t, b : b + 1], Sequences(*own))
                    state[b] = after[0]
                    told[b] = 0
                    told[b, int(action[t, b])] = 1
                    told[b, 4] = reward[t, b]
                    is_first[b] = ended[t, b]
            if kept is not None:  # what follows the last step, also where an episode has ended
                there = valid[-1]
                torch.testing.assert_close(kept.previous[T][there], told[there])
    assert num_told > 50


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["policy", "q"])
def test_what_is_told_is_the_same_with_workers_and_groups_and_goes_on_from_a_state(
    kind: str,
) -> None:
    options = config(num_groups=2, num_workers=2)
    found = []
    for sampler_type in (SerialSampler, ParallelSampler):
        sampler = sampler_type(ToyEnv, config=options, seed=3)
        server, batches = ActionServer(make_agent(kind), sampler, CPU), []
        with sampler:
            for number in range(6):
                sampler.collect(server)
                batches.append(copies(server.finish()))
                if number == 2 and sampler_type is ParallelSampler:
                    state = server.get_state()
                    server = ActionServer(make_agent(kind), sampler, CPU)
                    server.set_state(state)
                    sampler.rollout.reward[:] = 7  # as if it had just been made
        found.append(batches)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.action, other.action)
        assert one.previous is not None and other.previous is not None
        torch.testing.assert_close(one.previous, other.previous)
        torch.testing.assert_close(one.recurrent_state, other.recurrent_state)


def test_too_many_values_of_an_action_are_refused() -> None:
    with pytest.raises(ValueError, match=r"previous_action_reward=true indicates .* 1000 values"):
        PreviousInputs(discrete(1001))
