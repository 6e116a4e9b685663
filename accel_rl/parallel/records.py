"""Records: what the learners of one run write into their store for one another.

A record is JSON, never a pickle, so reading one executes nothing. Torch's store asks nobody who he
is; whoever reaches its port can read and write all keys. Therefore a record is signed with the
secret of the run, if there is one:

    <signature> <number> <JSON>

The signature covers the record's name, the rank of its sender, its number and the JSON, and the
key is of this run alone, so a record of another program, run, learner or name is an error, and so
is an older record of the same name. Without a secret ``unsigned`` stands in place of the signature.

Counters (the store's ``add``) cannot be signed. Whoever reaches the port can change them, delete
keys or fill the memory, and so stop, stall or shorten the run, but not have it execute code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from torch.distributed import Store  # type: ignore[attr-defined]

from accel_rl.parallel.group import TeamError
from accel_rl.system.signing import is_signed, sign

LAUNCHER = -1
"""rank of our own launcher as a sender"""

_UNSIGNED = b"unsigned"


class RecordError(TeamError):
    """A record is not from the learner of this run that it should be from; the message names it."""


class Record(NamedTuple):
    """A record as it was read.

    Attributes:
        name: Key in the store.
        sender: Rank of the learner that wrote it, or `LAUNCHER`.
        number: The number that its sender gave it.
        value: What it says.
    """

    name: str
    sender: int
    number: int
    value: Any

    def integers(self, length: int) -> list[int]:
        """Return the value, which must be a list of ``length`` integers.

        Raises:
            RecordError: It is something else.
        """
        value = self.value
        if not (isinstance(value, list) and [type(each) for each in value] == [int] * length):
            refuse(self.name, self.sender, f"it is not a list of {length} integers")
        return value


class Records:
    """The records of one run, in its store.

    Attributes:
        key: Signs all records; None if they are unsigned.
    """

    def __init__(self, store: Store, key: bytes | None) -> None:
        self.key = key
        self._store = store

    def write(self, name: str, sender: int, value: Any, number: int = 0) -> None:
        """Write a record over the last one of that name.

        Args:
            name: Key in the store.
            sender: Rank of this learner, or `LAUNCHER`.
            value: None, booleans, numbers (NaN and infinity too), text, and lists and dictionaries
                (with text as keys) of these. Tuples are read as lists.
            number: Larger than that of earlier records of the same name.
        """
        text = json.dumps(value, separators=(",", ":"), default=_python_number).encode()
        counted = str(number).encode()
        signature = _UNSIGNED
        if self.key is not None:
            signature = sign(self.key, *_parts(name, sender, counted, text)).encode()
        self._store.set(name, b" ".join((signature, counted, text)))  # type: ignore[arg-type]

    def is_there(self, name: str) -> bool:
        """Return whether there is a record of that name, from whomever."""
        return self._store.check([name])

    def read(self, name: str, sender: int, at_least: int = 0) -> Record:
        """Return the record, which must be there.

        Args:
            name: Key in the store.
            sender: Rank of the learner that writes it, or `LAUNCHER`.
            at_least: The least number that it must have.

        Raises:
            RecordError: It is not from that sender, is older, or is no JSON.
        """
        return self._check(name, sender, self._store.get(name), at_least)

    def read_all(self, senders: Mapping[str, int]) -> list[Record] | None:
        """Return the records of these names, read at once; None if one of them is not there.

        Args:
            senders: Rank of the learner that writes each record, by name.

        Raises:
            RecordError: As `read`.
        """
        names = list(senders)
        if not self._store.check(names):
            return None
        found = self._store.multi_get(names)
        return [self._check(*each, 0) for each in zip(names, senders.values(), found, strict=True)]

    def _check(self, name: str, sender: int, found: bytes, at_least: int) -> Record:
        """Return the record ``found``, if it is what `read` asks for."""
        signature, counted, text = [*found.split(b" ", 2), b"", b""][:3]
        if self.key is None:
            if signature != _UNSIGNED:
                refuse(name, sender, "it is signed, and this learner has no secret")
        elif not is_signed(
            self.key, signature.decode(errors="replace"), *_parts(name, sender, counted, text)
        ):
            is_unsigned = signature == _UNSIGNED
            refuse(name, sender, "it has no signature" if is_unsigned else "wrong signature")
        try:
            record = Record(name, sender, int(counted), json.loads(text))
        except (ValueError, RecursionError):
            refuse(name, sender, "it is no JSON")
        if record.number < at_least:
            refuse(name, sender, "it is older than one that was read before")
        return record

    def delete(self, name: str) -> None:
        """Delete the record, if it is there."""
        self._store.delete_key(name)


def refuse(name: str, sender: int, why: str) -> NoReturn:
    """Raise the `RecordError` of the record ``name``."""
    who = "the launcher" if sender == LAUNCHER else f"learner {sender}"
    raise RecordError(
        f"the record {name} in the run's store is not from {who} of this run ({why}): another "
        "program has written it, or the learners have different secrets; give all of them the same "
        "ACCEL_RL_SECRET or ACCEL_RL_SECRET_FILE, and see docs/safety.md"
    )


def _parts(name: str, sender: int, counted: bytes, text: bytes) -> tuple[bytes, ...]:
    """What a signature covers. The first part tells it from signatures of files."""
    return b"record", name.encode(), str(sender).encode(), counted, text


def _python_number(value: object) -> Any:
    """``value``, a number of NumPy, as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
