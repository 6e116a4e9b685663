"""The exchange between learners that a config asks for."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from accel_rl.agents import AnyAgent, RolloutTensors
from accel_rl.algos import Learner
from accel_rl.config import TrainConfig
from accel_rl.parallel import (
    Adam,
    AllReduce,
    Exchange,
    FlatParameters,
    Local,
    MultiStepAdam,
    ParameterStore,
    StoreExchange,
    Team,
)
from accel_rl.samplers.base import PolicyInput


def make_exchange(config: TrainConfig, agent: AnyAgent, team: Team) -> Exchange:
    """For the parameters of ``agent``, on their device. Every learner of the team must call it.

    Raises:
        TeamError: another learner is gone.
    """
    flat = FlatParameters(agent.model)
    learner = config.learner
    rule, max_norm, eps = learner.rule, learner.max_gradient_norm, learner.gradient_norm_eps
    parallel = config.parallel
    if parallel.sync == "store":
        timeout = parallel.learner_timeout_seconds
        if team.ranks.is_first:
            store = ParameterStore.create(flat, rule, parallel.num_chunks, timeout)
            team.share("store", store.address)
        else:
            store = ParameterStore.open(team.share("store"), flat, rule, timeout)
        if parallel.sync_period == 1:
            return StoreExchange(flat, store, rule, max_norm, gradient_norm_eps=eps)
        assert isinstance(rule, Adam)
        period = parallel.sync_period
        return MultiStepAdam(flat, store, rule, max_norm, period, gradient_norm_eps=eps)
    if team.ranks.size > 1:
        assert team.group is not None, "open_group comes first"
        return AllReduce(flat, rule, max_norm, team.group, gradient_norm_eps=eps)
    return Local(flat, rule, max_norm, agent.capture, gradient_norm_eps=eps)


class Server(Protocol):
    """What the loop needs of an action server: it acts, then hands over the rollout."""

    def __call__(self, step: PolicyInput) -> Any: ...

    def finish(self) -> RolloutTensors: ...

    def get_state(self) -> Tensor | None: ...

    def set_state(self, state: Tensor | None) -> None: ...

    def close(self) -> None: ...


class PullingServer:
    """An action server whose learner takes over the store's parameters within a rollout.

    Before the steps ``pull_steps``, ``2 * pull_steps`` and so on of each environment (Stooke and
    Abbeel 2018, arXiv:1803.02811, section 5.3), and, if the learner uses probability ratios, before
    it learns.
    """

    def __init__(
        self, server: Server, exchange: StoreExchange, learner: Learner, pull_steps: int
    ) -> None:
        self._server = server
        self._exchange = exchange
        self._behaviour = learner.behaviour
        self._pull_steps = pull_steps

    def __call__(self, step: PolicyInput) -> Any:
        is_first = step.columns.start == 0  # of the groups that take this step
        if step.t > 0 and step.t % self._pull_steps == 0 and is_first:
            if self._behaviour is not None:
                self._behaviour.note(step.t)
            self._exchange.pull()
        return self._server(step)

    def finish(self) -> RolloutTensors:
        batch = self._server.finish()
        if self._behaviour is not None:
            self._behaviour.note(len(batch.action))
            self._exchange.pull()
        return batch

    def get_state(self) -> Tensor | None:
        return self._server.get_state()

    def set_state(self, state: Tensor | None) -> None:
        self._server.set_state(state)

    def close(self) -> None:
        self._server.close()
