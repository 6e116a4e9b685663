"""Networks of the user's own: ``model=module:function``, in plain torch.

What cannot be learned with is refused when the network is made: it is tried on two observations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from accel_rl.models.memory import (
    MemorySpec,
    RecurrentModel,
    WithMemory,
    one_step,
    remembers,
    run,
)
from accel_rl.models.q_value import QHead
from accel_rl.spaces import Leaf, Space, first_leaf, map_leaves, shape_of
from accel_rl.system.functions import FAILURES, find_function, place_of


def make_own_model(
    path: str,
    space: Space,
    head: int | QHead,
    memory: MemorySpec | None,
    device: torch.device,
    observations: Any = None,
) -> nn.Module:
    """Return the network that ``function(observation_shape=..., num_actions=...)`` makes.

    Its call takes observations ``[N, ...]`` of the environment's dtype and gives logits ``[N, A]``
    and values ``[N]``, float32, in a tuple. For Q-learning the function is also given ``num_atoms``
    and ``is_dueling``, and the network gives ``[N, A, K]``, or ``[N, A]`` where ``K`` is 1. A
    function is given only what its signature names. Of observations that are a mapping, it is given
    a mapping of shapes, and the network one of tensors.

    With ``memory`` the network has the methods ``features``, from observations to ``[N, F]``, and
    ``heads``, from ``[N, F]`` to the output. A network of a policy may have a state of
    its own instead, as a `RecurrentModel`.

    Args:
        head: as in `make_model`.
        memory: kind of memory between features and heads, ``F`` units wide. None: none.
        observations: two observations, ``[2, ...]``, on which it is tried; None: zeros and ones.
    """
    if observations is None:
        observations = map_leaves(_zeros_and_ones, space)
    observations = map_leaves(lambda each: torch.as_tensor(each, device=device), observations)
    told = head[:3] if isinstance(head, QHead) else (head,)
    outputs = dict(zip(QHead._fields, told, strict=False))
    arguments = {"observation_shape": map_leaves(shape_of, space), **outputs}
    function = find_function("model", path)
    names = _names(function)
    arguments = {k: v for k, v in arguments.items() if names is None or k in names}
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    model = _call(path, f"its call with ({given})", lambda: function(**arguments))
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={path} returned {_describe(model)}; it must return an nn.Module")
    if isinstance(model, RecurrentModel) and not remembers(model):
        raise ValueError(
            f"model={path} returned a RecurrentModel without state_size; set it to the number of "
            f"numbers in the state of one environment"
        )
    made: nn.Module = model.to(device)
    if memory is not None:
        made = _with_memory(path, made, memory, observations).to(device)
    if not isinstance(head, QHead):
        _check(path, made, {"logits": (head,), "value": ()}, observations)
        return made
    what = f"its forward on observations {_describe(observations)}"
    found = _call(path, what, lambda: _output(made, observations))
    if head.num_atoms == 1 and getattr(found, "shape", ())[1:] == head[:1]:
        made.register_forward_hook(_with_atoms)
    _check(path, made, {"output": head[:2]}, observations)
    return made


def _with_atoms(model: nn.Module, given: Any, output: Any) -> Any:
    """Return ``[N, A]``, perhaps with a state, as ``[N, A, 1]``."""
    if isinstance(output, tuple):
        return output[0].unsqueeze(2), output[1]
    return output.unsqueeze(2)


def own_network(model: nn.Module) -> nn.Module:
    """Return the network that the user's function made, of a model of `make_own_model`."""
    return model.network if isinstance(model, WithMemory) else model


def _names(function: Callable[..., Any]) -> set[str] | None:
    """Return the names of the arguments that a function takes; None: any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return None if takes_all else {each.name for each in parameters}


def _with_memory(path: str, model: Any, memory: MemorySpec, observations: Any) -> WithMemory:
    if not (callable(getattr(model, "features", None)) and callable(getattr(model, "heads", None))):
        raise ValueError(
            f"memory={memory.kind} comes between the features and the heads of model={path}, which "
            f"lacks them; define features(observation), which gives [N, F], and heads(x), or leave "
            f"memory out"
        )
    features = _call(path, "features", lambda: model.features(observations))
    if getattr(features, "ndim", 0) != 2:
        raise ValueError(
            f"model={path}: features must give [N, F], float32; it gave {_describe(features)}"
        )
    return WithMemory(model, features.shape[1], memory)


def _output(model: Any, observations: Any) -> Any:
    """Return the output for observations of which nothing came before."""
    if not remembers(model):
        return model(observations)
    first = first_leaf(observations)
    zeros = torch.zeros(len(first), model.state_size, device=first.device)
    previous = None
    if getattr(model, "previous", None) is not None:
        previous = zeros.new_zeros(len(first), model.previous.size)
    return run(model, observations, one_step(zeros, previous))[0]


def _check(
    path: str, model: nn.Module, shapes: Mapping[str, tuple[int, ...]], observations: Any
) -> None:
    outputs = _forward(path, model, shapes, observations)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    others = {name: p.dtype for name, p in model.named_parameters() if p.dtype != torch.float32}
    fixed = [name for name, each in zip(shapes, outputs, strict=True) if not each.requires_grad]
    if others or fixed:
        raise ValueError(
            f"model={path}: parameters must be float32, and each output needs a gradient to some; "
            f"the dtypes of others are {others}, outputs without gradient {fixed}: convert the "
            f"network with .float(), leave out no_grad, detach and requires_grad=False"
        )
    _call(path, "the backward pass", torch.stack([each.sum() for each in outputs]).sum().backward)
    model.zero_grad(set_to_none=True)
    with torch.inference_mode():
        alone = _forward(path, model, shapes, map_leaves(lambda each: each[1:], observations))
    if not all(_agree(both.detach()[1:], one) for both, one in zip(outputs, alone, strict=True)):
        raise ValueError(
            f"model={path}: forward gave something else for the same observation in another batch; "
            f"a network must draw no random numbers, remember nothing from call to call, and not "
            f"mix the observations of a batch: no Dropout, no BatchNorm, no softmax(0)"
        )
    for name, buffer in model.named_buffers():
        if not torch.equal(before[name], buffer):
            raise ValueError(
                f"model={path}: forward changes the buffer {name}, which neither a checkpoint nor "
                f"another learner would get; use LayerNorm or GroupNorm"
            )


def _forward(
    path: str, model: nn.Module, shapes: Mapping[str, tuple[int, ...]], observations: Any
) -> list[Tensor]:
    """Return the outputs, of the right shapes and dtype."""
    given = f"observations {_describe(observations)}"
    result = _call(path, f"its forward on {given}", lambda: _output(model, observations))
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    N = len(first_leaf(observations))
    form = [(torch.float32, (N, *shape)) for shape in shapes.values()]
    if [(getattr(x, "dtype", None), getattr(x, "shape", None)) for x in outputs] != form:
        words = ", ".join(f"{name} {['N', *shape]}" for name, shape in shapes.items())
        raise ValueError(
            f"model={path}: forward must give ({words}), float32; for {given} it gave "
            f"{_describe(result)}"
        )
    return outputs


def _zeros_and_ones(leaf: Leaf) -> Tensor:
    both = torch.stack([torch.zeros(leaf.shape), torch.ones(leaf.shape)])
    return both.to(getattr(torch, leaf.dtype.name))


def _agree(a: Tensor, b: Tensor) -> bool:
    """Whether they are equal but for what other kernels and short formats may round."""
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
        return f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}"
    if isinstance(result, Mapping):
        return f"{{{', '.join(f'{name}: {_describe(each)}' for name, each in result.items())}}}"
    if isinstance(result, tuple | list):
        return f"({', '.join(map(_describe, result))})"
    return "None" if result is None else type(result).__name__
