"""Writes into a torch TCPStore by its wire protocol alone, as a program without torch could."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

_VALIDATE = struct.pack("<BI", 0, 0x3C85F7CE)
_SET = b"\x01"


def set_records(port: int, records: Mapping[str, bytes]) -> None:
    """Set ``records``, of `accel_rl.parallel.team`, in the store at ``port`` of this machine."""
    message = [_VALIDATE]
    for name, value in records.items():
        key = f"/accel_rl/{name}".encode()
        for each in (key, value):
            message += [_SET if each is key else b"", struct.pack("<Q", len(each)), each]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"".join(message))
