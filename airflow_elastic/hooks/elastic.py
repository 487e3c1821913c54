"""Open the storage of runs and their engines, with the settings of Airflow's connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_elastic.adapters.storage.open import describe, open_store
from airflow_elastic.engines.api import Finding, MeasuresRoom, find_engine
from airflow_elastic.engines.local import LocalEngine
from airflow_elastic.hooks import aws
from airflow_elastic.spec.errors import ElasticError, InvalidInput
from airflow_elastic.spec.run import RunSpec

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.engines.api import Engine


@dataclass(frozen=True, slots=True)
class Settings:
    """The fields of an `elastic` connection's extra. Other keys are ignored.

    Attributes:
        run_root: runs without a URI of their own are stored below this URI. Default: see `ElasticHook.run_root`.
        engine: the engine of tasks that name none. Default: local.
        aws_conn_id: the AWS connection with the credentials for `s3://` run URIs. Default: boto3's own chain.
        kubernetes_conn_id: the Kubernetes connection of engines whose workers are pods. Default: the usual kubeconfig.
        namespace: of workers that are pods, for tasks whose `engine_options` name none. Default: default.
        queue: of such workers, in the same way. Default: none.
    """

    run_root: str | None = None
    engine: str = "local"
    aws_conn_id: str | None = None
    kubernetes_conn_id: str | None = None
    namespace: str | None = None
    queue: str | None = None


class ElasticHook(BaseHook):
    """Opens run URIs and engines with the settings of an `elastic` connection.

    It reads the connection when a setting is first needed.

    Args:
        elastic_conn_id: the connection. The default one need not exist: then the defaults of `Settings` apply.
        aws_conn_id: the AWS connection for `s3://` run URIs. Default: the one of the `elastic` connection.
        required: the default connection must exist, too. Otherwise a triggerer that does not find it would go on with
            other credentials, or on another cluster.
    """

    conn_name_attr = "elastic_conn_id"
    default_conn_name = "elastic_default"
    conn_type = "elastic"
    hook_name = "Elastic training"

    def __init__(
        self,
        elastic_conn_id: str = default_conn_name,
        *,
        aws_conn_id: str | None = None,
        required: bool = False,
    ) -> None:
        super().__init__()
        self.elastic_conn_id = elastic_conn_id
        self._required = required
        self._aws_conn_id = aws_conn_id

    def get_conn(self) -> Settings:
        """The settings of the connection."""
        return self.settings

    @cached_property
    def settings(self) -> Settings:
        """The settings of the connection.

        Raises:
            AirflowNotFoundException: there is no such connection, and it is not the default one.
            InvalidInput: a field is not text, or the default connection is required and missing.
        """
        extra = {} if self._found is None else self._found.extra_dejson
        given = {field.name: extra[field.name] for field in fields(Settings) if extra.get(field.name)}
        for name, value in given.items():
            if not isinstance(value, str):
                raise InvalidInput(
                    f"the connection {self.elastic_conn_id!r} has {name} {value!r}; allowed: text"
                )
        return Settings(**given)

    @property
    def is_defined(self) -> bool:
        """Whether the connection exists. Raises as `settings` does where it must."""
        return self._found is not None

    @cached_property
    def _found(self) -> Any:
        """The connection; None if it is the default one, and does not exist."""
        try:
            return self._connection()
        except AirflowNotFoundException as error:
            if self.elastic_conn_id != self.default_conn_name:
                raise
            if self._required:
                raise InvalidInput(
                    f"{error}: the task has found this connection, but its triggerer does not. Define it where the "
                    f"triggerer finds it, e.g. as AIRFLOW_CONN_{self.elastic_conn_id.upper()} in its environment"
                ) from error
            return None

    def _connection(self) -> Any:
        return self.get_connection(self.elastic_conn_id)

    @property
    def run_root(self) -> str:
        """Root of all runs: the connection's `run_root`, else `[elastic] run_root`, else AIRFLOW_HOME/elastic-runs."""
        configured: str | None = self.settings.run_root or conf.get("elastic", "run_root", fallback=None)
        if configured:
            return configured.rstrip("/") or "/"
        home = os.environ.get("AIRFLOW_HOME") or str(Path.home() / "airflow")
        return str(Path(home).expanduser() / "elastic-runs")

    @cached_property
    def aws_conn_id(self) -> str | None:
        """The AWS connection in use; None if boto3 finds credentials itself."""
        return self._aws_conn_id or self.settings.aws_conn_id

    def open_store(self, uri: str) -> Store:
        """The store at a run URI. Raises InvalidInput if the URI is not valid."""
        return open_store(uri, s3_client_factory=self._client_factory(uri))

    def engine(self, name: str, uri: str = "") -> Engine:
        """A new instance of an engine.

        Args:
            name: name of an installed engine.
            uri: URI of the run. Workers of a run on S3 get its credentials.

        Raises:
            SpecError: there is no engine of that name.
        """
        if name == LocalEngine.name:
            return LocalEngine(environment=self.worker_environment(uri), open_store=self.open_store)
        engine = find_engine(name)
        # Imported here: the Kubernetes client takes a second to import, which each parse of a DAG file would pay.
        from airflow_elastic.engines.kube.engine import KubeEngine
        from airflow_elastic.hooks import kube

        if isinstance(engine, KubeEngine):
            conn_id = self.settings.kubernetes_conn_id
            return type(engine)(access=kube.access(conn_id) if conn_id else None, open_store=self.open_store)
        return engine

    def engine_options(self, engine: str, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Options of an engine, with the connection's namespace and queue where a cluster engine's name none."""
        if engine == LocalEngine.name:
            return options
        own = {"namespace": self.settings.namespace, "queue": self.settings.queue}
        given = {name: value for name, value in own.items() if value}
        return {**given, **(options or {})} if given else options

    def test_connection(self) -> tuple[bool, str]:
        """The result of the Test button: storage, the engine's rights in its namespace, and the queue."""
        try:
            root, settings = self.run_root, self.settings
            store = describe(root, s3_client_factory=self._client_factory(root))
            engine = self.engine(settings.engine, root)
            findings = engine.doctor(settings.namespace)
            if settings.queue and settings.engine != LocalEngine.name:
                findings.append(_queue(engine, settings))
        except Exception as error:  # the button shows any error
            return False, str(error)
        checks = [Finding(store.uri, store.fit, store.detail), *findings]
        # The engine can be used without a part of it.
        passed = all(check.ok or check.part for check in checks)
        marks = {True: "ok", False: "NOT OK"}
        lines = (
            f"{'without' if check.part and not check.ok else marks[check.ok]} {check.subject}: {check.text}"
            for check in checks
        )
        return passed, "; ".join(lines)

    def _client_factory(self, uri: str) -> Callable[[Any], Any] | None:
        if not uri.lower().startswith("s3:") or self.aws_conn_id is None:
            return None
        return aws.client_factory(self.aws_conn_id)

    def worker_environment(self, uri: str) -> dict[str, str]:
        """Credentials for a URI as variables, for processes of this machine; empty if those find them alone."""
        if not uri.lower().startswith("s3:") or self.aws_conn_id is None:
            return {}
        return aws.environment(self.aws_conn_id)


def _queue(engine: Engine, settings: Settings) -> Finding:
    """Whether the queue exists, and may be read; and what is free in it."""
    subject = f"queue {settings.queue}"
    if not isinstance(engine, MeasuresRoom):
        return Finding(subject, False, f"the engine {settings.engine} has no queues")
    options = {"image": "any", "namespace": settings.namespace or "default", "queue": settings.queue}
    spec = RunSpec(("train.py",), engine=settings.engine, engine_options=options)
    try:
        return Finding(subject, True, str(asyncio.run(engine.room(spec, ["queue"]))))
    except ElasticError as error:
        return Finding(subject, False, str(error))
