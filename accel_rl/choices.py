"""Settings that are one of a few names."""

from __future__ import annotations

from typing import Literal, get_args, get_origin, get_type_hints


def check_choices(config: object) -> None:
    """Look at all fields of a dataclass that are declared as a ``Literal``.

    Raises:
        ValueError: the value of one is none of its choices.
    """
    for name, hint in get_type_hints(type(config)).items():
        if get_origin(hint) is Literal and getattr(config, name) not in get_args(hint):
            choices = " or ".join(get_args(hint))
            raise ValueError(f"{name} is {getattr(config, name)!r}; it must be {choices}")
