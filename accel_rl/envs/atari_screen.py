"""From the emulator's screen to a stack of small grey frames.

The emulator draws its screen ``[height, 160]`` as palette indices. A frame of the observation is
made in this order: grey levels of the last two screens of the step, their pixel-wise maximum
(sprites may be drawn on every other screen only), and the reduction to 104 x 80 (bottom two rows
cropped, then the 2 x 2 mean rounded half up) or to 84 x 84 (the mean over the area of each new
pixel). The newest frames make the stack, oldest first.

Speed decides the shape of this file. Asking the emulator for grey levels costs 9 us a screen, for
palette indices 0.4 us, and most rows are those of the screen before. So only the band of rows that
changed is looked up, pooled and reduced again. The table from palette index to grey level is learnt
from the emulator itself, colour by colour, since it depends on the ROM's television standard and no
function tells it.
"""

from __future__ import annotations

import ale_py
import cv2
import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.atari_config import SIZES

WIDTH = 160
CROPPED_ROWS = 2
_UNKNOWN = (
    255  # no known palette is so bright; if one were, it would be asked for again at each look
)
_WORDS = WIDTH // 8  # 64-bit words in a row, in which screens are compared


class Screen:
    """Grey frames of one emulator, and the stack of the newest ``frame_stack``.

    For each frame call `hold` when the first of its two screens is there, and `push` at the second;
    or both on the same screen, for a frame of it alone.
    """

    def __init__(self, emulator: ale_py.ALEInterface, size: str, frame_stack: int) -> None:
        self.frame_shape = SIZES[size]
        self._new_rows, self._new_columns = self.frame_shape
        height = emulator.getScreenDims()[0]
        rows = height - CROPPED_ROWS if size == "104x80" else height
        # Rows [i * block, (i + 1) * block) of the screen make rows [i * new_block, ...) of the
        # frame by themselves.
        num_blocks = int(np.gcd(rows, self._new_rows))
        self._block, self._new_block = rows // num_blocks, self._new_rows // num_blocks
        # At a factor of two both are the 2 x 2 mean; at other heights the paper's own call is
        # bilinear.
        self._interpolation = cv2.INTER_LINEAR if size == "104x80" else cv2.INTER_AREA

        self._get_screen = emulator.getScreen
        self._get_grey_screen = emulator.getScreenGrayscale
        # Two screens in turn; 255 is no colour, so that every row of the first screen counts as
        # changed.
        self._indices = [np.full((height, WIDTH), 255, np.uint8) for _ in range(2)]
        self._words = [indices[:rows].reshape(-1).view(np.uint64) for indices in self._indices]
        self._newest = 0
        self._table = np.full(256, _UNKNOWN, np.uint8)
        # Bytes beside their arrays, because bytearray.find is the quickest search there is.
        self._changed_bytes = bytearray(rows * _WORDS)
        self._changed = np.frombuffer(self._changed_bytes, np.bool_)
        self._grey_bytes = bytearray(height * WIDTH)
        self._grey = np.frombuffer(self._grey_bytes, np.uint8).reshape(height, WIDTH)
        self._pooled = np.zeros((rows, WIDTH), np.uint8)
        self._frame = np.zeros(self.frame_shape, np.uint8)  # always the reduction of `_pooled`
        self._none = (rows, 0)  # a band of no rows, neutral under min and max
        self._unequal = self._none  # where `_pooled` may differ from `_grey`
        self._stale = self._none  # where `_pooled` has changed since the last frame

        # Every frame is written twice, `frame_stack` slots apart: then the newest are always
        # contiguous.
        history = np.zeros((2, frame_stack, *self.frame_shape), np.uint8)
        self._history = history
        self._slots = [history[:, i] for i in range(frame_stack)]
        flat = history.reshape(2 * frame_stack, *self.frame_shape)
        self._stacks = [flat[i + 1 : i + 1 + frame_stack] for i in range(frame_stack)]
        self._slot = 0

    def hold(self) -> None:
        """Takes the emulator's screen as the first of the frame's two."""
        first, last = self._look()
        first, last = min(first, self._unequal[0]), max(last, self._unequal[1])
        if first < last:
            self._pooled[first:last] = self._grey[first:last]
        self._stale = first, last

    def push(self, out: NDArray[np.uint8]) -> None:
        """Pools the emulator's screen with the held one into a frame, and writes the stack to
        ``out``.

        ``out``: ``[frame_stack, rows, columns]``, oldest frame first.
        """
        self._unequal = first, last = self._look()
        if first < last:
            pooled = self._pooled[first:last]
            np.maximum(pooled, self._grey[first:last], out=pooled)
        self._reduce(min(first, self._stale[0]), max(last, self._stale[1]))
        self.push_frame(self._frame, out)

    def push_frame(self, frame: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Appends a frame made before, ``[rows, columns]``, and writes the stack to ``out``."""
        slot = self._slot
        self._slots[slot][...] = frame
        out[...] = self._stacks[slot]
        self._slot = slot + 1 if slot + 1 < len(self._slots) else 0

    def blank(self) -> None:
        """Forgets the stack: its frames are black."""
        self._history[...] = 0

    def _look(self) -> tuple[int, int]:
        """Brings `_grey` up to the emulator's screen; returns the band of rows that changed, or
        none."""
        old, new = self._newest, 1 - self._newest
        indices = self._indices[new]
        self._get_screen(indices)
        np.not_equal(self._words[new], self._words[old], out=self._changed)
        first = self._changed_bytes.find(1)
        if first < 0:
            return self._none
        first //= _WORDS
        last = self._changed_bytes.rfind(1) // _WORDS + 1
        self._newest = new
        cv2.LUT(indices[first:last], self._table, self._grey[first:last])
        if self._grey_bytes.find(_UNKNOWN, first * WIDTH, last * WIDTH) >= 0:
            self._get_grey_screen(self._grey)
            self._table[indices] = self._grey
        return first, last

    def _reduce(self, first: int, last: int) -> None:
        """Brings the rows of `_frame` up to date that stem from rows ``first`` to ``last`` of
        `_pooled`."""
        if first >= last:
            return
        first, last = first // self._block, -(-last // self._block)
        cv2.resize(
            self._pooled[first * self._block : last * self._block],
            (self._new_columns, (last - first) * self._new_block),
            self._frame[first * self._new_block : last * self._new_block],
            0,
            0,
            self._interpolation,
        )
