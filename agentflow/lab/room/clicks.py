"""The clicks of one control room: one thread makes their moves in order, so that no click ever blocks the kernel."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

QUIET_SECONDS = 0.25  # a second click on the same button within this time is a double click, except on OFTEN
BUSY_SECONDS = 0.3  # a move that takes longer is shown as under way, and clicks meanwhile are ignored
OFTEN = ("Step", "Back", "Forward")


class Clicks:
    """A queue of clicks, and the thread that makes their moves. `ignored` counts the clicks that came too fast.

    `slow` is called with the lane of a move that takes its time, `done` with the error of a move that has ended, or None.
    """

    def __init__(
        self, quiet_seconds: float, slow: Callable[[str], None], done: Callable[[Exception | None], None]
    ) -> None:
        self.quiet_seconds, self.ignored = quiet_seconds, 0
        self._slow, self._done = slow, done
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="room-clicks", daemon=True)
        self._last = ("", float("-inf"))  # the last click that counted, and when it was
        self._waiting, self._since = 0, 0.0

    @property
    def busy(self) -> bool:
        """Whether a move is under way or waits."""
        return self._waiting > 0

    def click(self, key: str, move: Callable[[], Any], lane: str = "") -> bool:
        """Queues the move; False if the click came too fast, and then nothing happens.

        Too fast is the second half of a double click, and any click while a move takes its time.
        """
        now, (last, then) = time.monotonic(), self._last
        quiet = 0.0 if key.startswith(OFTEN) else self.quiet_seconds
        double = key == last and now - then < quiet
        if double or (self.busy and now - self._since > BUSY_SECONDS):
            self.ignored += 1
            return False
        if not self.busy:
            self.ignored, self._since = 0, now
        self._last, self._waiting = (key, now), self._waiting + 1
        self._queue.put((move, lane))
        if self._thread.ident is None:
            self._thread.start()
        return True

    def settled(self) -> None:
        """The move under way is made and about to be shown, so the next click counts."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Makes no more moves once the one under way has ended."""
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Waits for the thread to end, at most this long."""
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _work(self) -> None:
        while (queued := self._queue.get()) is not None:
            self._since = time.monotonic()
            self._make(*queued)
            self._waiting -= 1

    def _make(self, move: Callable[[], Any], lane: str) -> None:
        slow = threading.Timer(BUSY_SECONDS, self._slow, [lane])
        slow.daemon = True
        slow.start()
        error = None
        try:
            move()
        except Exception as raised:
            error = raised
        slow.cancel()
        slow.join()  # no lane is shown as busy after its move has ended
        self._done(error)
