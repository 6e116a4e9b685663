"""The file of a checkpoint: an archive of torch, and what shows damage while it is read.

torch's archive is a ZIP file without compression. It holds a CRC-32 of each record, which is a
tensor's memory or the structure around the tensors, but `torch.load` compares none of them.
`read_archive` checks all that it returns:

- The structure and the other small records by their CRC-32.
- Tensors' memory by digests (`memory_digest`), which the state has as ``memory`` in the file. They
  take half the time of a CRC-32, which matters where a replay of gigabytes is read.
- The archive's directory, with the CRCs, names, sizes and offsets of all records, by the seal.

The seal is the last 48 bytes of the file, little-endian:

- uint64: the offset of the directory, which reaches to the seal.
- 32 bytes: BLAKE2b of the directory and of the offset.
- 8 bytes: `MAGIC`.

All this shows damage, not forgery: somebody who changes a checkpoint on purpose can make the sums
and the seal fit. BLAKE2b of a large replay would make saving and loading half as fast.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.runs.files import open_regular
from accel_rl.system.topology import available_cpus

MAGIC = b"accelrl\n"
_SEAL = struct.Struct("<Q32s8s")
_DIRECTORY_ENTRY = b"PK\x01\x02"
"""what the directory begins with"""
_ARCHIVE_END = b"PK\x05\x06"
_ARCHIVE_END_BYTES = 22
_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR_BYTES = (0, 16, 24)
"""behind a record's data: none if there are no data, more for large files"""
_MOST_DIRECTORY_BYTES = 1 << 26
_BLOCK = 512
"""words of eight bytes in a row, and rows, of which `memory_digest` takes the sums"""
_CHUNK_BYTES = 1 << 26
"""of a tensor, of which one thread computes the sums: NumPy lets other threads work meanwhile"""
_MOST_THREADS = 8
_NO_CHECKPOINT = "is not a checkpoint, or is damaged"


class DamagedError(ValueError):
    """A file is damaged, or no checkpoint at all."""


def write_archive(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write ``state`` and the seal straight to ``file``, without a copy in memory.

    Raises:
        OSError: it could not be written.
    """
    writer = _Writer(file)
    memories = sorted(_memories(filter(_is_plain, leaves(state))))
    try:
        torch.save({**state, "memory": memories}, cast(BinaryIO, writer))
    except RuntimeError:
        if writer.error is None:
            raise
        raise writer.error from None  # of which torch makes a failure of its own file format
    start = writer.directory_start
    writer.directory.update(struct.pack("<Q", start))
    file.write(_SEAL.pack(start, writer.directory.digest(), MAGIC))


def read_archive(path: Path, names: Collection[str] | None = None) -> tuple[dict[str, Any], bool]:
    """Read what `write_archive` wrote, and check every byte of what is returned.

    Args:
        path: the file.
        names: of the entries to return. The memory of other entries' tensors is not read. None
            stands for all.

    Returns:
        The entries, and whether the file has a seal. Of an archive without a seal nothing is
        checked, and nothing but ``format`` is returned. Tensors are the mapped file, so
        that a large replay takes no memory. While they exist the file may be replaced or deleted,
        but not overwritten.

    Raises:
        DamagedError: the file is damaged, or holds something else than a table of plain values and
            tensors on the CPU.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        if _lacks_seal(file):
            return {"format": _load(file, path).get("format")}, False
        _check_seal(file, path)
        _check_structure(file, path)
        state = _load(file, path)
        saved = state.pop("memory", None)
        returned = {name: state[name] for name in state if names is None or name in names}
        found = _memories(_tensors(returned, path))
        if not isinstance(saved, list) or not found <= set(leaves(saved)):
            raise DamagedError(f"{path} is damaged: a tensor in it is not what was saved")
        return returned, True


class _Writer(io.RawIOBase):
    """Writes to ``file``, and keeps the ``error`` with which that failed.

    Attributes:
        directory_start: where the last piece began that looks like the archive's directory.
        directory: BLAKE2b of all bytes from there on.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0
        self.directory_start = -1
        self.directory = hashlib.blake2b(digest_size=32)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        # torch writes the directory in one piece. A tensor that begins like it comes before.
        if bytes(data[:4]) == _DIRECTORY_ENTRY:
            self.directory_start = self._position
            self.directory = hashlib.blake2b(digest_size=32)
        if self.directory_start >= 0:
            self.directory.update(data)
        self._position += len(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def _lacks_seal(file: BinaryIO) -> bool:
    """Whether ``file`` ends as torch ends an archive."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ARCHIVE_END_BYTES))
    return file.read(4) == _ARCHIVE_END


def _check_seal(file: BinaryIO, path: Path) -> None:
    damage = DamagedError(f"{path} {_NO_CHECKPOINT}: its end is missing or was changed")
    end = file.seek(0, os.SEEK_END) - _SEAL.size
    if end < 0:
        raise damage
    file.seek(end)
    start, digest, magic = _SEAL.unpack(file.read(_SEAL.size))
    if magic != MAGIC or not end - _MOST_DIRECTORY_BYTES <= start <= end:
        raise damage
    file.seek(start)
    found = hashlib.blake2b(file.read(end - start), digest_size=32)
    found.update(struct.pack("<Q", start))
    if found.digest() != digest:
        raise damage


def _check_structure(file: BinaryIO, path: Path) -> None:
    """Check all records but tensors' memory, and where each tensor's memory lies.

    Raises:
        DamagedError: a record was changed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = sorted(archive.infolist(), key=lambda record: record.header_offset)
            ends = [*(each.header_offset for each in records[1:]), archive.start_dir]
            for record, end in zip(records, ends, strict=True):
                _check_place(file, record, end)
                if record.compress_type != zipfile.ZIP_STORED:  # it may grow a thousandfold
                    raise ValueError(f"{record.filename} is compressed")
                if "/data/" in record.filename:
                    continue
                with archive.open(record) as content:
                    while content.read(1 << 20):  # at the end it compares the CRC
                        pass
    except OSError:
        raise
    except Exception as error:  # one of the ZIP reader's many
        raise DamagedError(f"{path} is damaged: {error}") from error


def _check_place(file: BinaryIO, record: zipfile.ZipInfo, end: int) -> None:
    """Check that the header of a record, which is not in the directory, says where its data lie.

    Raises:
        ValueError: the data and their descriptor do not end where the next header begins.
    """
    file.seek(record.header_offset)
    *_, name_bytes, extra_bytes = _HEADER.unpack(file.read(_HEADER.size))
    data = record.header_offset + _HEADER.size + name_bytes + extra_bytes
    if end - data - record.file_size not in _DESCRIPTOR_BYTES:
        raise ValueError(f"the header of {record.filename} was changed")


def _load(file: BinaryIO, path: Path) -> dict[str, Any]:
    # The same file, also where another has taken its name meanwhile.
    name = f"/dev/fd/{file.fileno()}"
    place = name if os.path.exists(name) else path
    try:
        with warnings.catch_warnings(action="ignore"):  # of tensors that are refused
            state = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # one of torch's many
        raise DamagedError(f"{path} {_NO_CHECKPOINT} ({type(error).__name__})") from error
    if type(state) is not dict:
        raise DamagedError(f"{path} is not a checkpoint of accel_rl")
    return state


def leaves(state: object) -> Iterator[object]:
    """All that ``state`` holds, at any depth, but dicts, lists and tuples: their keys, too."""
    seen: set[int] = set()
    todo = [state]
    while todo:
        value = todo.pop()
        if not isinstance(value, dict | list | tuple):
            yield value
        elif id(value) not in seen:  # it may hold itself
            seen.add(id(value))
            todo += [*value, *value.values()] if isinstance(value, dict) else value


def _tensors(state: Mapping[str, Any], path: Path) -> Iterator[Tensor]:
    """All tensors within ``state``.

    Raises:
        DamagedError: there is a tensor that is not plain memory of the CPU, or a value of a type
            that no checkpoint holds.
    """
    for value in leaves(state):
        if isinstance(value, Tensor):
            if not _is_plain(value) or value.device.type != "cpu":
                raise DamagedError(f"{path} is damaged: it holds a tensor of a foreign kind")
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                # Strides of 0 make a terabyte of one number.
                raise DamagedError(f"{path} is damaged: a tensor is larger than its memory")
            yield value
        elif type(value) not in (int, float, str, bytes, bool, type(None)):
            raise DamagedError(f"{path} is damaged: it holds a {type(value).__name__}")


def _is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether ``value`` is a tensor of memory that holds real numbers, in strides."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.is_nested:
        return False
    return not (value.is_quantized or value.is_complex() or value.is_meta)


def _memories(tensors: Iterable[Tensor]) -> set[bytes]:
    """Size and digest of the memory of each of ``tensors``."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    memories = [_bytes_of(storage) for storage in storages.values()]
    if sum(map(len, memories)) < _CHUNK_BYTES:
        return {_join(memory, map(memory_digest, _chunks(memory))) for memory in memories}
    with ThreadPoolExecutor(min(_MOST_THREADS, len(available_cpus()))) as pool:
        digests = [pool.map(memory_digest, _chunks(memory)) for memory in memories]
        return set(map(_join, memories, digests))


def _bytes_of(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    memory: NDArray[np.uint8] = whole.cpu().numpy()
    return memory


def _chunks(memory: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    return [memory[i : i + _CHUNK_BYTES] for i in range(0, len(memory), _CHUNK_BYTES)]


def _join(memory: NDArray[np.uint8], digests: Iterable[bytes]) -> bytes:
    joined = hashlib.blake2b(b"".join(digests), digest_size=16).digest()
    return len(memory).to_bytes(8, "little") + joined


def memory_digest(memory: NDArray[np.uint8]) -> bytes:
    """Return 16 bytes that change if up to three bits, or bytes at random, of ``memory`` change.

    Args:
        memory: ``[n]``, as words of eight bytes in blocks of at most 512 rows and 512 columns.

    Returns:
        BLAKE2b of the sums of all rows and of all columns, modulo 2 ** 64, and of what is behind
        the last whole row. A single changed bit changes two sums. For changes to stay hidden, each
        must be made up for by another one in its row and by another one in its column.
    """
    made = hashlib.blake2b(digest_size=16)
    words = memory[: len(memory) // 8 * 8].view(np.uint64)
    end = len(words) // _BLOCK * _BLOCK
    for start in range(0, end, _BLOCK * _BLOCK):  # 2 MiB: the second sum reads the cache
        block = words[start : min(start + _BLOCK * _BLOCK, end)].reshape(-1, _BLOCK)
        for axis in (1, 0):
            made.update(np.add.reduce(block, axis=axis).data)
    made.update(memory[8 * end :].data)
    return made.digest()
