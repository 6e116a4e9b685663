"""Films of pictures, in an mp4 or GIF file that appears whole or not at all."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from accel_rl.runs.files import write_whole

Picture = NDArray[np.uint8]

SUFFIXES = (".mp4", ".gif")
_CODECS = ("vp09", "mp4v")
"""VP9, which browsers, editors and notebooks show, or MPEG-4 part 2 if OpenCV has no VP9"""
GIF_FRAMES_PER_SECOND = 20.0
"""at most: a GIF of a faster film has every second, third ... picture"""
GIF_SECONDS = 60.0
"""after which a GIF ends: its pictures are kept in memory until it is written"""


class Movie(Protocol):
    """A film that takes pictures: ``[height, width, 3]`` uint8, RGB, all of one size."""

    def add(self, picture: Picture) -> None: ...


@contextmanager
def film(path: Path, frames_per_second: float) -> Iterator[Movie]:
    """Give a `Movie`; its file appears at ``path`` when the block ends without an error."""
    if path.suffix == ".gif":
        gif = _Gif(frames_per_second)
        yield gif
        write_whole(path, gif.encode())
        return
    # OpenCV writes to files alone, and does not report a full disk.
    with tempfile.TemporaryDirectory() as folder:
        mp4 = _Mp4(Path(folder) / "film.mp4", frames_per_second)
        try:
            yield mp4
        finally:
            mp4.close()
        write_whole(path, mp4.read())


class _Mp4:
    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path = path
        self._frames_per_second = frames_per_second
        self._writer: cv2.VideoWriter | None = None
        self._num_frames = 0

    def add(self, picture: Picture) -> None:
        if self._writer is None:
            size = (picture.shape[1], picture.shape[0])
            for codec in _CODECS:
                code = cv2.VideoWriter.fourcc(*codec)
                self._writer = cv2.VideoWriter(str(self._path), code, self._frames_per_second, size)
                if self._writer.isOpened():
                    break
        assert self._writer is not None
        self._writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
        self._num_frames += 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()

    def read(self) -> bytes:
        found = max(0, int(cv2.VideoCapture(str(self._path)).get(cv2.CAP_PROP_FRAME_COUNT)))
        if found != self._num_frames:
            raise OSError(
                f"OpenCV wrote {found} of {self._num_frames} pictures to {self._path.parent}; "
                "is the disk of temporary files full? Set TMPDIR to another, or choose out=NAME.gif"
            )
        return self._path.read_bytes()


class _Gif:
    def __init__(self, frames_per_second: float) -> None:
        self._stride = math.ceil(frames_per_second / GIF_FRAMES_PER_SECOND)
        self._delay = round(100 * self._stride / frames_per_second) * 10  # ms, whole hundredths
        self._num_added = 0
        self._pictures: list[Image.Image] = []

    def add(self, picture: Picture) -> None:
        is_shown = self._num_added % self._stride == 0
        if is_shown and len(self._pictures) * self._delay < GIF_SECONDS * 1000:
            self._pictures.append(Image.fromarray(picture).quantize(64))
        self._num_added += 1

    def encode(self) -> bytes:
        buffer = io.BytesIO()
        first, *others = self._pictures
        first.save(buffer, "gif", save_all=True, append_images=others, duration=self._delay, loop=0)
        return buffer.getvalue()
