"""Captured regions on a GPU: the eager updates and actions, and no hidden waiting."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config
from captured_learners import CONFIGS, Run, assert_equal, rollouts

from accel_rl.agents import PolicyAgent
from accel_rl.capture import EAGER, Capture, check_compilers
from accel_rl.envs import make_env_factory
from accel_rl.models import make_model
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),  # which inductor recommends
    pytest.mark.filterwarnings("ignore:Please use the new API settings"),  # of torch 2.9, for TF32
]
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # With TF32 tiny differences become large ones, and PPO's clipping makes them larger still.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._inductor.config.patch(compile_threads=1):  # else a process of its own stays
        yield
    torch._dynamo.reset()


@pytest.fixture
def compilers() -> None:
    try:
        check_compilers(CUDA)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", CONFIGS)
def test_captured_learner_on_the_device_equals_the_eager_one(name: str) -> None:
    """Long enough that CUDA graphs are recorded, after two runs of each region, and replayed."""
    captured, eager = Run(name, Capture(CUDA), CUDA), Run(name, EAGER, CUDA)
    # As without a GPU, but that there are more places which round to bfloat16.
    tolerance = {"a2c-bfloat16": 0.5, "ppo": 1e-2}.get(name, 1e-3)
    assert_equal(captured, eager, tolerance=tolerance)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 3
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["a2c", "ppo", "double-dueling-prioritized"])
def test_captured_updates_wait_for_nothing(name: str, forbidding_waits: Any) -> None:
    update_without_waiting(Run(name, Capture(CUDA), CUDA), forbidding_waits)


@pytest.mark.parametrize("name", CONFIGS)
def test_eager_updates_wait_for_nothing(name: str, forbidding_waits: Any) -> None:
    update_without_waiting(Run(name, EAGER, CUDA), forbidding_waits)


def update_without_waiting(run: Run, forbidding_waits: Any) -> None:
    batches = [batch for batch in rollouts(CUDA, 12) if len(batch.final_step) == 0]
    for number, batch in enumerate(batches):
        # What is captured is compiled and recorded after four.
        with forbidding_waits() if number >= 4 else nullcontext():
            run.update(batch, progress=number / len(batches))


@pytest.mark.usefixtures("compilers")
def test_captured_action_server_gives_the_rollouts_of_the_eager_one() -> None:
    """In two groups, whose observations lie at other places in every step."""

    def actions(capture: Capture) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = make_model("mlp", (10, 5), np.dtype(np.float32), 3).to(CUDA)
        config = SamplerConfig(num_envs=8, num_groups=2, horizon=7)
        found = []
        with (
            ParallelSampler(make_env_factory("catch"), config=config, seed=1) as sampler,
            ActionServer(PolicyAgent(model, capture), sampler, CUDA) as server,
        ):
            for _ in range(4):
                sampler.collect(server)
                found.append(server.finish().action.clone())
        return found

    for found, expected in zip(actions(Capture(CUDA)), actions(EAGER), strict=True):
        assert torch.equal(found, expected)
