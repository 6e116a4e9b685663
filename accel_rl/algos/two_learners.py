"""Two Q-learning learners on one stream of experience (Stooke and Abbeel 2018, figures 5 to 7).

The second one has the same initial parameters, and a batch size, learning rate and optimizer state
of its own. It draws its own batches from the first one's replay, at the same training intensity,
counted from steps likewise; its target network is copied at the same steps. It never acts, so that
the first learner's run is the one without it, on the CPU to the bit.

With prioritized replay both draw by the priorities of the first learner's errors: the second writes
none, or it would change what the first one learns from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from accel_rl.agents import EpsilonGreedyAgent, RolloutTensors
from accel_rl.algos.dqn import DQN
from accel_rl.parallel import ALONE, Exchange, Ranks

PREFIX = "secondary_"
"""of the second learner's metrics and scores"""


class TwoLearners:
    """The learner ``first``, and a second one of ``agent``, whose parameters are ``exchange``'s.

    ``seed``: of the second one's draws from the replay. ``ranks``: as for `DQN`.
    """

    behaviour = None

    def __init__(
        self,
        first: DQN,
        agent: EpsilonGreedyAgent,
        exchange: Exchange,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.first = first
        self.exchange = exchange
        config, spec = first.config.secondary, first.replay.spec
        self.second = DQN(agent, config, exchange, spec, seed, ranks, first)
        second_names = (name for name in self.second.metric_names if name != "epsilon")
        self.metric_names = (*first.metric_names, *(PREFIX + name for name in second_names))

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the first one's exchange."""
        second = {"learner": self.exchange.state_dict(), "algorithm": self.second.get_state()}
        return {**self.first.get_state(), "secondary": second}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Of ``state`` all but ``exchange``, which others may share and who holds it loads."""
        self.first.set_state(state)
        self.second.set_state(state["secondary"]["algorithm"])

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """As `DQN.update`; metrics of both, of each where it had an optimizer step."""
        metrics = self.first.update(batch, progress, steps)
        second = self.second.learn(batch.action.numel(), progress, steps)
        return metrics | {PREFIX + k: value for k, value in second.items() if k != "epsilon"}
