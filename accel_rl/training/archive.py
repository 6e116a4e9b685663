"""The file of a checkpoint: an archive of torch, and a seal at its end by which damage is noticed.

torch's archive is a ZIP file without compression. It holds a CRC-32 of each record (a tensor's
memory, or the structure around the tensors), but `torch.load` compares none of them. `read_archive`
does, for every record that it returns something from. The seal protects the archive's directory,
which holds the CRCs, names, sizes and offsets of all records. The seal is 80 bytes, little-endian:

- uint64: the offset of the directory, which reaches to the seal.
- 32 bytes: BLAKE2b of the bytes of ``state["sampler"]``, or of nothing if there are none.
- 32 bytes: the digest, BLAKE2b of the two fields above and of the directory.
- 8 bytes: `MAGIC`.

A bit flip, a lost block or a cut changes a CRC or the digest. Somebody who forges a checkpoint can
choose bytes with a given CRC, but not with a given BLAKE2b. A signature of the digest therefore
vouches for the sampler's state, which emulators are restored from, and not for the other tensors:
BLAKE2b of a large replay would make saving and loading half as fast.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from accel_rl.training.reading import open_regular

MAGIC = b"accelrl\n"
_SEAL = struct.Struct("<Q32s32s8s")
_DIRECTORY_ENTRY = b"PK\x01\x02"
"""what the directory begins with"""
_ARCHIVE_END = b"PK\x05\x06"
_ARCHIVE_END_BYTES = 22
_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR_BYTES = (0, 16, 24)
"""behind a record's data: none if there are no data, more for large files"""
_MOST_DIRECTORY_BYTES = 1 << 26
_NO_CHECKPOINT = "is not a checkpoint, or is damaged"


class DamagedError(ValueError):
    """A file is damaged, or no checkpoint at all."""


def write_archive(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write ``state`` and the seal straight to ``file``, without a copy in memory.

    Raises:
        OSError: it could not be written.
    """
    writer = _Writer(file)
    try:
        torch.save(dict(state), cast(BinaryIO, writer))
    except RuntimeError:
        if writer.error is None:
            raise
        raise writer.error from None  # of which torch makes a failure of its own file format
    fields = struct.pack("<Q", writer.directory_start), _digest_of_sampler(state)
    for field in fields:
        writer.directory.update(field)
    file.write(b"".join((*fields, writer.directory.digest(), MAGIC)))


def archive_digest(path: Path) -> bytes:
    """Return the digest in the seal of a checkpoint: 32 bytes.

    Only the directory and the seal are read. That the rest of the file is what the digest stands
    for is checked by `read_archive`, which returns the digest of the same bytes.

    Raises:
        DamagedError: the file is damaged or has no seal.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        return _read_seal(file, path).digest


def read_archive(
    path: Path, names: Collection[str] | None = None
) -> tuple[dict[str, Any], bytes | None]:
    """Read what `write_archive` wrote, and check every byte of what is returned.

    Args:
        path: the file.
        names: of the entries to return. The memory of other entries' tensors is not read. None
            stands for all.

    Returns:
        The entries, and the digest; None if the file is an archive without a seal, of which
        nothing is checked and nothing but ``format`` is returned. Tensors are the mapped file, so
        that a large replay takes no memory. While they exist the file may be replaced or deleted,
        but not overwritten.

    Raises:
        DamagedError: the file is damaged, or holds something else than a table of plain values and
            tensors on the CPU.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        if _lacks_seal(file):
            return {"format": _load(file, path).get("format")}, None
        seal = _read_seal(file, path)
        records = _check_structure(file, path)
        state = _load(file, path)
        returned = {name: state[name] for name in state if names is None or name in names}
        if not _records_of(_tensors(returned, path)) <= records:
            raise DamagedError(f"{path} is damaged: a tensor in it is not what was saved")
        if "sampler" in returned and _digest_of_sampler(returned) != seal.sampler:
            raise DamagedError(f"{path} is damaged: the sampler's state is not what was saved")
        return returned, seal.digest


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


class _Seal(NamedTuple):
    sampler: bytes
    digest: bytes


_Record = tuple[int, int]
"""size and CRC-32"""


def _lacks_seal(file: BinaryIO) -> bool:
    """Whether ``file`` ends as torch ends an archive."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ARCHIVE_END_BYTES))
    return file.read(4) == _ARCHIVE_END


def _read_seal(file: BinaryIO, path: Path) -> _Seal:
    damage = DamagedError(f"{path} {_NO_CHECKPOINT}: its end is missing or was changed")
    end = file.seek(0, os.SEEK_END) - _SEAL.size
    if end < 0:
        raise damage
    file.seek(end)
    start, sampler, digest, magic = _SEAL.unpack(file.read(_SEAL.size))
    if magic != MAGIC or not end - _MOST_DIRECTORY_BYTES <= start <= end:
        raise damage
    file.seek(start)
    found = hashlib.blake2b(file.read(end - start), digest_size=32)
    found.update(struct.pack("<Q", start))
    found.update(sampler)
    if found.digest() != digest:
        raise damage
    return _Seal(sampler, digest)


def _check_structure(file: BinaryIO, path: Path) -> set[_Record]:
    """Check all records but tensors' memory, and return the records of tensors' memory."""
    tensors: set[_Record] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            records = sorted(archive.infolist(), key=lambda record: record.header_offset)
            ends = [*(each.header_offset for each in records[1:]), archive.start_dir]
            for record, end in zip(records, ends, strict=True):
                _check_place(file, record, end)
                if "/data/" in record.filename:
                    tensors.add((record.file_size, record.CRC))
                    continue
                with archive.open(record) as content:
                    while content.read(1 << 20):  # at the end it compares the CRC
                        pass
    except OSError:
        raise
    except Exception as error:  # one of the ZIP reader's many
        raise DamagedError(f"{path} is damaged: {error}") from error
    return tensors


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
    try:
        state = torch.load(
            name if os.path.exists(name) else path,
            map_location="cpu",
            weights_only=True,
            mmap=True,
        )
    except Exception as error:  # one of torch's many
        raise DamagedError(f"{path} {_NO_CHECKPOINT} ({type(error).__name__})") from error
    if type(state) is not dict:
        raise DamagedError(f"{path} is not a checkpoint of accel_rl")
    return state


def _tensors(state: Mapping[str, Any], path: Path) -> Iterator[Tensor]:
    """All tensors within ``state``.

    Raises:
        DamagedError: there is a tensor that is not plain memory of the CPU, or a value of a type
            that no checkpoint holds.
    """
    seen: set[int] = set()
    todo: list[object] = [state]
    while todo:
        value = todo.pop()
        if isinstance(value, Tensor):
            is_plain = type(value) is Tensor and value.layout is torch.strided
            is_plain = is_plain and value.device.type == "cpu" and not value.requires_grad
            if not is_plain or value.is_quantized or value.is_complex() or value.is_nested:
                raise DamagedError(f"{path} is damaged: it holds a tensor of a foreign kind")
            yield value
        elif isinstance(value, dict | list | tuple):
            if id(value) not in seen:  # it may hold itself
                seen.add(id(value))
                todo += [*value, *value.values()] if isinstance(value, dict) else value
        elif type(value) not in (int, float, str, bytes, bool, type(None)):
            raise DamagedError(f"{path} is damaged: it holds a {type(value).__name__}")


def _records_of(tensors: Iterable[Tensor]) -> set[_Record]:
    """The records that the memory of ``tensors`` would make now."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    with ThreadPoolExecutor(2) as pool:  # zlib lets other threads work meanwhile
        return set(pool.map(_record_of, storages.values()))


def _record_of(storage: torch.UntypedStorage) -> _Record:
    memory = memoryview(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
    return memory.nbytes, zlib.crc32(memory)


def _digest_of_sampler(state: Mapping[str, Any]) -> bytes:
    sampler = state.get("sampler")
    data = sampler.numpy().tobytes() if isinstance(sampler, Tensor) else b""
    return hashlib.blake2b(data, digest_size=32).digest()
