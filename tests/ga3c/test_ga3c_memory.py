"""GA3C with a network that remembers: what it is told, against episodes that are gone through."""

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from queued_play import make_sampler, policy, take_all
from run_files import numbers_of
from saved_runs import quiet
from tiers import PROCESSES, SLOW, slow
from torch import Tensor

from accel_rl.agents import PolicyAgent
from accel_rl.algos.actor_critic import evaluate
from accel_rl.cli.parse import parse_arguments
from accel_rl.ga3c.learner import GA3C, GA3CConfig, Samples
from accel_rl.ga3c.predictor import Predictor
from accel_rl.ga3c.segments import Segment
from accel_rl.ga3c.threads import line_up
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.models import MemorySpec, PreviousInputs, Sequences, make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.spaces import Leaf
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.tools.policy import load_policy
from accel_rl.training.train import train

pytestmark = [pytest.mark.numeric, PROCESSES]

GAMMA = 0.9
COUNTING = partial(CountingEnv, max_episode_steps=12, truncation=0.4, life_interval=7)


def make_agent(kind: str, is_told: bool) -> PolicyAgent:
    torch.manual_seed(0)
    spec = MemorySpec(kind, PreviousInputs(CountingEnv.spec.action) if is_told else None)  # type: ignore[arg-type]
    model = make_model("mlp", Leaf((3,), np.dtype(np.int64)), 4, spec)
    with torch.no_grad():  # observations have an environment's number, which is large
        for name, parameter in model.named_parameters():
            if parameter.shape[1:] == (3,):
                parameter[:, 0] = 0
                assert "weight" in name
    return PolicyAgent(model)


def played(agent: PolicyAgent, is_told: bool) -> list[Segment]:
    """Segments of two agents with two environments each, with parameters that stay."""
    flat = FlatParameters(agent.model)
    sync = VersionSync(flat, Versions(flat.parameter, GA3CConfig().rule, None))
    with_state = agent.model.state_size + (agent.model.previous.size if is_told else 0)
    sampler = make_sampler(COUNTING, 2, 2, gamma=GAMMA, horizon=4)
    sampler.remember(with_state, tells_reward=is_told)
    policy = Predictor(agent, sync, torch.device("cpu"), True)
    with sampler:
        while sampler.steps < 250:
            sampler.serve(policy)
        return take_all(sampler)


def step(model: Any, observation: Any, state: Tensor, previous: Tensor | None) -> Any:
    """One observation of one environment: probabilities, value, and the state behind it."""
    told = None if previous is None else previous[None]
    sequences = Sequences(state, torch.zeros(1, 1, dtype=torch.bool), told)
    with torch.no_grad():
        output, after = model(torch.as_tensor(observation)[None], sequences)
    return output.logits.softmax(1)[0], float(output.value), after


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "is_told"), [("lstm", True), slow("gru", False)])
def test_segments_begin_with_the_state_of_an_episode_gone_through_by_hand(kind, is_told) -> None:
    agent = make_agent(kind, is_told)
    model = agent.model
    segments = played(agent, is_told)
    episodes = defaultdict(list)
    for segment in segments:
        episodes[tuple(segment.observation[0, :2].tolist())].append(segment)
    num_begun_later = num_cut_off = 0
    for of_episode in episodes.values():
        state, previous = torch.zeros(1, model.state_size), None
        if is_told:
            previous = torch.zeros(1, 5)
        for segment in sorted(of_episode, key=lambda each: each.observation[0, 2]):
            first = int(segment.observation[0, 2])
            if first % 7 == 0:  # a reset, or a life was lost
                state = torch.zeros_like(state)
                previous = None if previous is None else torch.zeros_like(previous)
            expected = state if previous is None else torch.cat((state, previous), 1)
            np.testing.assert_allclose(segment.state, expected[0], rtol=1e-4, atol=1e-5)
            num_begun_later += bool(expected.any())
            for t in range(len(segment)):
                pi, _, state = step(model, segment.observation[t], state, previous)
                probability = float(pi[segment.action[t]])
                assert segment.behaviour_probability[t] == pytest.approx(probability, rel=1e-4)
                if previous is not None:
                    previous = torch.zeros(1, 5)
                    previous[0, int(segment.action[t])] = 1
                    previous[0, 4] = first + t + 1  # the reward is the step
            # The value behind it: 0, or of the next observation with what is remembered there.
            behind = segment.return_[-1] - (first + len(segment))
            if behind != 0:
                following = segment.observation[-1] + np.array([0, 0, 1])
                _, value, _ = step(model, following, state, previous)
                assert behind / GAMMA == pytest.approx(value, rel=1e-3, abs=1e-4)
                num_cut_off += len(segment) < 4
            else:
                state = torch.zeros_like(state)
    assert num_begun_later > 3 and num_cut_off > 3  # how many depends on the agents' speed


def samples_of(segments: list[Segment], agent: PolicyAgent) -> Samples:
    sequences, place = line_up(segments, agent.model)
    fields = {
        name: torch.from_numpy(np.concatenate([getattr(each, name) for each in segments]))
        for name in ("observation", "action", "return_", "behaviour_probability")
    }
    discount = [[GAMMA] * (len(each) - 1) + [0] for each in segments]
    return Samples(
        **fields,
        discount=torch.tensor([each for row in discount for each in row]),
        longest=max(map(len, segments)),
        sequences=sequences,
        place=place,
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, slow(False)])
def test_trainer_computes_what_the_predictor_did_and_learns_like_autograd(is_told: bool) -> None:
    """Segments of several lengths side by side, against each of them alone."""
    agent = make_agent("gru", is_told)
    segments = played(agent, is_told)[:40]
    assert len({len(each) for each in segments}) > 3
    config = GA3CConfig(vtrace=True, gamma=GAMMA)
    sync = Local(FlatParameters(agent.model), config.rule, None)
    total = torch.zeros(())
    for segment in segments:
        alone, _ = line_up([segment], agent.model)
        output = evaluate(agent, torch.from_numpy(segment.observation), "float32", alone)
        log_prob = output.logits.log_softmax(1)
        taken = log_prob[torch.arange(len(segment)), torch.from_numpy(segment.action)]
        np.testing.assert_allclose(
            taken.detach().exp(), segment.behaviour_probability, rtol=1e-4, atol=1e-6
        )
        # With ratios of 1, V-trace gives the n-step returns.
        error = torch.from_numpy(segment.return_) - output.value
        entropy = -(log_prob.exp() * log_prob).sum()
        total = total - (error.detach() * taken).sum() + 0.5 * error.square().sum()
        total = total - 0.01 * entropy
    expected = torch.autograd.grad(total, list(agent.model.parameters()))
    GA3C(agent, config, sync).update(samples_of(segments, agent), 0.0)
    for parameter, gradient in zip(agent.model.parameters(), expected, strict=True):
        scale = float(gradient.abs().max())
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-3, atol=1e-4 * scale + 1e-6)


def test_policy_that_forgets_its_state_is_named() -> None:
    sampler = make_sampler(COUNTING, 1)
    sampler.remember(7)
    with sampler, pytest.raises(ValueError, match=r"state of shape \(\); return one .*\(1, 7\)"):
        while True:
            sampler.serve(lambda observation, noise, state: policy(observation, noise))


RECALL = (
    "algo=ga3c env=recall_env:Recall num_envs=8 num_groups=2 horizon=8 "
    "tuner=false num_predictors=1 num_trainers=1 training_queue_size=8 min_training_batch=32 "
    "lr=3e-3 loss_reduction=mean rmsprop_eps=1e-5 rmsprop_initial=0 max_gradient_norm=0.5 "
    "log_interval=500 device=cpu"
)


def run(run_dir: Path, *more: str) -> Path:
    train(parse_arguments([*RECALL.split(), f"run_dir={run_dir}", *more]), quiet())
    return run_dir


@SLOW
def test_run_with_a_memory_is_evaluated_goes_on_and_is_loaded(tmp_path: Path) -> None:
    options = "memory=lstm previous_action_reward=true total_steps=400 evaluation_interval=400"
    run_dir = run(tmp_path / "run", *options.split(), "evaluation_steps=2")
    total = int(numbers_of(run_dir / "metrics.csv")[-1]["steps"]) + 400  # it ends where it can
    train(parse_arguments([f"resume={run_dir}", f"total_steps={total}"]), quiet())
    rows = numbers_of(run_dir / "metrics.csv")
    assert rows[-1]["steps"] >= total and rows[-1]["updates"] > rows[0]["updates"] > 0
    assert len(numbers_of(run_dir / "evaluation.csv")) >= 2
    agent_policy = load_policy(run_dir, greedy=True)
    seen, is_first = np.zeros((2, 3), np.float32), np.ones(2, np.bool_)
    assert agent_policy(seen, is_first=is_first).shape == (2,)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("memory", "is_learned"),
    [(("memory=lstm", "vtrace=true"), True), (("memory=gru",), True), ((), False)],
    ids=["lstm-vtrace", "gru", "none"],
)
def test_what_was_shown_at_the_beginning_is_remembered(memory, is_learned, tmp_path) -> None:
    run_dir = run(tmp_path / "run", *memory, "total_steps=14000")
    score = evaluate_run(run_dir, EvaluateOptions(num_steps=800, num_workers=0), quiet()).mean
    assert score > 0.9 if is_learned else score < 0.5
