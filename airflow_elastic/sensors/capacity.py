"""ElasticCapacitySensor: waits until there is room for workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_elastic.engines.api import ROOM_LIMITS
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.deferral import check_trigger
from airflow_elastic.operators.task.parameters import (
    build_spec,
    early_problems,
    in_own_names,
    interval_problem,
    is_templated,
)
from airflow_elastic.sensors.base import limit_problem
from airflow_elastic.spec.errors import ElasticError, InvalidInput, Problem, SpecError
from airflow_elastic.triggers.capacity import ElasticCapacityTrigger, RoomReader, has_room, shortage

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.spec.run import RunSpec

#: The parameters of ElasticTrainOperator that this sensor has, too.
_OF_SPEC = ("workers", "worker_resources", "procs_per_worker", "engine", "engine_options")


class ElasticCapacitySensor(BaseSensorOperator):
    """Waits until an engine has room for so many workers, so that a training starts when it can.

        ElasticCapacitySensor(task_id="room", workers=4, worker_resources={"cpu": "2", "memory": "8Gi"})

    Give it the arguments of the training. On a cluster free resources of usable nodes,
    ResourceQuotas of the namespace, and the free quota of the queue (Kueue, Volcano) count. On the engine `local` it
    counts processors, memory and GPUs of the triggerer's machine. Nothing is reserved: somebody else may take the room
    before the training comes. The log says what limits it. The result is a dict. `workers` says for how many there is
    room; None means without limit. `limits` has a `name`, `workers` and `text` for each limit. Give the task `retries`:
    with Airflow 3.3 a try fails that finds room before a busy scheduler hears that it waits.

    Args:
        workers: for how many workers there must be room. Default: 1.
        worker_resources: resources of each worker, e.g. `{"cpu": "4", "memory": "8Gi"}`.
        procs_per_worker: ranks of each worker. Default: 1.
        engine: where workers will run. Default: the connection's engine, else `local`.
        engine_options: options of that engine, the same as for the training.
        limits: which limits count: `nodes`, `quotas`, `queue`. Without `nodes` a cluster that adds nodes on demand is
            not waited for. Default: all.
        elastic_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: the longest time between two looks, seconds. Default: 60.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = (*_OF_SPEC, "elastic_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"engine_options": "json"}
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        workers: int | str = 1,
        worker_resources: Mapping[str, str] | None = None,
        procs_per_worker: int | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        limits: Collection[str] | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        deferrable: bool = True,
        poke_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        numbers = interval_problem("poke_interval", poke_interval), limit_problem(kwargs.get("timeout"))
        problems = [problem for problem in numbers if problem is not None]
        if limits is not None and (not limits or isinstance(limits, str) or not {*limits} <= {*ROOM_LIMITS}):
            problems.append(Problem("limits", limits, f"a list of some of {', '.join(ROOM_LIMITS)}"))
        if problems:
            raise SpecError(*problems).below(str(kwargs.get("task_id")))
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.workers, self.worker_resources = workers, worker_resources
        self.procs_per_worker = procs_per_worker
        self.engine, self.engine_options = engine, engine_options
        self.limits = list(limits or ROOM_LIMITS)
        self.elastic_conn_id = elastic_conn_id
        self.deferrable = deferrable
        self._refuse_early()

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer, on whose machine local workers will run; poke if `deferrable` is False."""
        if not self.deferrable:
            return super().execute(context)
        hook = ElasticHook(self.elastic_conn_id)
        spec = self._spec(hook)
        trigger = ElasticCapacityTrigger(
            spec=spec.to_dict(),
            workers=spec.workers.count,
            limits=self.limits,
            elastic_conn_id=self.elastic_conn_id,
            poll_seconds=self.poke_interval,
            connection_required=hook.is_defined,
        )
        check_trigger(trigger)
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        raise AssertionError("defer raises")

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the room after the trigger has fired. Raises AirflowException if it cannot be found out."""
        if "error" in event:
            raise AirflowFailException(str(event["error"]))
        return event["reached"]

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether there is room now."""
        hook = ElasticHook(self.elastic_conn_id)
        spec = self._spec(hook)
        try:
            room = RoomReader(hook, spec, self.limits).look()
        except InvalidInput as error:
            raise _refusal(error) from error
        except ElasticError as error:
            raise AirflowException(str(error)) from error
        found = has_room(room, spec.workers.count)
        if found is None:
            self.log.info("%s", shortage(room, spec.workers.count))
        return PokeReturnValue(found is not None, found)

    def _spec(self, hook: ElasticHook) -> RunSpec:
        engine = self.engine or hook.settings.engine
        given = {name: getattr(self, name) for name in _OF_SPEC}
        given |= {"engine": engine, "engine_options": hook.engine_options(engine, self.engine_options)}
        try:
            spec = build_spec({**given, "command": ["?"]}, name="room")
            hook.engine(spec.engine).check(spec)
        except InvalidInput as error:
            raise _refusal(error) from error
        return spec

    def _refuse_early(self) -> None:
        given: dict[str, Any] = {
            name: getattr(self, name) for name in (*_OF_SPEC, "elastic_conn_id", "deferrable")
        }
        late = {name for name in self.template_fields if is_templated(given.get(name))}
        if problems := early_problems({**given, "command": ["?"], "poll_interval": self.poke_interval}, late):
            raise SpecError(*problems).below(self.task_id)


def _refusal(error: InvalidInput) -> AirflowFailException:
    """The exception for what no other try can help, in the names of the sensor's own arguments."""
    return AirflowFailException(str(in_own_names(error) if isinstance(error, SpecError) else error))
