"""Films: pictures into an mp4 or GIF file that is there whole or not at all."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from accel_rl.runs.files import write_whole

Picture = NDArray[np.uint8]

SUFFIXES = (".mp4", ".gif")
FAST, SHOWN_BY_BROWSERS = "mp4v", "vp09"
"""codecs of an mp4: MPEG-4 part 2, and VP9, which takes some ten times as long to encode"""
GIF_FRAMES_PER_SECOND = 20.0
"""at most: of faster films a GIF has every second, third ... picture"""
GIF_SECONDS = 60.0
"""after which a GIF ends: its pictures are kept in memory until it is written"""


class Movie(Protocol):
    """Takes the pictures of a film: ``[height, width, 3]`` uint8, RGB, all of one size."""

    def add(self, picture: Picture) -> None: ...


@contextmanager
def film(path: Path, frames_per_second: float, codec: str = FAST) -> Iterator[Movie]:
    """Gives a `Movie`; its file appears at ``path`` when the block ends without an error.

    If OpenCV was built without ``codec``, an mp4 is encoded as `FAST`.

    Raises:
        OSError: it could not be written.
    """
    if path.suffix == ".gif":
        gif = _Gif(frames_per_second)
        yield gif
        write_whole(path, gif.encode())
        return
    # Through another file, because OpenCV writes to nothing else, and tells nobody of a full disk.
    with tempfile.TemporaryDirectory() as folder:
        mp4 = _Mp4(Path(folder) / "film.mp4", frames_per_second, codec)
        try:
            yield mp4
        finally:
            mp4.close()
        write_whole(path, mp4.read())


class _Mp4:
    """Encodes as it goes."""

    def __init__(self, path: Path, frames_per_second: float, codec: str) -> None:
        self._path = path
        self._frames_per_second = frames_per_second
        self._codec = codec
        self._writer: cv2.VideoWriter | None = None
        self._num_frames = 0

    def add(self, picture: Picture) -> None:
        if self._writer is None:
            height, width, _ = picture.shape
            self._writer = self._open(self._codec, (width, height))
            if self._codec != FAST and not self._writer.isOpened():
                self._writer = self._open(FAST, (width, height))
        self._writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
        self._num_frames += 1

    def _open(self, codec: str, size: tuple[int, int]) -> cv2.VideoWriter:
        code = cv2.VideoWriter.fourcc(*codec)
        return cv2.VideoWriter(str(self._path), code, self._frames_per_second, size)

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
    """Keeps its pictures until they are encoded."""

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


def read_pictures(path: Path) -> tuple[Iterator[Picture], float]:
    """Return the first `GIF_SECONDS` of a film, at most `GIF_FRAMES_PER_SECOND`, and their rate."""
    capture = cv2.VideoCapture(str(path))
    rate = capture.get(cv2.CAP_PROP_FPS)
    rate = rate if 1 <= rate <= 1000 else GIF_FRAMES_PER_SECOND
    stride = math.ceil(rate / GIF_FRAMES_PER_SECOND)

    def pictures() -> Iterator[Picture]:
        for number in range(math.ceil(GIF_SECONDS * rate)):
            is_read, picture = capture.read()
            if not is_read:
                break
            if number % stride == 0:
                yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB).astype(np.uint8)
        capture.release()

    return pictures(), rate / stride


def to_webp(pictures: list[Picture], frames_per_second: float) -> bytes:
    """Return an animated picture that browsers show, which they do not do with our mp4 files."""
    buffer = io.BytesIO()
    first, *others = map(Image.fromarray, pictures)
    delay = round(1000 / frames_per_second)
    more: dict[str, Any] = {"save_all": True, "append_images": others, "duration": delay}
    first.save(buffer, "webp", loop=0, quality=60, **more)
    return buffer.getvalue()
