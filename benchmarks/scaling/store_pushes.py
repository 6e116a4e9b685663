"""A learner that does nothing but update parameters; the child of `store_speed`.

``part``: ``local``, the rule alone; ``parts``, the rule between a copy of parameters and optimizer
state from other memory and a copy of the parameters back; ``push``, into a parameter store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from accel_rl.models import make_model
from accel_rl.parallel import Adam, FlatParameters, RMSProp, StoreSync, create_store, open_store
from accel_rl.parallel.rules import UpdateRule
from accel_rl.spaces import Leaf
from benchmarks.harness.children import read_spec, serve
from benchmarks.harness.usage import wait_for

LR = 1e-4
RULES: dict[str, UpdateRule] = {
    "rmsprop": RMSProp(decay=0.9, eps=1e-6, initial=0.0),
    "adam": Adam(eps=1e-5),
}


def make_parameters(device: str = "cpu") -> FlatParameters:
    """Those of A3C-Net for 104 x 80 images and 4 actions, and a gradient."""
    torch.manual_seed(0)
    model = make_model("a3c", Leaf((4, 104, 80), np.dtype(np.uint8)), 4).to(device)
    parameters = FlatParameters(model)
    parameters.gradient.normal_()
    return parameters


def main() -> None:
    """Prepares, and serves."""
    spec = read_spec()
    parameters, rule = make_parameters(spec["device"]), RULES[spec["rule"]]
    settings = {"parameters": len(parameters.parameter), "torch_threads": torch.get_num_threads()}
    settings["device"] = spec["device"]
    if spec["part"] != "push":
        serve(bare(parameters, rule, copies=spec["part"] == "parts"), settings)
        return
    if "address" in spec:
        store = open_store(spec["address"], parameters, rule)
    else:
        store = create_store(parameters, rule, spec["num_chunks"])
    sync = StoreSync(parameters, store, rule, None)

    def advance() -> int:
        sync.step(LR)
        wait_for(parameters.parameter.device)
        return 1

    def take_numbers() -> dict[str, float]:  # there is no lag where there was no push
        return {key: value for key, value in sync.take_metrics().items() if value == value}

    serve(advance, settings, take_numbers)


def bare(parameters: FlatParameters, rule: UpdateRule, copies: bool) -> Callable[[], int]:
    """The gradient's norm and the rule, on the learner's memory; with ``copies`` also in and out,
    as much as a push has to."""
    flat, gradient = parameters.parameter, parameters.gradient
    state = rule.make_state(flat)
    elsewhere: dict[str, Any] = {name: each.cpu().clone() for name, each in state.items()}
    central = flat.cpu().clone()
    count = 0

    def advance() -> int:
        nonlocal count
        count += 1
        torch.linalg.vector_norm(gradient)
        if copies:
            flat.copy_(central)
            for name, each in state.items():
                each.copy_(elsewhere[name])
        rule.step_(flat, gradient, state, rule.rate(LR, count))
        if copies:
            central.copy_(flat)
        wait_for(flat.device)
        return 1

    return advance


if __name__ == "__main__":
    main()
