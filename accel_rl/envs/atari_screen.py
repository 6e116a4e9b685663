"""From the emulator's screen to a stack of small grey frames.

The emulator draws its screen ``[height, 160]`` as palette indices. A frame of the observation is
made in this order: grey levels of the last two screens of the step, their pixel-wise maximum
(sprites may be drawn on every other screen only), and the reduction to 104 x 80 (bottom two rows
cropped, then the 2 x 2 mean rounded half up) or to 84 x 84 (the mean over the area of each new
pixel). The newest frames make the stack, oldest first.

Speed decides the shape of this file. Asking the emulator for grey levels costs 9 us a screen, for
palette indices 0.4 us, and most rows are those of the screen before: only the band of rows that
changed is looked up, pooled and reduced again. After some 200 us of emulation the caches are cold,
so that memory counts for more than arithmetic: an environment keeps little of its own, all the rest
goes through buffers that its thread uses for every environment.
"""

from __future__ import annotations

import functools
import math
import threading

import ale_py
import cv2
import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.atari_config import SIZES
from accel_rl.envs.base import EnvState

WIDTH = 160
CROPPED_ROWS = 2
_WORDS = WIDTH // 8  # 64-bit words in a row, in which screens are compared

# Grey level of each colour that the NTSC console can show, by palette index (all are even), as
# `getScreenGrayscale` gives them. It cannot be asked for; `shows_ntsc_colours` compares.
_NTSC = bytes.fromhex(
    "004a6f8eaac0d6ec405f7a94acc1d6e93f576e8396a7b8c73b556b8194a7b7c7"
    "2c445a6e8092a1b0334a5f738495a4b2273f556b7d8f9fae16314960748899a9"
    "1129405568798999203c556d8296a8ba28455f788da2b6c82b4a657f97adc1d4"
    "2847627c93a9bdcf294a68849db5cbdf2f4f6b859db3c8dc2f4f6b859db3c8dc"
)
NTSC_GREY = np.repeat(np.frombuffer(_NTSC, np.uint8), 2)
_SAME = np.arange(256, dtype=np.uint8)


def shows_ntsc_colours(emulator: ale_py.ALEInterface) -> bool:
    """Return whether `NTSC_GREY` has the grey levels of the emulator's present screen."""
    return np.array_equal(NTSC_GREY[emulator.getScreen()], emulator.getScreenGrayscale())


class _Buffers:
    """Arrays that a frame needs only between its `Screen.hold` and its `Screen.push`."""

    def __init__(self, size: tuple[int, int]) -> None:
        height, rows = size
        self.held = np.zeros((height, WIDTH), np.uint8)
        self.new = np.zeros((height, WIDTH), np.uint8)
        self.held_words = self.held[:rows].view(np.uint64)
        self.new_words = self.new[:rows].view(np.uint64)
        # Bytes beside their array, because bytearray.find is the quickest search there is.
        self.changed_bytes = bytearray(rows * _WORDS)
        self.changed = np.frombuffer(self.changed_bytes, np.bool_).reshape(rows, _WORDS)
        self.grey = np.zeros((rows, WIDTH), np.uint8)


class _ThreadBuffers(threading.local):
    """The running thread's `_Buffers` for each (height, rows), so that threads cannot clash."""

    def __init__(self) -> None:
        self.buffers = functools.cache(_Buffers)


_thread = _ThreadBuffers()


class Screen:
    """Grey frames of one emulator, and the stack of the newest ``frame_stack``.

    For each frame call `hold` at the first of its two screens, and `push` at the second, with no
    other screen of this thread in between. A game whose palette is not `NTSC_GREY` (``is_ntsc`` is
    False) costs 20 us more a frame.
    """

    def __init__(
        self, emulator: ale_py.ALEInterface, size: str, frame_stack: int, is_ntsc: bool
    ) -> None:
        self._new_rows, self._new_columns = SIZES[size]
        height = emulator.getScreenDims()[0]
        rows = height - CROPPED_ROWS if size == "104x80" else height
        self._size = height, rows
        # Rows [i * block, (i + 1) * block) of the screen alone make rows [i * new_block, ...) of
        # the frame.
        num_blocks = math.gcd(rows, self._new_rows)
        self._block, self._new_block = rows // num_blocks, self._new_rows // num_blocks
        # At a factor of two both are the 2 x 2 mean; at others the paper's own call is bilinear.
        self._interpolation = cv2.INTER_LINEAR if size == "104x80" else cv2.INTER_AREA

        self._get_screen = emulator.getScreen if is_ntsc else emulator.getScreenGrayscale
        self._table = NTSC_GREY if is_ntsc else _SAME
        # The last screen and the frame: at first black, as index 0 is.
        self._last = np.zeros((rows, WIDTH), np.uint8)
        self._last_words = self._last.view(np.uint64)
        self._frame = np.zeros((self._new_rows, self._new_columns), np.uint8)
        # Rows (first, last) in which that frame is not the reduction of the last screen alone,
        # because the one held before differed.
        self._no_rows = (rows, 0)  # neutral under min and max
        self._pooled_rows = self._no_rows
        self._history = np.zeros((frame_stack, *self._frame.shape), np.uint8)  # a ring
        self._oldest = 0
        # Indices of all frames, oldest first, by that of the oldest.
        self._orders = [np.roll(np.arange(frame_stack), -first) for first in range(frame_stack)]

    def hold(self) -> None:
        """Take the emulator's screen as the first of the frame's two."""
        self._buffers = _thread.buffers(self._size)
        self._get_screen(self._buffers.held)

    def push(self, out: NDArray[np.uint8]) -> None:
        """Pool the emulator's screen with the held one, and write the new stack to ``out``.

        Args:
            out: ``[frame_stack, rows, columns]``, oldest frame first.
        """
        self._update_frame()
        self.push_frame(self._frame, out)

    def push_frame(self, frame: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Append a frame made before, ``[rows, columns]``, and write the stack to ``out``."""
        history, oldest = self._history, self._oldest
        history[oldest] = frame
        self._oldest = oldest = (oldest + 1) % len(history)
        history.take(self._orders[oldest], 0, out, "clip")

    def frame_alone(self) -> NDArray[np.uint8]:
        """Return a frame ``[rows, columns]`` of the emulator's screen, without pushing it."""
        self.hold()
        self._update_frame()
        return self._frame.copy()

    def blank(self) -> None:
        """Make all frames of the stack black."""
        self._history[...] = 0

    def get_state(self) -> EnvState:
        """Return everything but the emulator that the next frames depend on."""
        return {
            "last": self._last.copy(),
            "frame": self._frame.copy(),
            "pooled_rows": list(self._pooled_rows),
            "history": np.roll(self._history, -self._oldest, axis=0),
        }

    def set_state(self, state: EnvState) -> None:
        self._last[...] = state["last"]
        self._frame[...] = state["frame"]
        self._pooled_rows = tuple(state["pooled_rows"])
        self._history[...], self._oldest = state["history"], 0

    def _update_frame(self) -> None:
        """Makes `_frame` of the held screen and the emulator's present one."""
        buffers = self._buffers
        new, changed = buffers.new, buffers.changed_bytes
        self._get_screen(new)
        top, bottom = self._pooled_rows
        self._pooled_rows = self._no_rows

        np.not_equal(buffers.new_words, self._last_words, out=buffers.changed)
        first = changed.find(1)
        if first >= 0:
            first, last = first // _WORDS, changed.rfind(1) // _WORDS + 1
            self._last[first:last] = new[first:last]
            top, bottom = min(first, top), max(last, bottom)

        np.not_equal(buffers.held_words, buffers.new_words, out=buffers.changed)
        first = changed.find(1)
        differs = first >= 0
        if differs:
            first, last = first // _WORDS, changed.rfind(1) // _WORDS + 1
            self._pooled_rows = first, last
            top, bottom = min(first, top), max(last, bottom)
        elif not bottom:
            return

        block, new_block = self._block, self._new_block
        start, end = top // block, -(-bottom // block)
        rows = slice(start * block, end * block)
        grey = buffers.grey
        cv2.LUT(new[rows], self._table, grey[rows])
        if differs:
            band = grey[first:last]
            cv2.max(band, cv2.LUT(buffers.held[first:last], self._table), band)
        cv2.resize(
            grey[rows],
            (self._new_columns, (end - start) * new_block),
            self._frame[start * new_block : end * new_block],
            0,
            0,
            self._interpolation,
        )
