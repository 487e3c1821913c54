"""A task made of a function: its body is the script, or it returns the command."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    SET_DURING_EXECUTION,
    DecoratedOperator,
    context_merge,
    determine_kwargs,
)
from airflow.sdk.exceptions import AirflowFailException

from airflow_elastic.decorators.script import Script, script_of
from airflow_elastic.operators.task.parameters import is_templated
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.validation import not_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.spec.run import RunSpec

#: Linux takes no longer argument of a program than 128 KiB.
_MOST_ARGUMENT_BYTES = 120 * 1024


class FunctionTask(DecoratedOperator):
    """Gives the operator after it, which drives a run, the decorated function as its script.

    Args:
        python_callable: the function. Without a `return` of a value, its body is the script, and workers run it. Else
            a worker of Airflow calls it at each try for the command; it must return the same command each time.
        op_args: its positional arguments.
        op_kwargs: its keyword arguments.
        kwargs: arguments of that operator.
    """

    command: Sequence[str] | str
    env: Mapping[str, str] | None
    overwrite_rtif_after_execution: bool = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        script = _script(python_callable, kwargs.get("env"))
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            command=SET_DURING_EXECUTION,
            **kwargs,
        )
        if script is not None:
            fixed = {name: one for name, one in self._arguments().items() if not is_templated(one)}
            _as_json(self.python_callable.__name__, fixed)

    def execute(self, context: Context) -> Any:
        """Make the script of the function, or call it for the command; then train. A resumed task does neither."""
        script = _script(self.python_callable, self.env)
        if script is not None:
            self.command = self._call_of(script)
            return super().execute(context)
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        command = self.python_callable(*self.op_args, **kwargs)
        if not command or not isinstance(command, str | list | tuple):
            raise AirflowFailException(
                f"the function {self.python_callable.__name__} returned {command!r}; allowed: the command, as a list "
                "of a script and its arguments, or as one line. A function that is the script itself returns nothing: "
                "it gives its results to `run.finish`"
            )
        self.command = command
        self.render_template_fields(context)
        return super().execute(context)

    def _spec(self, context: Context, hook: ElasticHook) -> RunSpec:
        spec: RunSpec = super()._spec(context, hook)  # type: ignore[misc]
        script = _script(self.python_callable, self.env)
        return spec if script is None else replace(spec, script=script.text)

    def _call_of(self, script: Script) -> list[str]:
        """The command that runs the script with the arguments of the task."""
        if not script.takes_arguments:
            return [script.file]
        try:
            return [script.file, _as_json(self.python_callable.__name__, self._arguments())]
        except SpecError as error:
            raise AirflowFailException(str(error)) from None

    def _arguments(self) -> dict[str, Any]:
        """The function's arguments by name, without those that are left to their defaults."""
        bound = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs)
        given = dict(bound.arguments)
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(name, {})
        return given


def _script(function: Callable[..., Any], env: Any) -> Script | None:
    """The script in a function; None if it returns the command. Raises SpecError."""
    return script_of(function, has_modules=isinstance(env, Mapping) and "PYTHONPATH" in env)


def _as_json(function: str, arguments: Mapping[str, Any]) -> str:
    """Arguments as one JSON object. Raises SpecError for values that JSON cannot express."""
    allowed = "a JSON value, such as text, a finite number, or a list or dict of these"
    problems = [Problem(f"{function}({path})", value, allowed) for path, value in not_json(arguments)]
    if problems:
        raise SpecError(*problems)
    text = json.dumps(arguments, sort_keys=True)
    if len(text) > _MOST_ARGUMENT_BYTES:
        allowed = f"arguments of at most {_MOST_ARGUMENT_BYTES} bytes as JSON: store more, and pass its URI"
        raise SpecError(Problem(f"{function}()", f"{len(text)} bytes", allowed))
    return text
