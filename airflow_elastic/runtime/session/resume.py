"""The checkpoint that a run goes on from: loaded for the phase that restores it, and put back when the loop goes on.

Between `restore` and the loop, a script makes its data set, and comes by phases and epochs that are over. This must not
change the loaded state. Nor may the loaded random generators change the data that the script makes. So the generators
are put back when the loop goes on. If the script came by finished phases or epochs, everything is loaded again.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_elastic.runtime.checkpoint.restore.origin import Beginning
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.data.replacements import ReplacementPoint
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.session.phases import PhaseProgress
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.resumed import Resumed, resumed_from
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

# The work that is left before the loop goes on.
_GENERATORS = "generators"  # put random generators back
_AGAIN = "again"  # load everything once more
_NEWEST = "newest"  # load the newest checkpoint, because the phase has not called `restore` itself


class Resume:
    """Loads the checkpoint that one rank goes on from.

    Args:
        restorer: reads checkpoints; None if there is no run.
        progress: the phases, as the script goes through them.
        feed: gives the loop its data.
        beginning: loads what the run starts from; None: it starts from scratch.
    """

    def __init__(
        self,
        restorer: Restorer | None,
        progress: PhaseProgress,
        feed: DataShare,
        beginning: Beginning | None = None,
    ) -> None:
        self._restorer, self._progress, self._feed = restorer, progress, feed
        self._beginning = beginning
        self._objects: Stateful | None = None
        self._manifest: Manifest | None = None
        self._phase: int | None = None  # the phase that has called `restore`; None outside of phases
        self._order: dict[str, object] = {}  # the order of samples that the position belongs to
        self._due: str | None = None
        self._late = False  # objects were replaced again before the phase of the checkpoint

    def load(self, objects: Stateful) -> Manifest | None:
        """Load the newest checkpoint; in a phase that is complete, the one at its end. Raises as `Restorer.restore`.

        Returns None if there is none, or if the phase begins. All ranks call this together.
        """
        progress, restorer = self._progress, self._restorer
        self._objects, self._manifest, self._due = objects, None, None
        self._late = False
        self._feed.replaced.begin()
        self._phase = None if progress.current is None else progress.number
        if restorer is None or self._is_new:
            return None
        if progress.passes and progress.current is not None:
            self._manifest = restorer.restore_step(objects, progress.current.to_step)
        else:
            self._manifest = restorer.restore(objects, random_states=False)
            if self._manifest is not None:
                progress.goes_on(self._manifest.phases, self._manifest.step)
            elif self._beginning is not None and not (progress.steps or progress.walked):
                self._beginning.load(objects)
        if self._manifest is not None:
            self._stand(self._manifest)
        return self._manifest

    @property
    def _is_new(self) -> bool:
        """Whether a phase begins that has no checkpoint yet."""
        progress = self._progress
        return progress.current is not None and progress.begins and bool(progress.stored or progress.walked)

    def replaced(self, objects: Stateful) -> None:
        """The script has replaced objects, and uses these from here on.

        If it does so outside of its steps (see `Replacements`), each attempt does it again before it reaches the step
        of the checkpoint. Then the checkpoint was saved from the new objects, and is loaded into them.
        """
        place, replaced = self._place, self._feed.replaced
        if self._due == _NEWEST:  # the first line of a phase: its checkpoints are saved from the new objects
            replaced.expect(place)
        elif not (self._is_ahead and replaced.repeats(place, passes=self._progress.passes)):
            if self._due is not None:  # the checkpoint was saved before this call, from the former objects
                self.begin()
            replaced.add(place)
        elif self._due is None and self._is_to_come:
            self._late = True
        elif self._due is None:  # a loop without run.loader or run.epochs, before its next step
            self._due, self._objects = _AGAIN, objects
            self.begin()
        else:
            self._due = _AGAIN
        self._objects = objects

    @property
    def _place(self) -> ReplacementPoint:
        progress, feed = self._progress, self._feed
        between = progress.current is None and bool(progress.walked or progress.stored)
        steps = progress.current.steps if progress.current else 0 if between else progress.steps
        return ReplacementPoint(progress.number, feed.epoch, steps)

    @property
    def _is_to_come(self) -> bool:
        """Whether the script has not come to the phase of the checkpoint yet."""
        return self._progress.current is None and self._phase is None and not self._progress.begins

    @property
    def _is_ahead(self) -> bool:
        """Whether the checkpoint was saved at this point of the script, or at a later one."""
        progress, manifest = self._progress, self._manifest
        if self._due is not None:
            return True
        return manifest is not None and (
            progress.passes or self._is_to_come or progress.steps == manifest.step
        )

    def facts(self) -> Resumed | None:
        """Facts about the checkpoint that `load` will load; None if there is none. All ranks call this together."""
        progress, restorer = self._progress, self._restorer
        if restorer is None or self._is_new:
            return None
        if progress.passes and progress.current is not None:
            return resumed_from(restorer.stock.open(progress.current.to_step)[0])
        return restorer.resumed

    def peek(self, name: str) -> Any:
        """The state of an object in the checkpoint that `load` will load, or None. All ranks call this together."""
        facts = self.facts()
        return None if facts is None or self._restorer is None else self._restorer.peek(name, facts.step)

    def _stand(self, manifest: Manifest) -> None:
        self._feed.position = Position(manifest.epoch, manifest.offset, manifest.samples)
        self._order, self._due = self._feed.state_dict(), _GENERATORS
        if not self._feed.used:  # a loop without run.loader and run.epochs makes no call before it goes on
            self.begin()

    def entered(self) -> None:
        """The script has entered a phase."""
        progress, feed, restorer = self._progress, self._feed, self._restorer
        feed.enter(progress.number, passes=progress.passes, within=True)
        self._due = None
        if restorer is None or progress.begins:
            return
        if progress.passes:
            self._due = _NEWEST if self._phase is not None else None
            return
        restorer.relied = restorer.relied or progress.number > 0
        if self._objects is None:
            return
        if self._phase is not None:
            self._due = _NEWEST  # unless the phase calls `restore` itself
        elif self._manifest is not None:
            feed.load_state_dict(self._order)
            if self._late and not feed.used:
                self._load_again()
            self._late = False
            self._stand(self._manifest)
            if self._due:
                self._due = _AGAIN

    def prepare(self) -> None:
        """The loop is about to read the run's position: load the newest checkpoint, if that is due."""
        if self._due == _NEWEST and self._objects is not None and self._restorer is not None:
            self._due, current = None, self._progress.current
            if self._progress.passes and current is not None:
                self._manifest = self._restorer.restore_step(self._objects, current.to_step)
            else:
                self._manifest = self._restorer.restore(self._objects, random_states=False)
            if self._manifest is not None and self._progress.passes:
                self._stand(self._manifest)
            elif self._manifest is not None:
                self._progress.goes_on(self._manifest.phases, self._manifest.step)
                self._stand(self._manifest)

    def begin(self) -> None:
        """The loop goes on: put everything back as it was saved."""
        due, self._due = self._due, None
        if due is None or self._restorer is None:
            return
        if due == _NEWEST:
            raise InvalidInput(
                "run.step: the phase has not restored its model. Call run.restore(model, optimizer) within the phase, "
                "or loop over run.loader or run.epochs, which do so"
            )
        if due == _AGAIN or self._feed.passed:
            if due != _AGAIN:
                log.warning(
                    "the loop went through epochs that are over. The checkpoint is loaded again, to undo changes of "
                    "saved objects there. `for epoch in run.epochs(n):` begins with the run's current epoch"
                )
            self._load_again()
        self._restorer.restore_random_states()

    def _load_again(self) -> None:
        if self._objects is not None and self._manifest is not None and self._restorer is not None:
            self._restorer.restore_step(self._objects, self._manifest.step)

    def passed_by(self) -> None:
        """The script is at the end of a skipped phase: put everything back as it was at the end of the phase."""
        progress, restorer = self._progress, self._restorer
        if restorer is None or progress.current is None:
            return
        try:
            self.prepare()
        except InvalidInput as error:  # the phase had its own objects, which the script does not make now
            log.info("the objects of the phase before stay as they are: %s", error)
        if not progress.current.sealed:  # the script has repeated what comes after the last step
            self.begin()
            return
        self._due, end = None, progress.current.to_step
        if self._manifest is not None and self._manifest.step == end:
            self._load_again()
        else:
            restorer.read_random_states(end)
        restorer.restore_random_states()
