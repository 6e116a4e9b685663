"""The command line of a benchmark: ``key=value`` for each field of a dataclass, as in training."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from accel_rl.options import field_docs, format_value

Options = TypeVar("Options")


def parse(kind: type[Options], arguments: list[str], about: str | None) -> Options:
    """An instance of the dataclass ``kind``; prints the options and exits for ``--help``."""
    if {"-h", "--help"} & set(arguments):
        print(f"{about}\n\noptions, as key=value:")
        docs = field_docs(kind)
        for field in fields(kind):  # type: ignore[arg-type]
            default: Any = getattr(kind(), field.name)
            print(f"  {field.name}={format_value(default)}\n      {docs[field.name]}")
        raise SystemExit(0)
    try:
        given = OmegaConf.from_dotlist(arguments)
        options = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given))
    except (OmegaConfBaseException, ValueError) as error:
        print(f"{str(error).splitlines()[0]}; --help lists the options", file=sys.stderr)
        raise SystemExit(1) from None
    assert isinstance(options, kind)
    return options
