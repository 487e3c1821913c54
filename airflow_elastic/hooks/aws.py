"""S3 credentials from Airflow's AWS connections, for S3 clients here and for workers on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook


def client_factory(conn_id: str) -> Callable[[Any], Any]:
    """Return a function that makes S3 clients with the credentials and the endpoint of an AWS connection."""

    def make(config: Any) -> Any:
        return _hook(conn_id, config).get_conn()

    return make


def environment(conn_id: str) -> dict[str, str]:
    """The credentials and the endpoint as environment variables, for processes without Airflow.

    Workers cannot renew temporary credentials, so the session of a role should last longer than the run.
    """
    hook = _hook(conn_id, None)
    credentials = hook.get_credentials()
    values = {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token,
        "AWS_DEFAULT_REGION": hook.region_name,
        "AWS_ENDPOINT_URL_S3": hook.conn_config.get_service_endpoint_url("s3"),
    }
    return {name: value for name, value in values.items() if value}


def _hook(conn_id: str, config: Any) -> AwsGenericHook[Any]:
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
    except ImportError:
        raise InvalidInput(
            f"aws_conn_id {conn_id!r} needs the Amazon provider, which is not installed here. "
            "Run pip install 'airflow-elastic[aws]', or leave it out and let boto3 find credentials itself"
        ) from None
    BaseHook.get_connection(conn_id)  # raises; AwsGenericHook would go on without credentials
    return AwsGenericHook(aws_conn_id=conn_id, client_type="s3", config=config)
