"""Networks of the user's own: ``model=module:function``, in plain torch.

What cannot be learned with is refused when the network is made: on two observations its outputs
are looked at, a backward pass is made, and it is copied, as targets and threads copy it. Another
one that the function makes must give the same outputs with the same parameters.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from accel_rl.models.policy_value import PolicyValueModel
from accel_rl.models.q_value import QModel
from accel_rl.spaces import Space, first_leaf, map_leaves, shape_of
from accel_rl.system.functions import FAILURES, find_function, place_of


class _Form(NamedTuple):
    """What forward must give: in words, and each output's name and shape behind ``N``."""

    words: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class _Examples(NamedTuple):
    """The observations ``[2, ...]`` that a network is tried on, and what messages call them."""

    observation: Any  # a tensor, or a mapping of them
    words: str


def make_own_model(
    path: str,
    observation_shape: Any,
    observation_dtype: Any,
    num_actions: int,
    device: torch.device,
    observations: Any = None,
) -> PolicyValueModel:
    """The network that ``function(observation_shape=..., num_actions=...)`` makes, on ``device``.

    ``path``: ``module:function``. Its call takes observations ``[N, ...]`` of the environment's
    dtype and gives logits ``[N, A]`` and values ``[N]``, float32, in a tuple. Of observations that
    are a mapping, it is given a mapping of shapes, and takes one of tensors. ``observations``:
    two, ``[2, ...]``, on which it is tried; none: one of zeros and one of ones.

    Raises:
        ValueError: there is no such function, it fails, or makes what cannot be learned with.
    """
    arguments = {"observation_shape": observation_shape, "num_actions": num_actions}
    words = f"(logits [N, {num_actions}], value [N])"
    form = _Form(words, ("logits", "value"), ((num_actions,), ()))
    examples = _examples(observations, observation_shape, observation_dtype, device)
    model = _make_checked(path, arguments, form, examples)
    return cast(PolicyValueModel, model)  # but for the names of what it gives


def make_own_mapping_model(
    path: str, space: Space, num_actions: int, device: torch.device, observations: Any = None
) -> PolicyValueModel:
    """Likewise for observations of ``space``, a mapping: its call takes a mapping of tensors.

    ``observation_shape`` is then a mapping of shapes. ``observations``: a mapping of tensors.
    """
    shapes = map_leaves(shape_of, space)
    if observations is None:
        dtypes = map_leaves(lambda leaf: getattr(torch, leaf.dtype.name), space)
        observations = map_leaves(
            lambda shape, dtype: torch.stack([torch.zeros(shape), torch.ones(shape)]).to(dtype),
            *(shapes, dtypes),
        )
    return make_own_model(path, shapes, None, num_actions, device, observations)


def make_own_q_model(
    path: str,
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype[Any],
    num_actions: int,
    num_atoms: int,
    is_dueling: bool,
    device: torch.device,
    observations: NDArray[Any] | None = None,
) -> QModel:
    """Likewise for Q-learning: the function is also given ``num_atoms`` and ``is_dueling``.

    Its call gives ``[N, A, K]`` float32, as that of a `QModel`.

    Raises:
        ValueError: there is no such function, it fails, or makes what cannot be learned with.
    """
    arguments = {
        "observation_shape": observation_shape,
        "num_actions": num_actions,
        "num_atoms": num_atoms,
        "is_dueling": is_dueling,
    }
    words = f"a tensor [N, {num_actions}, {num_atoms}]"
    form = _Form(words, ("tensor",), ((num_actions, num_atoms),))
    examples = _examples(observations, observation_shape, observation_dtype, device)
    return cast(QModel, _make_checked(path, arguments, form, examples))


def _examples(
    given: Any,
    shape: Any,
    dtype: Any,
    device: torch.device,
) -> _Examples:
    words = "of the environment"
    if given is not None and not isinstance(given, np.ndarray):
        return _Examples(map_leaves(lambda each: each.to(device), given), words)
    if given is None:
        words = "of zeros and ones"  # which most networks take, also those that look up embeddings
        given = np.stack([np.zeros(shape, dtype), np.ones(shape, dtype)])
    return _Examples(torch.from_numpy(given).to(device), words)


def _make_checked(
    path: str, arguments: Mapping[str, Any], form: _Form, examples: _Examples
) -> nn.Module:
    """The network, on the device of the examples."""
    device = first_leaf(examples.observation).device
    model = _make(path, arguments, "its call").to(device)
    with torch.random.fork_rng(devices=[]):
        again = _make(path, arguments, "its second call").to(device)
    _check_same_buffers(path, model, again)
    _check(path, model, examples, form)
    _check_same_outputs(path, model, again, examples, form)
    return model


def _make(path: str, arguments: Mapping[str, Any], which: str) -> nn.Module:
    function = find_function("model", path)
    call = f"({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"model={path} cannot be called with {call}: {error}") from error
    except ValueError:
        pass  # some of what is written in C does not tell
    model = _call(path, f"{which} with {call}", lambda: function(**arguments))
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={path} returned {_describe(model)}; it must return an nn.Module")
    _check_layers(path, model)
    _check_memory(path, model)
    return model


def _check_same_buffers(path: str, model: nn.Module, again: nn.Module) -> None:
    others = dict(again.named_buffers())
    for name, buffer in model.named_buffers():
        if is_lazy(buffer):
            continue  # forward gives it its shape, and is refused for that
        if name not in others or not _equal(buffer, others[name]):
            raise ValueError(
                f"model={path}: the buffer {name} is another one each time the function is called, "
                "and buffers are not saved with a run; make it an nn.Parameter with "
                "requires_grad=False, which is, or draw it with a generator of a fixed seed"
            )


@torch.inference_mode()
def _check_same_outputs(
    path: str, model: nn.Module, again: nn.Module, examples: _Examples, form: _Form
) -> None:
    """What else there is than parameters and buffers, nobody but this process has."""
    if any(map(is_lazy, again.parameters())):
        _forward(path, again, examples, form)
    given = dict(model.named_parameters())
    others = dict(again.named_parameters())
    for name in sorted(given.keys() | others.keys()):
        if name not in given or name not in others or given[name].shape != others[name].shape:
            raise ValueError(
                f"model={path}: the parameter {name} is not there each time the function is "
                "called, or has another shape; what is saved with a run must fit the next network"
            )
        others[name].copy_(given[name])
    pairs = zip(
        _forward(path, model, examples, form), _forward(path, again, examples, form), strict=True
    )
    if not all(_agree(a, b) for a, b in pairs):
        raise ValueError(
            f"model={path}: with the same parameters it gives other outputs each time the function "
            "is called, so something else is another one each time, and that is not saved with a "
            "run; make it an nn.Parameter with requires_grad=False, which is, or draw it with a "
            "generator of a fixed seed"
        )


def _check(path: str, model: nn.Module, examples: _Examples, form: _Form) -> None:
    before = {name: b.clone() for name, b in model.named_buffers() if not is_lazy(b)}
    outputs = _forward(path, model, examples, form)  # the first: layers may wait for it
    _check_parameters(path, model)
    if first_leaf(examples.observation)._version:
        raise ValueError(
            f"model={path}: forward changes the observations that it is given, which are those "
            "that are learned from; work on a copy"
        )
    for name, output in zip(form.names, outputs, strict=True):
        if not output.requires_grad:
            raise ValueError(
                f"model={path}: the {name} that forward gives cannot be learned, since no gradient "
                "comes through; leave out no_grad and detach"
            )
    total = torch.stack([each.sum() for each in outputs]).sum()
    _call(path, "the backward pass", total.backward)
    with torch.inference_mode():
        again = _forward(path, model, examples, form)
        first = examples._replace(
            observation=map_leaves(lambda each: each[:1], examples.observation)
        )
        alone = _forward(path, model, first, form)
    _check_outputs(path, outputs, again, alone)
    for name, buffer in model.named_buffers():
        if name not in before or not _equal(buffer, before[name]):
            raise ValueError(
                f"model={path}: forward changes the buffer {name}, which neither a checkpoint nor "
                "another learner would get; use layers without running statistics, such as "
                "LayerNorm or GroupNorm"
            )
    model.zero_grad(set_to_none=True)
    what = "copy.deepcopy of the network, which targets and threads need,"
    _call(path, what, lambda: copy.deepcopy(model))


def _check_layers(path: str, model: nn.Module) -> None:
    """Those are refused by name that two observations need not betray."""
    for name, layer in model.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, _BatchNorm) and layer.training:
            raise ValueError(
                f"model={path}: the output of {kind} ({name}) depends on the rest of the batch, "
                "and the network acts and learns on different batches; use LayerNorm or "
                "GroupNorm, or call eval() on the layer if its statistics are fixed"
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(
                f"model={path}: {kind} ({name}) is random, so the network would not learn from the "
                "outputs that it acted on; leave the layer out, or give it probability 0"
            )


def _check_memory(path: str, model: nn.Module) -> None:
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(each):
            continue
        if each.is_meta:
            raise ValueError(
                f"model={path}: {name} is on the meta device, where tensors have no values; make "
                "the network on the CPU"
            )
        if each.layout != torch.strided:
            raise ValueError(
                f"model={path}: {name} is {_name(each.layout)}; parameters and buffers must be "
                "dense: convert it with .to_dense()"
            )


def _check_parameters(path: str, model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    for name, p in parameters.items():
        if is_lazy(p):
            raise ValueError(
                f"model={path}: {name} has no shape yet, since forward does not use its lazy "
                "layer; leave that out, or give it its sizes"
            )
        if p.dtype != torch.float32:
            raise ValueError(
                f"model={path}: {name} is {_name(p.dtype)}; parameters must be float32: convert "
                "the network with .float() (precision=bfloat16 is an option of its own)"
            )
        if not torch.ops.aten.is_non_overlapping_and_dense(p):
            raise ValueError(
                f"model={path}: {name} has gaps or overlaps in memory; make it with .contiguous()"
            )
    if not any(p.requires_grad for p in parameters.values()):
        raise ValueError(
            f"model={path}: the network has no parameter that can be learned; give it layers, or "
            "leave out requires_grad=False"
        )
    spans = sorted((p.data_ptr(), p.nbytes, name) for name, p in parameters.items() if p.nbytes)
    for (start, size, name), (next_start, _, next_name) in pairwise(spans):
        if next_start < start + size:
            raise ValueError(
                f"model={path}: {name} and {next_name} are two parameters in the same memory; to "
                "tie them, let both be the same nn.Parameter"
            )


def _forward(path: str, model: nn.Module, examples: _Examples, form: _Form) -> list[Tensor]:
    """What the network gives, of the right form."""
    observation, words = examples
    given = f"observations {_describe(observation)} {words}"
    result = _call(path, f"its forward on {given}", lambda: model(observation))
    is_one = len(form.shapes) == 1
    outputs = [result] if is_one else list(result) if isinstance(result, tuple | list) else []
    shapes = [(len(first_leaf(observation)), *shape) for shape in form.shapes]
    found = [each.shape for each in outputs if isinstance(each, Tensor)]
    if found != shapes or any(each.dtype != torch.float32 for each in outputs):
        raise ValueError(
            f"model={path}: forward must give {form.words}, float32; for {given} it gave "
            f"{_describe(result)}"
        )
    return outputs


def _check_outputs(
    path: str, outputs: list[Tensor], again: list[Tensor], alone: list[Tensor]
) -> None:
    for first, second, row in zip(outputs, again, alone, strict=True):
        if not _agree(first.detach(), second):
            raise ValueError(
                f"model={path}: two calls on the same observations gave different outputs; a "
                "network must draw no random numbers and remember nothing from call to call, so "
                "that what acts is what learns"
            )
        if not _agree(first.detach()[:1], row):
            raise ValueError(
                f"model={path}: what forward gives for one observation depends on the others of "
                "its batch; look for operations over the first dimension, such as softmax(0)"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    """NaN is as good as another number."""
    is_like = (a.shape, a.dtype) == (b.shape, b.dtype)
    return is_like and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _agree(a: Tensor, b: Tensor) -> bool:
    """But for what other kernels and short formats may round."""
    scale = float(a.nan_to_num().abs().max())
    return torch.allclose(a, b, rtol=0.01, atol=0.01 * scale, equal_nan=True)


def _call(path: str, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except FAILURES as error:
        raise ValueError(
            f"model={path}: {what} failed: {type(error).__name__}: {error}{place_of(error)}"
        ) from error


def _describe(result: object) -> str:
    if isinstance(result, Tensor):
        return f"{_name(result.dtype)} {list(result.shape)}"
    if isinstance(result, Mapping):
        pairs = (f"{name}: {_describe(each)}" for name, each in result.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(result, tuple | list):
        return f"({', '.join(map(_describe, result))})"
    return "None" if result is None else type(result).__name__


def _name(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")
