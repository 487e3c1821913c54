"""What a run goes on from: loaded for the phase that asks for it, and as it was saved when the loop goes on.

Between `restore` and the loop a script makes its data, goes through phases and epochs that are over, and does there
what belongs to them. None of that is to change what was loaded, nor is what was loaded to change what is drawn at
random for it: so generators are put back when the loop goes on, and so is all the rest where something was passed by.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.replacements import ReplacementPoint
from airflow_elastic.runtime.checkpoint.save.save import Position, Stateful
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.session.phases import PhaseProgress
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.resumed import Resumed, resumed_from
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

#: What is still to be done before the loop goes on: put generators back; load everything once more; load the newest
#: checkpoint, as the phase has not done so itself.
_LUCK, _AGAIN, _NEWEST = "luck", "again", "newest"


class Resume:
    """What one rank goes on from.

    Args:
        restorer: reads checkpoints; None where there is no run.
        course: the phases, as the script goes through them.
        feed: what the loop is given.
    """

    def __init__(self, restorer: Restorer | None, course: PhaseProgress, feed: DataShare) -> None:
        self._restorer, self._course, self._feed = restorer, course, feed
        self._objects: Stateful | None = None
        self._manifest: Manifest | None = None
        self._phase: int | None = None  # that has loaded it; None: what was loaded is for all of them
        self._order: dict[str, object] = {}  # that the position is of
        self._due: str | None = None
        self._late = False  # something was replaced again before the training that the checkpoint is of

    def load(self, objects: Stateful) -> Manifest | None:
        """Load what the script's place says: the end of a phase that is complete, or the newest checkpoint. None where
        there is none, or where the phase begins. All ranks call this together. Raises as `Restorer.restore`.
        """
        course, restorer = self._course, self._restorer
        self._objects, self._manifest, self._due = objects, None, None
        self._late = False
        self._feed.replaced.begin()
        self._phase = None if course.current is None else course.number
        if restorer is None or self._is_new:
            return None
        if course.passes and course.current is not None:
            self._manifest = restorer.restore_step(objects, course.current.to_step)
        else:
            self._manifest = restorer.restore(objects, random_states=False)
            if self._manifest is not None:
                course.goes_on(self._manifest.phases, self._manifest.step)
        if self._manifest is not None:
            self._stand(self._manifest)
        return self._manifest

    @property
    def _is_new(self) -> bool:
        """Whether a phase begins, for which there is nothing to load."""
        course = self._course
        return course.current is not None and course.begins and bool(course.stored or course.walked)

    def replaced(self, objects: Stateful) -> None:
        """The script has these from here on.

        What it replaces outside of its steps (see `Replacements`) it replaces again in each attempt, before it has come
        to where the checkpoint stands: that has been saved of those that replace, and is loaded into them.
        """
        place, replaced = self._place, self._feed.replaced
        if self._due == _NEWEST:  # the first line of a phase that has begun: its checkpoints are of these
            replaced.expect(place)
        elif not (self._is_ahead and replaced.repeats(place, passes=self._course.passes)):
            if self._due is not None:  # saved before: what there was until now has it
                self.begin()
            replaced.add(place)
        elif self._due is None and self._is_to_come:
            self._late = True
        elif self._due is None:  # a loop of the script's own, before its next step
            self._due, self._objects = _AGAIN, objects
            self.begin()
        else:
            self._due = _AGAIN
        self._objects = objects

    @property
    def _place(self) -> ReplacementPoint:
        course, feed = self._course, self._feed
        between = course.current is None and bool(course.walked or course.stored)
        steps = course.current.steps if course.current else 0 if between else course.steps
        return ReplacementPoint(course.number, feed.epoch, steps)

    @property
    def _is_to_come(self) -> bool:
        """Whether the training that the checkpoint is of is to come yet."""
        return self._course.current is None and self._phase is None and not self._course.begins

    @property
    def _is_ahead(self) -> bool:
        """Whether the checkpoint is of a later moment than the script has come to, or of this one."""
        course, manifest = self._course, self._manifest
        if self._due is not None:
            return True
        return manifest is not None and (course.passes or self._is_to_come or course.steps == manifest.step)

    def facts(self) -> Resumed | None:
        """Of what `load` is going to load; None where there is nothing. All ranks call this together."""
        course, restorer = self._course, self._restorer
        if restorer is None or self._is_new:
            return None
        if course.passes and course.current is not None:
            return resumed_from(restorer.stock.open(course.current.to_step)[0])
        return restorer.resumed

    def peek(self, name: str) -> Any:
        """The state of an object in what `load` is going to load; None where there is none. All ranks together."""
        facts = self.facts()
        return None if facts is None or self._restorer is None else self._restorer.peek(name, facts.step)

    def _stand(self, manifest: Manifest) -> None:
        self._feed.position = Position(manifest.epoch, manifest.offset, manifest.samples)
        self._order, self._due = self._feed.state_dict(), _LUCK
        if not self._feed.used:  # nothing of ours is called before a loop of the script's own goes on
            self.begin()

    def entered(self) -> None:
        """The script has come to a phase."""
        course, feed, restorer = self._course, self._feed, self._restorer
        feed.enter(course.number, passes=course.passes, within=True)
        self._due = None
        if restorer is None or course.begins:
            return
        if course.passes:
            self._due = _NEWEST if self._phase is not None else None
            return
        restorer.relied = restorer.relied or course.number > 0
        if self._objects is None:
            return
        if self._phase is not None:
            self._due = _NEWEST  # unless the phase restores what it trains itself
        elif self._manifest is not None:
            feed.load_state_dict(self._order)
            if self._late and not feed.used:
                self._load_again()
            self._late = False
            self._stand(self._manifest)
            if self._due:
                self._due = _AGAIN

    def prepare(self) -> None:
        """The loop is about to ask where it stands."""
        if self._due == _NEWEST and self._objects is not None and self._restorer is not None:
            self._due, current = None, self._course.current
            if self._course.passes and current is not None:
                self._manifest = self._restorer.restore_step(self._objects, current.to_step)
            else:
                self._manifest = self._restorer.restore(self._objects, random_states=False)
            if self._manifest is not None and self._course.passes:
                self._stand(self._manifest)
            elif self._manifest is not None:
                self._course.goes_on(self._manifest.phases, self._manifest.step)
                self._stand(self._manifest)

    def begin(self) -> None:
        """The loop goes on: from here on, all is as it was saved."""
        due, self._due = self._due, None
        if due is None or self._restorer is None:
            return
        if due == _NEWEST:
            raise InvalidInput(
                "run.step: the phase has not restored what it trains; allowed: a loop over run.loader or run.epochs, "
                "which has that restored, or run.restore(model, optimizer) within the phase"
            )
        if due == _AGAIN or self._feed.passed:
            if due != _AGAIN:
                log.warning(
                    "the loop went through epochs that are over: what it did there to what is saved is undone by "
                    "loading it once more. `for epoch in run.epochs(n):` begins with the epoch that the run is in"
                )
            self._load_again()
        self._restorer.restore_random_states()

    def _load_again(self) -> None:
        if self._objects is not None and self._manifest is not None and self._restorer is not None:
            self._restorer.restore_step(self._objects, self._manifest.step)

    def passed_by(self) -> None:
        """The script is at the end of a phase that is complete: all is as the phase had left it."""
        course, restorer = self._course, self._restorer
        if restorer is None or course.current is None:
            return
        try:
            self.prepare()
        except InvalidInput as error:  # the phase has objects of its own, and its script leaves them out
            log.info("the objects of the phase before stay as they are: %s", error)
        if not course.current.sealed:  # what came after its last step was done again
            self.begin()
            return
        self._due, end = None, course.current.to_step
        if self._manifest is not None and self._manifest.step == end:
            self._load_again()
        else:
            restorer.read_random_states(end)
        restorer.restore_random_states()
