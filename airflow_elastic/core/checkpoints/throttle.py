"""How fast a state is sent to storage beside training: as fast as training keeps its speed.

What both of them need, processors, memory, the network, and how much of it is to spare, nobody here knows. So the steps
themselves are watched: where they take longer than without it, less is sent, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The share of its speed that training is to lose at the most, and the share that something is done about.
LOSS, FELT = 0.03, 0.05

_STEPS, _SECONDS = 10, 1.0  # at the least, that are compared
_UP, _DOWN = 1.25, 0.2
_SLOWEST = 0.1  # of the speed that there was without a limit: what is felt may have another reason

#: A training that does no step for so long, in seconds and in steps, is not there to be spared: it may hang.
_STILL_SECONDS, _STILL_STEPS = 2.0, 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is seen of a training, and of what is sent beside it.

    Attributes:
        who: trains: of another one nothing is known from this.
        at: seconds on a clock.
        steps: optimizer steps that it has done.
        stepping: seconds that it has spent in them, since `first`.
        sent: bytes, since anything was.
        first: steps that it had done when it had done its first one, which takes longer than the others.
    """

    who: str
    at: float
    steps: float
    stepping: float
    sent: int
    first: float = 0.0

    def moved(self, since: Measurement, to: Measurement) -> Measurement:
        """The same, as far from `to` as it is from `since`: what was between them is left out."""
        return Measurement(
            to.who,
            self.at + to.at - since.at,
            self.steps + to.steps - since.steps,
            self.stepping + to.stepping - since.stepping,
            self.sent + to.sent - since.sent,
            to.first,
        )


def step_seconds(since: Measurement, now: Measurement) -> float | None:
    """How long a step takes, between two looks; None where too few were done."""
    steps, spent = now.steps - since.steps, now.stepping - since.stepping
    return spent / steps if now.who == since.who and steps >= _STEPS and spent > 0 else None


class Throttle:
    """Finds the speed for one training, over all that is sent beside it."""

    def __init__(self) -> None:
        self._rate: float | None = None  # as it would be without a time by which it has to be there
        self._alone: float | None = None  # seconds of a step, with nothing beside it
        self._fastest = 0.0
        self._least = 0.0
        self._since: Measurement | None = None  # what is compared while something is sent
        self._ended: Measurement | None = None
        self._moved: Measurement | None = None  # when a step was seen to be done

    def begin(self, look: Measurement, size: int, seconds: float | None) -> None:
        """Something is about to be sent.

        Args:
            look: now.
            size: how many bytes it is.
            seconds: within which it is to be there; None where that does not matter.
        """
        ended, since = self._ended, self._since
        if ended is None or since is None or {ended.who, since.who} != {look.who}:
            self._rate, self._fastest, self._since = None, 0.0, look
            self._alone = step_seconds(replace(look, steps=look.first, stepping=0.0), look)
        else:
            self._alone = step_seconds(ended, look) or self._alone
            self._since = since.moved(ended, look)  # a save may be sent within fewer steps than can be judged
        self._least = size / seconds if seconds else 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second; None without a limit."""
        return None if self._rate is None else max(self._rate, self._least)

    def rate_beside(self, look: Measurement | None) -> float | None:
        """The same, and None also where that training is over, is another one by now, or stands still."""
        since, moved = self._since, self._moved
        if look is None or since is None or look.who != since.who:
            return None
        if moved is None or (moved.who, moved.steps) != (look.who, look.steps):
            moved = self._moved = look
        still = look.at - moved.at > max(_STILL_SECONDS, _STILL_STEPS * (self._alone or 0.0))
        return None if still else self.rate

    def at_best(self, size: int, seconds: float) -> float:
        """How long what took so many seconds would have taken, had nothing been held back, as far as is known."""
        return min(seconds, size / self._fastest) if self._fastest else seconds

    def sending(self, look: Measurement) -> None:
        """It is being sent. To be told often; counts where enough steps were done since it did last."""
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
        """It is sent: from here on training is alone."""
        self._ended = look
