"""Graphs on a GPU: the eager updates and actions, and no hidden waiting."""

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from recorded_learners import CONFIGS, Run, assert_equal, rollouts

from accel_rl.agents import Normalizer, PolicyAgent
from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import make_env_factory
from accel_rl.graphs import Graphs
from accel_rl.models import make_model
from accel_rl.parallel.shared_group import SharedGroup
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig, action_server
from accel_rl.spaces import OBSERVATION, Leaf
from accel_rl.training.build import build

pytestmark = pytest.mark.timeout(400)
CUDA = torch.device("cuda")
COUNTED = hasattr(torch.cuda, "num_launches")  # by the emulated GPU


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # With TF32 tiny differences become large ones, and PPO's clipping makes them larger still.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield


@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_learner_on_the_device_equals_the_eager_one(name: str) -> None:
    """Long enough that graphs are recorded and replayed, with rollouts between that are not.

    In float64, as below: graphs round otherwise, and updates let differences in float32 grow.
    """
    graphs = Graphs(CUDA)
    in_float32 = name == "a2c-bfloat16"
    dtype = torch.float32 if in_float32 else torch.float64
    recorded, eager = (Run(name, each, CUDA, dtype=dtype) for each in (graphs, None))
    num = 20 if name.startswith(("a2c", "vtrace")) else 5  # others make 8 or 24 updates of each
    assert_equal(recorded, eager, tolerance=0.5 if in_float32 else 1e-5, num_updates=num)
    assert graphs.num_recorded > 0


@pytest.mark.parametrize(("name", "tolerance"), [("a2c", 1e-3), ("a2c-bfloat16", 0.1)])
def test_network_for_images_learns_on_the_gpu_what_it_does_on_the_cpu(
    name: str, tolerance: float
) -> None:
    moved = []
    for device in (torch.device("cpu"), CUDA):
        run = Run(name, None, device)
        before = run.sync.parameters.parameter.clone()
        run.update(next(rollouts(device, 1)), progress=0.0)
        moved.append((run.sync.parameters.parameter - before).cpu())
    assert (moved[1] - moved[0]).norm() < tolerance * moved[0].norm()


@pytest.mark.parametrize(
    ("name", "num"), [("vtrace", 14), ("ppo", 2), ("double-dueling-prioritized", 3)]
)
def test_parameters_of_two_recorded_learners_in_step_are_those_of_eager_ones(
    name: str, num: int
) -> None:
    """Graphs before and after an all-reduce; rollouts with a truncation meet those without."""
    groups = [SharedGroup(rank, 2, timeout_seconds=60.0) for rank in range(2)]
    for group in groups:
        group.connect([each.address for each in groups])
    recorders, streams = [Graphs(CUDA), Graphs(CUDA)], [torch.cuda.Stream(), torch.cuda.Stream()]
    # Learners have processes of their own elsewhere: what a process makes once is made here.
    Run("ppo", None, CUDA).update(next(rollouts(CUDA, 1)), progress=0.0)
    torch.cuda.synchronize()

    def learn(rank: int) -> list[torch.Tensor]:
        found = []
        with torch.cuda.stream(streams[rank]):
            for used in (recorders[rank], None):
                run = Run(name, used, CUDA, model="mlp", group=groups[rank])
                for number, batch in enumerate(list(rollouts(CUDA, num + rank))[rank:]):
                    run.update(batch, progress=number / num)
                found.append(run.sync.parameters.parameter.cpu())
        return found

    with ThreadPoolExecutor() as pool:
        (recorded, eager), (other, _) = pool.map(learn, range(2))
    for group in groups:
        group.close()
    # Rollouts of A2C with a truncation have a graph of their own.
    num_graphs = 3 if name == "vtrace" else 2
    assert all(each.num_recorded == num_graphs for each in recorders)
    assert torch.equal(recorded, other)
    assert (recorded - eager).norm() / eager.norm() < 1e-6


@pytest.mark.parametrize("name", ["a2c", "ppo", "double-dueling-prioritized"])
def test_recorded_updates_wait_for_nothing(name: str, forbidding_waits: Any) -> None:
    """Once they are recorded, after four."""
    update_without_waiting(Run(name, Graphs(CUDA), CUDA), forbidding_waits, num_before=4)


@pytest.mark.parametrize("name", CONFIGS)
def test_eager_updates_wait_for_nothing(name: str, forbidding_waits: Any) -> None:
    """Once libraries have set themselves up, in the second update of those from a replay."""
    update_without_waiting(Run(name, None, CUDA), forbidding_waits, num_before=2)


def update_without_waiting(run: Run, forbidding_waits: Any, num_before: int) -> None:
    num = num_before + 1
    batches = [batch for batch in rollouts(CUDA, 2 * num) if len(batch.final_step) == 0]
    for number, batch in enumerate(batches):
        with forbidding_waits() if number >= num_before else nullcontext():
            run.update(batch, progress=number / num)


def test_rollouts_that_stay_where_they_are_are_learned_from_like_copies() -> None:
    """In two places that take turns, as under overlap; a truncation, which is no usual one, too."""
    graphs = Graphs(CUDA)
    recorded, eager = Run("a2c", graphs, CUDA), Run("a2c", None, CUDA)
    places: dict[int, Any] = {}
    for number, batch in enumerate(rollouts(CUDA, 24)):
        if len(batch.final_step) == 0:
            places.setdefault(number % 4, batch.map(torch.clone))
            for place, given in zip(places[number % 4][:6], batch[:6], strict=True):
                place.copy_(given)
            recorded.update(places[number % 4]._replace(stays=True), progress=number / 24)
        else:
            recorded.update(batch, progress=number / 24)
        eager.update(batch, progress=number / 24)
    assert graphs.num_recorded == 2 + 1  # one a place, and one of truncated ones
    found, expected = (run.sync.parameters.parameter for run in (recorded, eager))
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize(
    ("horizon", "is_registered", "normalizes"),
    [(7, True, False), (80, True, True), (7, False, True)],
    ids=["a graph a row", "a graph a group", "memory that is not registered"],
)
def test_recorded_action_server_gives_the_rollouts_of_the_eager_one(
    horizon: int, is_registered: bool, normalizes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two groups, whose observations lie at other places in every step."""
    if not is_registered:
        monkeypatch.setattr(action_server, "register", lambda *_: False)

    def make_agent(model: Any, graphs: Graphs | None) -> PolicyAgent:
        agent = PolicyAgent(model, graphs)
        agent.tells_log_prob = True
        return agent

    def collected(graphs: Graphs | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = make_model("mlp", Leaf((10, 5), np.dtype(np.float32)), 3).to(CUDA)
        config = SamplerConfig(num_envs=8, num_groups=2, horizon=horizon)
        found = []
        with (
            ParallelSampler(make_env_factory("catch"), config=config, seed=1) as sampler,
            ActionServer(agent := make_agent(model, graphs), sampler, CUDA) as server,
        ):
            for number in range(5):
                if normalizes:  # by other moments in each rollout
                    mean = torch.full((10, 5), 0.1 * number, device=CUDA)
                    agent.normalizer = Normalizer(
                        {OBSERVATION: mean}, {OBSERVATION: 3 / (1 + mean)}
                    )
                sampler.collect(server)
                batch = server.finish()
                assert batch.normalizer is agent.normalizer
                found += (batch.action.clone(), batch.log_prob.clone(), batch.value.clone())
        return found

    graphs = Graphs(CUDA)
    for found, expected in zip(collected(graphs), collected(None), strict=True):
        assert torch.equal(found, expected)
    # Row 0 comes from the host at first, and from row T later.
    assert graphs.num_recorded == (2 if horizon == 80 or not is_registered else 2 * 7)


@pytest.mark.parametrize(
    "arguments",
    ["algo=a2c memory=lstm previous_action_reward=true", "algo=pqn memory=gru minibatch_size=16"],
    ids=["a2c", "pqn"],
)
def test_recorded_acting_remembers_what_eager_acting_does(arguments: str) -> None:
    def rollouts_of(choice: str) -> list[Any]:
        given = f"{arguments} env=catch model=mlp horizon=4 num_envs=8 num_groups=2 device=cuda"
        parts = build(
            parse_arguments([*given.split(), f"cuda_graphs={choice}", "run_dir=runs/none"])
        )
        found = []
        with contextlib.closing(parts.sampler), parts.server as server:
            parts.start(None)
            for _ in range(8):
                parts.sampler.collect(server)
                found.append(server.finish().map(torch.clone))
            if choice == "on":
                assert parts.learner.agent.graphs.num_recorded == 2 * 4
        return found

    for found, expected in zip(rollouts_of("on"), rollouts_of("off"), strict=True):
        assert torch.equal(found.action, expected.action)
        torch.testing.assert_close(found.recurrent_state, expected.recurrent_state)
        if expected.previous is not None:
            torch.testing.assert_close(found.previous, expected.previous)


def test_recorded_sac_draws_from_its_replay_what_it_does_without_graphs() -> None:
    def learned(choice: str) -> torch.Tensor:
        given = "algo=sac env=control_envs:Swing model=auto num_envs=2 horizon=4 batch_size=8 "
        given += "learning_starts=16 buffer_size=200 training_intensity=4 device=cuda"
        parts = build(
            parse_arguments([*given.split(), f"cuda_graphs={choice}", "run_dir=runs/none"])
        )
        with contextlib.closing(parts.sampler), parts.server as server:
            parts.start(None)
            for number in range(8):
                parts.sampler.collect(server)
                parts.learner.update(server.finish(), 0.0, 8 * (number + 1))
            graphs = parts.learner.agent.graphs
            assert graphs is None or graphs.num_recorded > 0
        return parts.sync.parameters.parameter.clone()

    torch.testing.assert_close(learned("on"), learned("off"), rtol=1e-3, atol=1e-3)


def waiting(given: torch.Tensor) -> float:
    return given.sum().item()


def waiting_unnoticed(given: torch.Tensor) -> int:
    """Its error is caught, so that it shows only when the recording ends."""
    with suppress(RuntimeError):
        given.sum().item()
    return 2


@pytest.mark.parametrize("function", [waiting, waiting_unnoticed])
def test_what_cannot_be_recorded_is_an_error_where_it_is_required(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(2, device=CUDA)
    for is_required in (True, False):
        graphs = Graphs(CUDA, is_required=is_required)
        run, double = graphs.recorded(function), graphs.recorded(lambda given: 2 * given)
        for _ in range(3):
            assert run(x) == 2
        if is_required:
            with pytest.raises(ValueError, match=r"updates cannot be recorded.*cuda_graphs=auto"):
                run(x)
        else:
            assert [run(x), run(x), run(x[:1])] == [2, 2, 1 + (function is waiting_unnoticed)]
        # A recording that failed leaves the generator and all other functions usable.
        torch.rand(2, device=CUDA)
        assert all(torch.equal(double(x), 2 * x) for _ in range(5)) and graphs.num_recorded == 1
    assert caplog.text.count("run without a CUDA graph") == 1


def test_recording_does_not_collect_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads would stand still meanwhile."""
    monkeypatch.setattr(gc, "collect", lambda *_: pytest.fail("collects"))
    graphs = Graphs(CUDA)
    double = graphs.recorded(lambda given: 2 * given)
    x = torch.ones(2, device=CUDA)
    assert [double(x).sum() for _ in range(5)] == [4] * 5 and graphs.num_recorded == 1


def test_graphs_of_one_update_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pools, begin = [], torch.cuda.CUDAGraph.capture_begin
    monkeypatch.setattr(
        torch.cuda.CUDAGraph,
        "capture_begin",
        lambda self, pool, **named: (pools.append(pool), begin(self, pool, **named))[1],
    )
    recorded = Run("a2c", Graphs(CUDA), CUDA, model="mlp")
    for batch in rollouts(CUDA, 10):
        recorded.update(batch, progress=0.0)
    assert len(pools) == 2 and pools[0] == pools[1]  # of rollouts with and without a truncation


def test_memory_of_a_result_is_given_out_again_after_its_stream_has_used_it() -> None:
    """Also in the stream that records, where another one's functions are warmed up next."""
    graphs, x = Graphs(CUDA), torch.ones(2, device=CUDA)
    found = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        double = graphs.recorded(lambda given: 2 * given)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(double(x) + 1)
    torch.cuda.synchronize()
    assert [each.tolist() for each in found] == [[3, 3]] * 2


def test_threads_that_record_and_warm_up_at_once_do_not_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where torch has only one stream to give."""
    if COUNTED:
        monkeypatch.setattr("torch_cuda.NUM_STREAMS", 1)
    graphs, x = Graphs(CUDA), torch.ones(2, device=CUDA)
    numbers = iter(range(10))

    def doubled(given: torch.Tensor) -> torch.Tensor:
        return 2 * given

    def slow(given: torch.Tensor) -> torch.Tensor:
        if next(numbers) == 3:  # it is recorded now
            wait([other := pool.submit(run, x)], timeout=0.2)
            others.append(other)
        return 3 * given

    run, run_slowly = graphs.recorded(doubled), graphs.recorded(slow)
    others: list[Future[torch.Tensor]] = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            assert torch.equal(run_slowly(x), 3 * x)
        assert torch.equal(others[0].result(), 2 * x)


@pytest.mark.skipif(not COUNTED, reason="launches are counted on the emulated GPU")
@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ("env=catch algo=a2c horizon=5", 10),
        ("env=catch algo=ppo horizon=16 minibatch_size=32", 38),
        ("env=catch algo=pqn horizon=4 minibatch_size=4", 30),
        ("algo=a2c env=CartPole-v1 normalize_observation=true model=mlp horizon=5", 64),
        (
            "env=catch algo=cat_dqn horizon=4 batch_size=32 training_intensity=1 "
            "learning_starts=64 buffer_size=4000",
            19,
        ),
        (
            "env=control_envs:Swing algo=sac horizon=1 training_intensity=256 "
            "learning_starts=64 buffer_size=4000",
            51,
        ),
    ],
    ids=["a2c", "ppo", "pqn", "normalized", "cat_dqn", "sac"],
)
def test_recorded_iteration_starts_few_operations(arguments: str, most: int) -> None:
    """Acting is one start for each row of a group. PPO, PQN make 16 updates, SAC 8, others one."""
    found = {}
    for choice in ("on", "off"):
        given = f"{arguments} num_envs=8 num_workers=0 device=cuda cuda_graphs={choice}"
        parts = build(parse_arguments([*given.split(), "run_dir=runs/none"]))
        with contextlib.closing(parts.sampler), parts.server as server:
            parts.start(None)
            for number in range(1, 40):
                before = torch.cuda.num_launches()  # type: ignore[attr-defined]
                parts.sampler.collect(server)
                batch = server.finish()
                parts.learner.update(batch, 0.1, 8 * number * len(batch.reward))
                now = torch.cuda.num_launches() - before  # type: ignore[attr-defined]
                found[choice] = min(found.get(choice, now), now) if number > 30 else now
    assert found["on"] <= most, found
    assert found["off"] > 2 * found["on"], found
