"""What the emulated GPU records, and what it finds wrong with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("EMULATED_GPU" not in os.environ, reason="needs the emulated GPU"),
]


@contextmanager
def recording(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            try:
                graph.capture_end()
            finally:  # the next recording needs a generator that no failed one has left
                generator = torch.cuda.default_generators[0]
                generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())


def test_recording_computes_nothing_and_each_replay_all_of_it_again() -> None:
    graph, total = torch.cuda.CUDAGraph(), torch.zeros(2, device="cuda")
    weight = torch.ones(2, device="cuda", requires_grad=True)
    source, target = (torch.ones(2, pin_memory=True) for _ in range(2))
    given = torch.zeros(2, device="cuda")
    with recording(graph):
        given.copy_(source, non_blocking=True)
        loss = (weight * given).sum().square()
        (slope,) = torch.autograd.grad(loss, weight)
        total.add_(slope)
        target.copy_(total, non_blocking=True)
    assert total.tolist() == [0, 0] and target.tolist() == [1, 1]
    assert (slope > 1e38).all()
    for value in (1.0, 3.0):
        source.fill_(value)
        before = torch.cuda.num_launches()
        graph.replay()
        assert torch.cuda.num_launches() == before + 1
        assert (target > 1e38).all()
        torch.cuda.current_stream().synchronize()
    assert target.tolist() == total.tolist() == [2 * 2 + 2 * 6 * 3] * 2


def test_input_at_a_new_address_is_not_read() -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    with recording(graph):
        y = x + 1
    x = torch.full((2,), 5.0, device="cuda")
    with pytest.raises(RuntimeError, match="uses memory that was freed since it was recorded"):
        graph.replay()
    del x, y


def test_waiting_while_recording_is_an_error() -> None:
    x = torch.ones(2, device="cuda")
    for wait in (
        x.sum().item,
        x.cpu,
        x.nonzero,
        torch.cuda.synchronize,
        lambda: x.copy_(torch.ones(2), non_blocking=True),
        lambda: x[torch.tensor([0])],
    ):
        with (
            pytest.raises(RuntimeError, match="a previous error during capture"),
            recording(torch.cuda.CUDAGraph()),
            pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        ):
            wait()
    assert x.tolist() == [1, 1]


def test_replays_draw_on_from_a_generator_that_is_registered() -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    expected = [torch.rand(3, generator=generator, device="cuda") for _ in range(2)]
    generator.manual_seed(1)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="not in capture mode"),
        recording(torch.cuda.CUDAGraph()),
    ):
        torch.rand(3, generator=generator, device="cuda")
    graph.register_generator_state(generator)
    with recording(graph):
        drawn = torch.rand(3, generator=generator, device="cuda")
    for each in expected:
        graph.replay()
        assert torch.equal(drawn, each)


def test_replay_that_does_not_wait_for_another_stream_is_an_error() -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    with recording(graph):
        x.add_(1.0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="does not wait for"):
        graph.replay()
    torch.cuda.synchronize()
