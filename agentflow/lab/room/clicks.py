"""The clicks of one control room: made in their order by one thread, so that none ever blocks the kernel.

What lives here: which click counts and which comes too fast. What does not: what a click does (`stage`), buttons (`room`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

QUIET_SECONDS = (
    0.25  # a click on the same button again within this time is a double click, except on those pressed often
)
BUSY_SECONDS = 0.3  # a move that takes longer is shown as under way, and clicks meanwhile are ignored
OFTEN = ("Step", "Back", "Forward")

Move = Callable[[], Any]


class Clicks:
    """A queue of clicks, and the hand that makes them. `ignored` counts those that came too fast.

    `slow` is told the lane of a move that takes its time; `done` what went wrong (None: nothing) when a move has ended.
    """

    def __init__(
        self, quiet_seconds: float, slow: Callable[[str], None], done: Callable[[Exception | None], None]
    ) -> None:
        self.quiet_seconds, self.ignored = quiet_seconds, 0
        self._slow, self._done = slow, done
        self._queue: queue.SimpleQueue[tuple[Move, str] | None] = queue.SimpleQueue()
        self._hand: threading.Thread | None = None
        self._last = ("", float("-inf"))  # the last click that counted, and when it was
        self._waiting, self._since = 0, 0.0

    @property
    def busy(self) -> bool:
        """Whether a move is under way or waits."""
        return self._waiting > 0

    def click(self, key: str, move: Move, lane: str = "") -> bool:
        """Whether the move will be made, as soon as those before it have ended.

        Half a double click is not, and neither is a click while a move takes its time.
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
        if self._hand is None:
            self._hand = threading.Thread(target=self._work, name="room-hand", daemon=True)
            self._hand.start()
        return True

    def settled(self) -> None:
        """The move under way is made and about to be shown: whoever sees it may click again."""
        self._since = time.monotonic()

    def end(self) -> None:
        """No click is made any more, once the move under way has ended."""
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """The hand's thread is gone, if it ends within this time."""
        if self._hand and self._hand is not threading.current_thread():
            self._hand.join(seconds)

    def _work(self) -> None:
        while (told := self._queue.get()) is not None:
            self._since = time.monotonic()
            self._make(*told)
            self._waiting -= 1

    def _make(self, move: Move, lane: str) -> None:
        slow = threading.Timer(BUSY_SECONDS, self._slow, [lane])
        slow.daemon = True
        slow.start()
        error = None
        try:
            move()
        except Exception as raised:
            error = raised
        slow.cancel()
        self._done(error)
