"""A small client of Airflow's REST API for tests, with calls such as trigger, wait, log, xcom and clear.

It waits by polling until a deadline, and stops early if the wanted state cannot be reached any more. It does not
import Airflow, so it can also use an Airflow that runs elsewhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx

from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.testing.airflow_text import log_line, reason, run_path, tail, task_path, words

T = TypeVar("T")

TERMINAL_TASK = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
TERMINAL_RUN = frozenset({"success", "failed"})

#: So many waits in a row without success, each of a minute or more, make the next ones short.
_PATIENCE, _LONG_SECONDS, _SHORT_SECONDS = 2, 60.0, 30.0


class AirflowError(ElasticError):
    """Airflow could not be started, or did not do what it was asked; with the end of the log that says it."""


class AirflowTimeoutError(AirflowError):
    """What was waited for did not come in time."""


class AirflowBrokenError(AirflowError):
    """This Airflow is broken for good: whatever is asked of it ends with this error at once."""


def poll(
    what: str,
    probe: Callable[[], T | None],
    *,
    timeout: float,
    every: float = 0.2,
    hint: Callable[[], str] = lambda: "",
) -> T:
    """Ask `probe` until it answers something else than None.

    Args:
        what: what is waited for, for the error's text.
        probe: returns None while the answer is not there yet; what it raises ends the wait.
        timeout: seconds until giving up.
        every: seconds between two questions.
        hint: called on a timeout; what is known about why.

    Raises:
        AirflowTimeoutError: no answer in time.
    """
    deadline = time.monotonic() + timeout
    while (answer := probe()) is None:
        if time.monotonic() >= deadline:
            known = hint()
            raise AirflowTimeoutError(
                f"waited {timeout:g} s for {what}, without success" + (f": {known}" if known else "")
            )
        time.sleep(every)
    return answer


class AirflowRest:
    """A logged-in client of one Airflow.

    Args:
        url: where its API server answers, without a trailing slash, as `http://127.0.0.1:8080`.
        username, password: a user of the auth manager.
    """

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url, self.username, self.password = url, username, password
        self._http = self._connect()
        self._token: str | None = None
        self._in_vain = 0

    def look(self, *, at_once: bool = False) -> None:
        """Called before each request, so all through a wait. To be overridden: it does nothing here.

        `at_once` says that a request has just failed. Raises AirflowBrokenError where to wait is of no use any more.
        """

    def condition(self) -> str:
        """How the parts of Airflow are, for an error's text."""
        try:
            parts = [f"{part} {state['status']}" for part, state in self.health(timeout=10).items()]
        except httpx.HTTPError as error:
            return f"Airflow does not say how its parts are: {error!r}"
        return f"Airflow's parts: {', '.join(parts)}"

    def close(self) -> None:
        """Close the connections and forget the login; another call makes new ones."""
        self._http.close()
        self._http, self._token, self._in_vain = self._connect(), None, 0

    def _connect(self) -> httpx.Client:
        # trust_env: a proxy in the developer's environment must not swallow calls to this machine.
        return httpx.Client(base_url=self.url, timeout=120.0, trust_env=False)

    def login(self, username: str | None = None, password: str | None = None) -> str:
        """Fetch a token (valid for 24 hours) for this user, by default our own.

        Raises:
            AirflowError: the login was refused.
        """
        body = {"username": username or self.username, "password": password or self.password}
        answer = self._http.post("/auth/token", json=body)
        if answer.status_code != 201:
            raise AirflowError(f"{self.url} refused the login of {body['username']!r}: {reason(answer)}")
        token: str = answer.json()["access_token"]
        return token

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One authenticated request, whatever its answer; `kwargs` as for `httpx.Client.request`.

        A path that does not begin with `/` is below `/api/v2/`. What Airflow rolled back, because its
        database was locked, is asked again.

        Raises:
            AirflowBrokenError: see `look`.
        """
        self.look()
        if not path.startswith("/"):
            path = "/api/v2/" + path
        headers = dict(kwargs.pop("headers", {}))
        for tries in range(5):
            if self._token is None:
                self._token = self.login()
            bearer = {"Authorization": f"Bearer {self._token}"}
            try:
                answer = self._http.request(method, path, headers=bearer | headers, **kwargs)
            except httpx.TransportError:
                self.look(at_once=True)
                raise
            # An expired token gets 401; a token from before a restart of the server gets 403.
            if answer.status_code == 401 or "Invalid JWT token" in answer.text:
                self._token = None
            elif answer.status_code < 500 or not re.search(r"Database (error|is locked)", answer.text):
                break
            else:
                time.sleep(2.0**tries / 2)  # others write to the database meanwhile
        return answer

    def rest(self, method: str, path: str, **kwargs: Any) -> Any:
        """One authenticated request and its answer: decoded where it is JSON, None if empty, text otherwise.

        Raises:
            AirflowError: the answer was an error (status 400 or above), with what Airflow said.
        """
        answer = self.request(method, path, **kwargs)
        if answer.status_code >= 400:
            raise AirflowError(f"{method} {answer.request.url.path}: {reason(answer)}")
        if not answer.content:
            return None
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def health(self, timeout: float = 120.0) -> dict[str, dict[str, str | None]]:
        """What Airflow says, in `timeout` seconds, about its parts: `{"scheduler": {"status": "healthy", …}, …}`."""
        answer = self._http.get("/api/v2/monitor/health", timeout=timeout)
        answer.raise_for_status()
        parts: dict[str, dict[str, str | None]] = answer.json()
        return parts

    def _wait(
        self, what: str, probe: Callable[[], T | None], *, timeout: float, hint: Callable[[], str]
    ) -> T:
        """`poll`, with Airflow's condition in the error. An Airflow that seems to stand still is given less time."""
        given = min(timeout, _SHORT_SECONDS) if self._in_vain >= _PATIENCE else timeout
        known = lambda: f"{hint()}\n{self.condition()}"  # noqa: E731
        try:
            answer = poll(what, probe, timeout=given, hint=known)
        except AirflowTimeoutError:
            self._in_vain += timeout >= _LONG_SECONDS
            raise
        self._in_vain = 0
        return answer

    # -- DAGs ------------------------------------------------------------------------------------------------

    def import_errors(self) -> dict[str, str]:
        """The traceback of every DAG file that cannot be imported, by file name."""
        errors = self.rest("GET", "importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def wait_for_dag(self, dag_id: str, *, unpause: bool = True, timeout: float = 300.0) -> None:
        """Wait until Airflow has read a DAG, and unpause it (a paused DAG's runs stay queued).

        Raises:
            AirflowError: a DAG file cannot be imported and the DAG is not there; with the traceback.
            AirflowTimeoutError: no such DAG within `timeout` seconds.
        """

        def probe() -> bool | None:
            answer = self.request("GET", f"dags/{quote(dag_id)}")
            if answer.status_code == 200 and not answer.json()["is_stale"]:
                return True
            if answer.status_code not in (200, 404):
                raise AirflowError(f"asking for the DAG {dag_id!r}: {reason(answer)}")
            if errors := self.import_errors():
                broken = "\n".join(f"{name}:\n{trace.strip()}" for name, trace in errors.items())
                raise AirflowError(f"the DAG {dag_id!r} is not there, and Airflow cannot import:\n{broken}")
            return None

        def hint() -> str:
            known = [dag["dag_id"] for dag in self.rest("GET", "dags")["dags"]]
            return f"Airflow has read {', '.join(known) or 'no DAG at all'}"

        self._wait(f"the DAG {dag_id!r}", probe, timeout=timeout, hint=hint)
        if unpause:
            self.unpause(dag_id)

    def unpause(self, dag_id: str) -> None:
        """Let runs of this DAG start."""
        self.rest("PATCH", f"dags/{quote(dag_id)}", json={"is_paused": False})

    def trigger(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None
    ) -> str:
        """Start a run now and return its run id; it has no logical date.

        Args:
            dag_id: of a DAG that is not paused (see `wait_for_dag`).
            conf: what the run sees as `dag_run.conf`: plain JSON.
            run_id: None lets Airflow choose.
        """
        body = {"logical_date": None, "conf": dict(conf or {}), **({"dag_run_id": run_id} if run_id else {})}
        answer: str = self.rest("POST", f"dags/{quote(dag_id)}/dagRuns", json=body)["dag_run_id"]
        return answer

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run: queued, running, success or failed."""
        state: str = self.rest("GET", run_path(dag_id, run_id))["state"]
        return state

    def wait_run(
        self, dag_id: str, run_id: str, states: str | Collection[str] = "success", *, timeout: float = 300.0
    ) -> str:
        """Wait until a run is in one of these states, and return which.

        Raises:
            AirflowError: it ended in another one; with the log of its failed task.
            AirflowTimeoutError: after `timeout` seconds.
        """
        wanted = {states} if isinstance(states, str) else set(states)

        def probe() -> str | None:
            state = self.run_state(dag_id, run_id)
            if state in wanted:
                return state
            if state in TERMINAL_RUN:
                why = self._explain(dag_id, run_id)
                raise AirflowError(
                    f"the run {run_id} of {dag_id} is {state!r}, wanted {words(wanted)}; {why}"
                )
            return None

        return self._wait(
            f"the run {run_id} of {dag_id} to be {words(wanted)}",
            probe,
            timeout=timeout,
            hint=lambda: self._explain(dag_id, run_id),
        )

    # -- task instances --------------------------------------------------------------------------------------

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """A task instance from the REST API, with `state`, `try_number`, `start_date`, `trigger` and other fields."""
        found: dict[str, Any] = self.rest("GET", task_path(dag_id, run_id, task_id, map_index))
        return found

    def task_state(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str | None:
        """The state of a task instance (`deferred`, `running`, …); None before the scheduler looked at it."""
        state: str | None = self.task(dag_id, run_id, task_id, map_index)["state"]
        return state

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: str | Collection[str] = "success",
        *,
        map_index: int = -1,
        timeout: float = 300.0,
    ) -> str:
        """Wait until a task instance is in one of these states, and return which.

        Raises:
            AirflowError: it ended in another one; with the end of its log.
            AirflowTimeoutError: after `timeout` seconds; with the end of its log.
        """
        wanted = {states} if isinstance(states, str) else set(states)
        name = f"{dag_id}.{task_id}" + (f"[{map_index}]" if map_index >= 0 else "") + f" in {run_id}"

        def log() -> str:
            try:
                return "its log ends:\n" + tail(self.task_log(dag_id, run_id, task_id, map_index=map_index))
            except AirflowError as error:
                return f"and it has no log: {error}"

        def probe() -> str | None:
            state = self._state_or_none(dag_id, run_id, task_id, map_index)
            if state in wanted:
                return state
            if state in TERMINAL_TASK:
                raise AirflowError(f"{name} is {state!r}, wanted {words(wanted)}; {log()}")
            return None

        return self._wait(
            f"{name} to be {words(wanted)}",
            probe,
            timeout=timeout,
            hint=lambda: f"it is {self._state_or_none(dag_id, run_id, task_id, map_index)!r}; {log()}",
        )

    def task_log(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int | None = None, map_index: int = -1
    ) -> str:
        """The log of one try as text, one line a record; what the trigger logged while deferred is in it.

        Tries count from 1; without a try_number it is the newest.

        Raises:
            AirflowError: there is no such try.
        """
        if try_number is None:
            try_number = int(self.task(dag_id, run_id, task_id, map_index)["try_number"])
        answer = self.rest(
            "GET",
            f"{task_path(dag_id, run_id, task_id)}/logs/{try_number}",
            params={"map_index": map_index, "full_content": True},
            headers={"Accept": "application/json"},
        )
        return "\n".join(log_line(record) for record in answer["content"])

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """The value of an XCom as the database holds it.

        Raises:
            AirflowError: there is none under that key.
        """
        return self.rest(
            "GET",
            f"{task_path(dag_id, run_id, task_id)}/xcomEntries/{quote(key)}",
            params={"map_index": map_index},
        )["value"]

    def set_task_state(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        state: Literal["failed", "success", "skipped"],
        map_index: int = -1,
    ) -> None:
        """What a person does with "mark failed" or "mark success"."""
        self.rest("PATCH", task_path(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def clear_task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1, **options: Any) -> None:
        """What a person does with "clear": the task runs again, whatever its state was.

        `options` are more fields of Airflow's clearTaskInstances, as `include_downstream=True`.
        """
        chosen = [task_id, map_index] if map_index >= 0 else task_id
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [chosen], **options}
        self.rest("POST", f"dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def _state_or_none(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
        """The state; None also while a mapped instance is not expanded yet."""
        answer = self.request("GET", task_path(dag_id, run_id, task_id, map_index))
        if answer.status_code == 404 and map_index >= 0:
            return None
        if answer.status_code >= 400:
            raise AirflowError(f"asking for {dag_id}.{task_id} in {run_id}: {reason(answer)}")
        state: str | None = answer.json()["state"]
        return state

    def _explain(self, dag_id: str, run_id: str) -> str:
        """The states of a run's tasks and the end of the log of one that failed, for an error's text."""
        tasks = self.rest("GET", f"{run_path(dag_id, run_id)}/taskInstances")["task_instances"]
        text = "its tasks: " + ", ".join(f"{task['task_id']} {task['state']}" for task in tasks)
        for task in tasks:
            if task["state"] == "failed":
                try:
                    log = self.task_log(dag_id, run_id, task["task_id"], map_index=task["map_index"])
                except AirflowError as error:
                    log = str(error)
                return f"{text}; the log of {task['task_id']} ends:\n{tail(log)}"
        return text
