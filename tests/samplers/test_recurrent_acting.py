"""Acting with a recurrent state: what is remembered of whom, and what the learner gets of it."""

import numpy as np
import pytest
import torch
from recurrent_play import CPU, B, Policy, T, collect, config, make_agent
from tiers import PROCESSES, slow
from toy_envs import ToyEnv

from accel_rl.agents import RecurrentStates
from accel_rl.models import Sequences, one_step
from accel_rl.samplers import ActionServer, ParallelSampler, SerialSampler
from accel_rl.tools.policy import SavedPolicy


@pytest.mark.numeric
@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_state_of_each_step_is_that_of_one_environment_alone(reset_policy: Policy) -> None:
    """From the first step of its episode (or life) on, whatever the rollouts' borders."""
    agent = make_agent()
    state = torch.zeros(B, agent.model.state_size)
    is_first = torch.ones(B, dtype=torch.bool)
    num_begun = 0
    for batch in collect(SerialSampler(ToyEnv, config=config(reset_policy), seed=1)):
        kept = batch.recurrent_state
        assert kept is not None
        for b in range(B):
            own = state[b]
            for t in range(T):
                if not batch.valid[t, b]:  # it waits, and begins anew in the next rollout
                    is_first[b] = True
                    continue
                if is_first[b]:
                    own = torch.zeros_like(own)
                    num_begun += 1
                if t == 0:
                    torch.testing.assert_close(kept[0, b], own)
                one = Sequences(own.unsqueeze(0), torch.zeros(1, 1, dtype=torch.bool))
                with torch.no_grad():
                    _, after = agent.model(batch.observation[t, b : b + 1], one)
                own = after[0]
                torch.testing.assert_close(kept[t + 1, b], own)
                is_first[b] = batch.terminated[t, b] | batch.truncated[t, b]
            state[b] = own
    assert num_begun > 6 * B


@pytest.mark.numeric
@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_learner_computes_the_logits_that_acted(reset_policy: Policy) -> None:
    """Whole rollouts at once, or in parts of some rows, also of some columns."""
    agent = make_agent()
    for batch in collect(SerialSampler(ToyEnv, config=config(reset_policy), seed=2)):
        kept = batch.recurrent_state
        assert kept is not None
        sequences = batch.sequences(slice(0, T))
        assert sequences is not None
        observation = batch.observation[:T]
        with torch.no_grad():
            whole = agent.evaluate(observation.flatten(0, 1), sequences).logits.view(T, B, 4)
            late = batch.sequences(slice(3, 6))
            part = agent.evaluate(observation[3:6].flatten(0, 1), late).logits.view(3, B, 4)
            columns = torch.tensor([2, 0])
            own = observation[:, columns].flatten(0, 1)
            some = agent.evaluate(own, sequences.of(columns)).logits.view(T, 2, 4)
        for t in range(T):
            ended = batch.terminated[t - 1] | batch.truncated[t - 1]
            before = kept[t].masked_fill(ended.unsqueeze(1) & (t > 0), 0)
            rows = torch.zeros(1, B, dtype=torch.bool)
            with torch.no_grad():
                acted, _ = agent.model(observation[t], Sequences(before, rows))
            torch.testing.assert_close(whole[t], acted.logits)
            torch.testing.assert_close(some[t], acted.logits[columns])
            if 3 <= t < 6:
                torch.testing.assert_close(part[t - 3], acted.logits)


@PROCESSES
@pytest.mark.parametrize(
    "reset_policy, groups, workers",
    [("immediate", 4, 1), slow("wait", 2, 2), slow("immediate", 1, 2)],
)
def test_actions_and_states_are_the_same_however_environments_are_grouped(
    reset_policy: Policy, groups: int, workers: int
) -> None:
    options = config(reset_policy, num_groups=groups, num_workers=workers)
    expected = collect(SerialSampler(ToyEnv, config=options, seed=3))
    found = collect(ParallelSampler(ToyEnv, config=options, seed=3))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.action, other.action)
        assert one.recurrent_state is not None
        torch.testing.assert_close(one.recurrent_state, other.recurrent_state)


@pytest.mark.parametrize("keeps", [False, True])
def test_server_goes_on_from_a_state_and_keeps_a_rollout_if_asked(keeps: bool) -> None:
    expected = collect(SerialSampler(ToyEnv, config=config(), seed=4))
    sampler = SerialSampler(ToyEnv, config=config(), seed=4)
    server = ActionServer(make_agent(), sampler, CPU, keeps_rollout=keeps)
    with sampler:
        for number, batch in enumerate(expected):
            sampler.collect(server)
            if number == 2:  # that nobody asks for
                continue
            found = server.finish()
            assert found.recurrent_state is not None and batch.recurrent_state is not None
            torch.testing.assert_close(found.recurrent_state, batch.recurrent_state)
            if number == 3:
                state = server.get_state()
                server = ActionServer(make_agent(), sampler, CPU, keeps_rollout=keeps)
                server.set_state(state)
            elif number == 4:
                kept = found.recurrent_state.clone()
                sampler.collect(server)
                assert torch.equal(found.recurrent_state, kept) == keeps
                break


@pytest.mark.numeric
def test_greedy_agent_takes_the_most_probable_action_and_remembers_likewise() -> None:
    agent, generator = make_agent(), torch.Generator().manual_seed(0)
    observation = torch.randint(9, (64, 3), generator=generator)
    state = torch.randn(64, agent.model.state_size, generator=generator)
    noise = torch.rand(64, dtype=torch.float64, generator=generator)
    rows = torch.zeros(1, 64, dtype=torch.bool)
    with torch.no_grad():
        best = agent.evaluate(observation, Sequences(state, rows)).logits.argmax(1)
    given = observation, noise, slice(0, 64), one_step(state, None)
    drawn, after = agent.act(*given)
    greedy, after_greedy = agent.greedy().act(*given)
    assert torch.equal(greedy, best)
    assert not torch.equal(drawn, best)
    assert torch.equal(after, after_greedy)


def test_episodes_begin_behind_ends_and_behind_rows_without_a_step() -> None:
    """As of batches that reset an environment in a step of its own."""
    (batch,) = collect(SerialSampler(ToyEnv, config=config(), seed=1), 1)
    ends = [torch.zeros(T, B, dtype=torch.bool) for _ in range(3)]
    for row, each in enumerate(ends):
        each[row, row] = True
    terminated, truncated, waits = ends
    batch = batch._replace(terminated=terminated, truncated=truncated, valid=~waits)
    sequences = batch.sequences(slice(0, T))
    assert sequences is not None
    assert sequences.is_first.nonzero().tolist() == [[1, 0], [2, 1], [3, 2]]


def test_states_of_more_environments_go_on_from_those_of_fewer() -> None:
    agent = make_agent()
    few, many = RecurrentStates(agent, 1, 2, CPU), RecurrentStates(agent, 1, 3, CPU)
    observation = torch.ones(3, 3, dtype=torch.int64)
    noise = torch.zeros(3, dtype=torch.float64)
    never = torch.zeros(3, dtype=torch.bool)
    few.act(observation[:2], noise[:2], 0, slice(0, 2), never[:2])
    many.set_state(few.get_state())
    assert torch.equal(many.get_state()[:2], few.get_state())
    assert many.get_state()[0].any() and not many.get_state()[2].any()


def test_policy_of_a_run_with_vtrace_and_a_memory_gives_actions_alone() -> None:
    """Its agent tells log-probabilities, which only an action server asks for."""
    actions, observation = [], np.random.default_rng(0).integers(9, size=(5, 3))
    for tells_log_prob in (False, True):
        agent = make_agent()
        agent.tells_log_prob = tells_log_prob
        policy = SavedPolicy(agent, ToyEnv.spec, CPU, np.random.default_rng(1))
        is_first = (np.ones(5, np.bool_), np.zeros(5, np.bool_))
        actions.append([policy(observation, begun).tolist() for begun in is_first])
    assert actions[0] == actions[1]
