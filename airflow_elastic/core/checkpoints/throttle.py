"""How fast to send a state to storage beside training: as fast as training keeps its speed.

Both share processors, memory and the network. How much of them is free is unknown. So this measures the training steps:
if they take longer than without an upload, it sends less, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The largest share of its speed that training should lose, and the share from which on the upload is slowed.
LOSS, FELT = 0.03, 0.05

_STEPS, _SECONDS = 10, 1.0  # the least to compare
_UP, _DOWN = 1.25, 0.2
_SLOWEST = 0.1  # of the speed without a limit; a slowdown that is felt may have another cause

#: A training without a step for so long, in seconds and in steps, is not spared: it may hang.
_STILL_SECONDS, _STILL_STEPS = 2.0, 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """The progress of a training, and of the upload beside it, at one moment.

    Attributes:
        who: identifies the training; looks at different ones cannot be compared.
        at: seconds on a clock.
        steps: optimizer steps done.
        stepping: seconds spent in steps since `first`.
        sent: bytes sent so far.
        first: the number of steps after its first one, which takes longer than the others.
    """

    who: str
    at: float
    steps: float
    stepping: float
    sent: int
    first: float = 0.0

    def moved(self, since: Measurement, to: Measurement) -> Measurement:
        """The same look, moved by the distance from `since` to `to`: what happened between them does not count."""
        return Measurement(
            to.who,
            self.at + to.at - since.at,
            self.steps + to.steps - since.steps,
            self.stepping + to.stepping - since.stepping,
            self.sent + to.sent - since.sent,
            to.first,
        )


def step_seconds(since: Measurement, now: Measurement) -> float | None:
    """Seconds of a step, between two looks; None if there were too few steps."""
    steps, spent = now.steps - since.steps, now.stepping - since.stepping
    return spent / steps if now.who == since.who and steps >= _STEPS and spent > 0 else None


class Throttle:
    """Finds the upload speed for one training, over all uploads beside it."""

    def __init__(self) -> None:
        self._rate: float | None = None  # without the limit by `_least`
        self._alone: float | None = None  # seconds of a step, without an upload
        self._fastest = 0.0
        self._least = 0.0
        self._since: Measurement | None = None  # the last look to compare with, during an upload
        self._ended: Measurement | None = None
        self._moved: Measurement | None = None  # the look at the newest step

    def begin(self, look: Measurement, size: int, seconds: float | None) -> None:
        """An upload begins.

        Args:
            look: now.
            size: its bytes.
            seconds: the time in which it has to finish; None if that does not matter.
        """
        ended, since = self._ended, self._since
        if ended is None or since is None or {ended.who, since.who} != {look.who}:
            self._rate, self._fastest, self._since = None, 0.0, look
            self._alone = step_seconds(replace(look, steps=look.first, stepping=0.0), look)
        else:
            self._alone = step_seconds(ended, look) or self._alone
            self._since = since.moved(ended, look)  # an upload may be too short to be judged by itself
        self._least = size / seconds if seconds else 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second; None without a limit."""
        return None if self._rate is None else max(self._rate, self._least)

    def rate_beside(self, look: Measurement | None) -> float | None:
        """The same; None also if that training is over, has been replaced, or stands still."""
        since, moved = self._since, self._moved
        if look is None or since is None or look.who != since.who:
            return None
        if moved is None or (moved.who, moved.steps) != (look.who, look.steps):
            moved = self._moved = look
        still = look.at - moved.at > max(_STILL_SECONDS, _STILL_STEPS * (self._alone or 0.0))
        return None if still else self.rate

    def at_best(self, size: int, seconds: float) -> float:
        """The duration of an upload that took so many seconds, had it not been slowed, as far as is known."""
        return min(seconds, size / self._fastest) if self._fastest else seconds

    def sending(self, look: Measurement) -> None:
        """An upload goes on. Call this often; it counts once enough steps were done since it last counted."""
        since, alone = self._since, self._alone
        if since is not None and look.who != since.who:
            self._rate, self._alone, self._since = None, None, look
            return
        if since is None or look.at - since.at < _SECONDS:
            return
        now = step_seconds(since, look)
        if now is None:
            return
        rate = (look.sent - since.sent) / (look.at - since.at)
        if self._rate is None:
            self._fastest = max(self._fastest, rate)
        self._since = look
        if alone is None:
            return
        loss = 1 - alone / now
        if loss > FELT:
            self._rate = max(rate * max(_DOWN, LOSS / loss), self._fastest * _SLOWEST)
        elif self._rate is not None and loss < LOSS:
            self._rate = None if self._rate * _UP > self._fastest else self._rate * _UP

    def end(self, look: Measurement) -> None:
        """The upload is done: from here on training is alone."""
        self._ended = look
