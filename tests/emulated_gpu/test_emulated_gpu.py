"""What the emulated GPU finds, so that the tests of `tests/gpu` can fail on it."""

import os

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("EMULATED_GPU" not in os.environ, reason="needs the emulated GPU"),
]


def on_another_stream(x: torch.Tensor, *, waits: bool) -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    if waits:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.add_(1.0)
    return stream


def test_operations_gradients_and_numbers_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3), torch.randn(3, 2)
    found = []
    for device in ("cpu", "cuda"):
        w = weight.clone().to(device).requires_grad_()
        loss = (x.to(device) @ w)[1:, ::2].relu().square().mean()
        loss.backward()
        assert w.grad is not None and w.grad.device.type == device
        found.append((w.grad.cpu(), loss.item()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
    with pytest.raises(TypeError, match="convert cuda"):
        torch.ones(3, device="cuda").numpy()


def test_copy_to_the_host_is_there_once_it_has_been_waited_for() -> None:
    target = torch.zeros(3, pin_memory=True)
    target.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    assert (target > 1e38).all()
    torch.cuda.current_stream().synchronize()
    assert (target == 1).all()


def test_pinned_memory_that_changes_before_its_copy_was_waited_for_is_an_error() -> None:
    source = torch.zeros(3, pin_memory=True)
    source.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    source.fill_(1.0)
    source.to("cuda", non_blocking=True)
    source.fill_(2.0)
    with pytest.raises(RuntimeError, match="has changed before its copy"):
        torch.cuda.synchronize()


def test_streams_that_use_the_same_memory_must_wait_for_each_other() -> None:
    x = torch.zeros(3, device="cuda")
    stream = on_another_stream(x, waits=True)
    torch.cuda.current_stream().wait_stream(stream)
    assert x.sum().item() == 3
    on_another_stream(x, waits=True)
    with pytest.raises(RuntimeError, match=r"add in stream 0 does not wait for aten::add in"):
        x + 1
    torch.cuda.synchronize()
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="does not wait for"):
        on_another_stream(x, waits=False)
    torch.cuda.synchronize()


def test_memory_that_another_stream_may_still_use_must_not_be_given_out() -> None:
    x = torch.zeros(3, device="cuda")
    on_another_stream(x, waits=True)
    del x
    with pytest.raises(RuntimeError, match="is given out again in stream 0"):
        torch.zeros(3, device="cuda")
    torch.cuda.synchronize()


def test_event_is_over_once_the_host_has_waited_for_what_came_before_it() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    torch.zeros(3, device="cuda").add_(1.0)
    last.record()
    assert not last.query()
    with pytest.raises(RuntimeError, match="device not ready"):
        first.elapsed_time(last)
    torch.cuda.synchronize()
    assert last.query() and first.elapsed_time(last) > 0


def test_waiting_can_be_forbidden() -> None:
    x = torch.zeros(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="item waits for the device"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
