"""Q-learning from sequences, against both networks unrolled step by step."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import learner_of
from recurrent_play import CPU, plain_steps
from tiers import first_quick
from torch import Tensor

from accel_rl.agents import RecurrentStates, RolloutTensors
from accel_rl.algos import DQN, DQNConfig, LearnerSpec, NetworkSpec
from accel_rl.algos.q_learning import sequence_outputs, sequence_priority
from accel_rl.algos.replay import SequenceBatch, SequenceReplay
from accel_rl.algos.value_distributions import project, rescale, rescale_back
from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import EnvSpec
from accel_rl.models.memory import GRU
from accel_rl.parallel import Local
from accel_rl.spaces import Leaf, discrete

pytestmark = pytest.mark.numeric

T, B, A = 4, 6, 3
BURN_IN, LENGTH = 2, 4
ENV = EnvSpec(name="toy", observation=Leaf((3,), np.dtype(np.float32)), action=discrete(A))
MASKED_ENV = EnvSpec(
    name="masked toy",
    observation={"observation": ENV.observation, "action_mask": Leaf((A,), np.dtype(np.int8))},
    action=discrete(A),
)


def make(
    env: EnvSpec = ENV, memory: str = "lstm", *, is_told: bool = False, **options: Any
) -> tuple[DQN, Any, Local]:
    small = {
        "batch_size": 20,
        "learning_starts": 120,
        "buffer_size": 240,
        "target_update_interval": 96,
    }
    sequences = {"sequence_length": LENGTH, "burn_in": BURN_IN, "training_intensity": 1.0}
    config = DQNConfig(**{**small, **sequences, **options})
    torch.manual_seed(0)
    which: Any = {"memory": memory, "previous_action_reward": is_told}
    agent = config.make_agent(NetworkSpec("auto", env, CPU, **which))
    assert agent.remembers
    for each in agent.model.parameters():  # large enough for what is remembered to count
        each.data.add_(torch.randn_like(each), alpha=0.1)
    learner = learner_of(config, agent, LearnerSpec(env, B, T, 0))
    return learner, agent, learner.sync


class Play:
    """Random observations and ends, with the actions and states of ``agent``; all is recorded."""

    def __init__(self, agent: Any, *, is_masked: bool = False, seed: int = 0) -> None:
        self.states = RecurrentStates(agent, T, B, CPU)
        self.is_masked = is_masked
        self.g = torch.Generator().manual_seed(seed)
        self.last, self.is_first = self.observe(B), torch.ones(B, dtype=torch.bool)
        self.rows: list[dict[str, Any]] = []  # of all B environments, step by step
        self.finals: dict[tuple[int, int], Any] = {}  # (step, environment)

    def observe(self, num: int) -> Any:
        seen = torch.randn(num, 3, generator=self.g)
        if not self.is_masked:
            return seen
        mask = (torch.rand(num, A, generator=self.g) < 0.6).to(torch.int8)
        mask[:, 1] = 1
        return {"observation": seen, "action_mask": mask}

    def __iter__(self) -> Iterator[RolloutTensors]:
        while True:
            yield self.rollout()

    def rollout(self) -> RolloutTensors:
        finals: list[tuple[int, int, Any]] = []
        rows = []
        for t in range(T):
            noise = torch.rand(B, dtype=torch.float64, generator=self.g)
            reward = self.rows[-1]["reward"] if self.rows else None
            told = noise, t, slice(0, B), self.is_first, reward
            action = self.states.act(self.last, *told)
            kind = torch.rand(B, generator=self.g)
            row = {
                "observation": self.last,
                "is_first": self.is_first,
                "action": action,
                "reward": torch.randn(B, generator=self.g) * 3,
                "terminated": kind < 0.1,
                "truncated": kind > 0.88,
            }
            self.is_first = row["terminated"] | row["truncated"]
            for b in row["truncated"].nonzero().flatten().tolist():
                final = self.observe(1)
                self.finals[len(self.rows), b] = final
                finals.append((t, b, final))
            self.last = self.observe(B)
            self.rows.append(row)
            rows.append(row)
        remembered = self.states.finish(self.rows[-1]["reward"])
        observation = stack([*(row["observation"] for row in rows), self.last])
        fields = ("action", "reward", "terminated", "truncated")
        given = {name: torch.stack([row[name] for row in rows]) for name in fields}
        none = stack([self.observe(1)])
        final = cat([each for _, _, each in finals]) if finals else first(none, 0)
        return RolloutTensors(
            observation=observation,
            **given,
            valid=torch.ones(T, B, dtype=torch.bool),
            final_observation=final,
            final_step=torch.tensor([t for t, _, _ in finals], dtype=torch.int64),
            final_env=torch.tensor([b for _, b, _ in finals], dtype=torch.int64),
            recurrent_state=remembered.state.clone(),
            previous=None if remembered.previous is None else remembered.previous.clone(),
        )


def each_leaf(change: Any, trees: list[Any]) -> Any:
    if isinstance(trees[0], dict):
        return {name: change([tree[name] for tree in trees]) for name in trees[0]}
    return change(trees)


def stack(trees: list[Any]) -> Any:
    return each_leaf(torch.stack, trees)


def cat(trees: list[Any]) -> Any:
    return each_leaf(torch.cat, trees)


def first(tree: Any, num: int) -> Any:
    return each_leaf(lambda each: each[0][0, :num], [tree])


def of(tree: Any, b: int) -> tuple[Tensor, Any]:
    """The observation and the mask of one environment."""
    if isinstance(tree, dict):
        return tree["observation"][b], tree["action_mask"][b]
    return tree[b], None


def tell(row: dict[str, Any], b: int) -> Tensor:
    """The action and the reward of a step."""
    told = torch.zeros(A + 1)
    told[int(row["action"][b])] = 1
    told[A] = row["reward"][b]
    return told


class SlowNetwork:
    """One environment, one step, by operations that autograd knows."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, observation: Tensor, state: Tensor, told: Tensor) -> Any:
        """``[A, K]``, and the state after it."""
        x, before = self.model.network(observation.unsqueeze(0)), state.unsqueeze(0)
        if self.model.previous is not None:
            x = torch.cat((x, told.unsqueeze(0)), 1)
        memory = self.model.memory
        if isinstance(memory, GRU):
            push, pull = memory.input(x), memory.recurrent(before)
            r, z = (push[:, :128] + pull[:, :128]).sigmoid().chunk(2, 1)
            n = (push[:, 128:] + r * pull[:, 128:]).tanh()
            h = (1 - z) * n + z * before
            after = h[0]
        else:
            h = plain_steps(memory, x, before, torch.zeros(1, 1, dtype=torch.bool))
            i, f, _, g = (memory.input(x) + memory.recurrent(before[:, :64])).chunk(4, 1)
            c = f.sigmoid() * state[64:] + i.sigmoid() * g.tanh()
            after = torch.cat((h[0], c[0]))
        advantage = self.model.heads.advantage(h).view(A, -1)
        if self.model.heads.value is not None:
            shared = h * 0.5**0.5 + h.detach() * (1 - 0.5**0.5)
            advantage = self.model.heads.advantage(shared).view(A, -1)
            advantage = self.model.heads.value(shared) + advantage - advantage.mean(0)
        return advantage, after

    def unroll(self, play: Play, b: int, start: int, num: int, state: Tensor) -> Any:
        """What it gives at ``num`` steps, and at final observations by their step."""
        outputs, finals = [], {}
        for r, s in enumerate(range(start, start + num)):
            told = tell(play.rows[s - 1], b)
            if play.rows[s]["is_first"][b]:
                state, told = torch.zeros_like(state), torch.zeros_like(told)
            output, state = self(of(play.rows[s]["observation"], b)[0], state, told)
            outputs.append(output)
            if (s, b) in play.finals:
                behind = self(of(play.finals[s, b], 0)[0], state, tell(play.rows[s], b))
                finals[s] = behind[0].detach()
            if r == BURN_IN - 1:
                state = state.detach()
        return outputs, finals


def slow_loss(
    learner: DQN, play: Play, number: Tensor, env: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean over all steps, and the priority of each sequence; all by loops."""
    config, agent = learner.config, learner.agent
    replay = learner.replay
    assert isinstance(replay, SequenceReplay)
    n, interval = config.n_step, LENGTH // 2
    num_rows = BURN_IN + LENGTH + n
    online, target = SlowNetwork(agent.model), SlowNetwork(learner._target_model)
    total, priorities = torch.zeros(()), []
    for j, (m, b) in enumerate(zip(number.tolist(), env.tolist(), strict=True)):
        state = replay._state[m % replay.num_slots, b][: agent.model.state_size]
        start = m * interval
        q, q_final = online.unroll(play, b, start, num_rows, state)
        with torch.no_grad():
            z, z_final = target.unroll(play, b, start, num_rows, state)
        sizes = []
        for k in range(BURN_IN, BURN_IN + LENGTH):
            return_, discount, s = 0.0, 1.0, start + k
            behind, chooser, seen = z[k + n], q[k + n].detach(), play.rows[s + n]["observation"]
            seen_b = b
            for i in range(n):
                row = play.rows[s + i]
                return_ += discount * float(row["reward"][b])
                discount *= config.gamma
                if row["terminated"][b]:
                    discount = 0.0
                    break
                if row["truncated"][b]:
                    behind, chooser = z_final[s + i], q_final[s + i]
                    seen, seen_b = play.finals[s + i, b], 0
                    break
            if not config.double:
                chooser = behind
            _, mask = of(seen, seen_b)
            value = agent.q_values(chooser.unsqueeze(0))[0]
            allowed = [a for a in range(A) if mask is None or mask[a]]
            best = max(allowed, key=lambda a: float(value[a]))
            action = int(play.rows[s]["action"][b])
            if agent.support is None:
                following = float(behind[best, 0])
                if config.value_rescaling:
                    following = slow_inverse(following)
                goal = return_ + discount * following
                if config.value_rescaling:
                    goal = np.sign(goal) * (np.sqrt(abs(goal) + 1) - 1) + 0.001 * goal
                size = (goal - q[k][action, 0]).abs()
                huber = size**2 / 2 if size < 1 else size - 0.5
                sizes.append(float(size.detach().clamp(max=1)))
            else:
                given = torch.tensor([return_]), torch.tensor([discount])
                goal = project(*given, behind[best].softmax(0).unsqueeze(0), agent.support)[0]
                huber = -(goal * q[k][action].log_softmax(0)).sum()
                entropy = -(goal * goal.clamp(min=1e-30).log()).sum()
                sizes.append(float(huber.detach() - entropy))
            total = total + weight[j] * huber / (len(number) * LENGTH)
        priorities.append(0.9 * max(sizes) + 0.1 * sum(sizes) / LENGTH)
    return total, torch.tensor(priorities)


def slow_inverse(y: float) -> float:
    """By bisection of the rescaling itself."""
    low, high = -1e6, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        h = np.sign(middle) * (np.sqrt(abs(middle) + 1) - 1) + 0.001 * middle
        low, high = (middle, high) if h < y else (low, middle)
    return low


CASES: dict[str, dict[str, Any]] = {
    "dqn": {},
    "rescaled": {"double": True, "value_rescaling": True, "n_step": 2},
    "told-gru": {"double": True, "n_step": 2, "is_told": True, "memory": "gru"},
    "double-dueling-3-step": {"double": True, "dueling": True, "n_step": 3},
    "double-categorical": {"double": True, "num_atoms": 7, "n_step": 2, "optimizer": "adam"},
    "told-lstm": {"dueling": True, "is_told": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("env", [ENV, MASKED_ENV], ids=["plain", "masked"])
@pytest.mark.parametrize("options", first_quick(CASES.values(), 3), ids=CASES)
def test_loss_and_gradient_are_those_of_a_loop_over_each_sequence(
    options: dict[str, Any], env: EnvSpec
) -> None:
    learner, agent, sync = make(env, prioritized=True, gamma=0.9, **options)
    play = Play(agent, is_masked=env is MASKED_ENV)
    for _ in range(12):
        learner.replay.append(play.rollout())
    learner._target.parameter.add_(torch.randn_like(learner._target.parameter), alpha=0.05)
    low, high = learner.replay.low, learner.replay.high
    g = torch.Generator().manual_seed(1)
    number, env_of = (
        torch.randint(low, high, (9,), generator=g),
        torch.randint(B, (9,), generator=g),
    )
    weight = torch.rand(9, generator=g)
    batch = learner.replay.gather(number, env_of)
    assert isinstance(batch, SequenceBatch)
    assert batch.is_first.shape[1] > 9 and batch.is_first[1:].any()  # columns of final observations
    expected, priorities = slow_loss(learner, play, number, env_of, weight)
    loss, metrics, priority = learner.loss(batch, weight)
    assert loss.shape == (LENGTH, 9)
    torch.testing.assert_close(loss.sum(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["loss"], expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(priority, priorities, rtol=1e-3, atol=1e-4)
    flat, gradients = sync.parameters, []
    for each in (loss.sum(), expected):
        flat.zero_gradient()
        each.backward()  # type: ignore[no-untyped-call]
        gradients.append(flat.gradient.clone())
    own, slow = gradients
    assert float((own - slow).norm() / slow.norm()) < 1e-3


def test_rescaling_is_undone_by_its_inverse_and_is_the_formula() -> None:
    x = torch.cat((torch.linspace(-3, 3, 25), torch.tensor([-1e4, -100.0, 1e4, 1e-4])))
    expected = [np.sign(v) * (np.sqrt(abs(v) + 1) - 1) + 0.001 * v for v in x.tolist()]
    np.testing.assert_allclose(rescale(x), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rescale_back(rescale(x)), x, rtol=1e-4, atol=1e-6)
    for y in (-20.0, -0.3, 0.0, 0.01, 7.0):
        assert rescale_back(torch.tensor(y)).item() == pytest.approx(slow_inverse(y), abs=1e-3)
    # By hand: sqrt(3 + 1) - 1 = 1, and 3 / 1000 more.
    assert rescale(torch.tensor(3.0)).item() == pytest.approx(1.003)


def test_priority_of_a_sequence_is_mostly_its_largest_and_of_valid_steps_alone() -> None:
    priority = torch.tensor([[1.0, 5.0, 0.0], [3.0, 9.0, 0.0]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    found = sequence_priority(priority, valid, 0.9)
    # By hand: 0.9 * 3 + 0.1 * 2 = 2.9; of one step 5; nothing valid: the least there is.
    torch.testing.assert_close(found, torch.tensor([2.9, 5.0, 1e-6]))


@pytest.mark.parametrize("memory, is_told", [("lstm", False), ("gru", True)])
def test_stored_states_are_those_computed_again_while_the_network_is_the_same(
    memory: str, is_told: bool
) -> None:
    learner, agent, _ = make(memory=memory, is_told=is_told)
    play, replay = Play(agent), learner.replay
    assert isinstance(replay, SequenceReplay)
    for _ in range(12):
        replay.append(play.rollout())
    num = 0
    for m in range(replay.low, replay.high - 1):
        batch = replay.gather(torch.full((B,), m), torch.arange(B))
        following = replay.gather(torch.full((B,), m + 1), torch.arange(B))
        rows = batch.is_first.shape[0]
        seen = batch.observation.view(rows, -1, 3)[: LENGTH // 2, :B].flatten(0, 1)
        with torch.no_grad():
            sequences = batch.sequences.of(slice(0, B)).rows(slice(0, LENGTH // 2))
            _, after = agent.model(seen, sequences)
        goes_on = ~batch.is_first[LENGTH // 2, :B]
        torch.testing.assert_close(after[goes_on], following.state[:B][goes_on])
        assert not following.state[:B][~goes_on].any()
        num += int(goes_on.sum())
    assert num > 20


def test_values_behind_the_burn_in_are_those_of_the_whole_sequence() -> None:
    learner, agent, _ = make()
    play = Play(agent)
    for _ in range(12):
        learner.replay.append(play.rollout())
    batch = learner.replay.gather(torch.arange(3) + learner.replay.low, torch.arange(3))
    behind, whole = (
        sequence_outputs(agent, learner._target_model, batch, "float32", burn_in=n, double=False)
        for n in (BURN_IN, 0)
    )
    torch.testing.assert_close(behind.target, whole.target)
    # Rows are counted from the first that is learned from.
    torch.testing.assert_close(behind.online[: -3 * BURN_IN], whole.online[3 * BURN_IN :])


def test_burn_in_renews_the_state_with_the_present_parameters_and_without_gradient() -> None:
    """Stored states of before do not matter once enough steps have been seen again."""
    learner, agent, _ = make()
    play = Play(agent)
    for _ in range(12):
        learner.replay.append(play.rollout())
    batch = learner.replay.gather(torch.arange(3) + learner.replay.low, torch.arange(3))
    assert isinstance(batch, SequenceBatch)
    seen = batch.observation.clone().requires_grad_()
    loss, _, _ = learner.loss(batch._replace(observation=seen))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    rows, columns = batch.is_first.shape
    touched = seen.grad.view(rows, columns, 3).abs().sum((1, 2)) > 0  # type: ignore[union-attr]
    assert touched.tolist() == [False] * BURN_IN + [True] * LENGTH + [False]


@pytest.mark.parametrize(
    "options", [{"is_told": True}, {"prioritized": True, "num_atoms": 5, "n_step": 2}]
)
def test_learner_goes_on_from_a_state_with_its_replay_to_the_bit(options: dict[str, Any]) -> None:
    learner, agent, sync = make(save_replay=True, **options)
    source = iter(Play(agent))
    for _ in range(12):
        learner.update(next(source), progress=0.1)
    other, _, other_sync = make(save_replay=True, **options)
    other.set_state(learner.get_state())
    other_sync.load_state_dict(sync.state_dict())
    for _ in range(5):
        batch = next(source)
        one, two = learner.update(batch, 0.2), other.update(batch, 0.2)
        assert one and all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(sync.parameters.parameter, other_sync.parameters.parameter)


def test_training_intensity_counts_the_steps_of_sequences() -> None:
    learner, agent, sync = make(training_intensity=2.5)
    drawn: list[SequenceBatch] = []
    gather = learner.replay.gather
    learner.replay.gather = lambda *at: drawn.append(gather(*at)) or drawn[-1]  # type: ignore
    for iteration, batch in zip(range(1, 21), Play(agent), strict=False):
        learner.update(batch, progress=0.0)
        learning_steps = max(0, iteration * T * B - 120)
        assert sync.num_updates == int(learning_steps * 2.5 / 20)
    assert len(drawn) == sync.num_updates > 30
    assert all(batch.valid.numel() == 20 for batch in drawn)


def test_options_of_the_command_line_make_sequences() -> None:
    config = parse_arguments(
        ["algo=rainbow", "memory=lstm", "sequence_length=16", "burn_in=8", "batch_size=64"]
    )
    assert isinstance(config.learner, DQNConfig)
    assert (config.learner.sequence_length, config.learner.burn_in) == (16, 8)
    assert config.learner.sequence_steps == 16 + 8 + 3


def test_replay_too_small_for_sequences_is_refused_with_what_fits() -> None:
    with pytest.raises(
        ValueError, match=r"learning_starts is 60; .* sequences of 2 \+ 4 .* least 84"
    ):
        make(learning_starts=60)
