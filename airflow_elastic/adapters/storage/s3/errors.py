"""The errors of an S3 client in words for the person who chose the bucket, without secrets."""

from __future__ import annotations

from typing import Any

from airflow_elastic.adapters.storage.keys import scrub
from airflow_elastic.spec.errors import StoreError, StoreUnfit

_ACTIONS = (
    "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and, on the bucket, s3:ListBucket and "
    "s3:ListBucketMultipartUploads"
)
_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, the pod's role or the connection"
)
_SLOW = "the server is overloaded or failing; try again later, and if it stays so, ask its operator"
FIT = "use Amazon S3, versitygw, MinIO, Ceph radosgw, or a folder on a disk that all parts of the run share"

MISSING = {"NoSuchKey", "404", "NotFound"}

# The error codes of servers -> (the error to raise, the problem, the advice)
_CODES: dict[tuple[str, ...], tuple[type[StoreError], str, str]] = {
    ("NoSuchBucket",): (
        StoreUnfit,
        "there is no bucket {bucket!r}",
        "create it (`aws s3 mb s3://{bucket}`), or correct the run URI or the endpoint",
    ),
    ("AccessDenied", "AllAccessDisabled", "AccountProblem", "403"): (
        StoreUnfit,
        "access is denied",
        f"grant these credentials {_ACTIONS} for {{bucket!r}}",
    ),
    ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "XAdminUserNotFound"): (
        StoreUnfit,
        "the server does not accept the credentials",
        _CREDENTIALS,
    ),
    ("ExpiredToken", "RequestExpired", "TokenRefreshRequired"): (
        StoreUnfit,
        "the credentials have expired",
        "renew them (`aws sso login`, or the connection's session token)",
    ),
    ("RequestTimeTooSkewed",): (StoreUnfit, "this machine's clock is wrong", "set the clock (NTP)"),
    (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "301",
        "307",
        "IllegalLocationConstraintException",
    ): (
        StoreUnfit,
        "the bucket {bucket!r} is in another region",
        "set AWS_DEFAULT_REGION to the bucket's region",
    ),
    ("NotImplemented", "MethodNotAllowed", "501", "405"): (
        StoreUnfit,
        "the server lacks an operation that a run needs",
        FIT,
    ),
    ("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"): (
        StoreError,
        "the storage is full",
        "free some space, or choose another run URI",
    ),
    ("ObjectParentIsFile", "ExistingObjectIsDirectory"): (
        StoreError,
        "on this server an object and a folder cannot share a name",
        "move the other one away, or choose another run URI",
    ),
    ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "500", "502", "503", "504"): (
        StoreError,
        "it still failed after several tries",
        _SLOW,
    ),
}
_BY_CODE = {code: meaning for codes, meaning in _CODES.items() for code in codes}

# The names of botocore's own exceptions, likewise
_CLIENT_SIDE: dict[tuple[str, ...], tuple[type[StoreError], str, str]] = {
    ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"): (
        StoreUnfit,
        "there are no complete credentials",
        _CREDENTIALS,
    ),
    ("TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"): (
        StoreUnfit,
        "the sign-on has expired",
        "run `aws sso login`",
    ),
    ("SSLError",): (
        StoreUnfit,
        "the server's certificate is not trusted",
        "set AWS_CA_BUNDLE to its authority",
    ),
    ("InvalidEndpointDiscoveryConfigurationError", "ParamValidationError", "InvalidRegionError"): (
        StoreUnfit,
        "the client refuses the settings",
        "check the bucket's name, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
    ),
    ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"): (
        StoreError,
        "the endpoint cannot be reached",
        "check AWS_ENDPOINT_URL, and that the server runs and the network lets us through",
    ),
    ("ReadTimeoutError", "ConnectionClosedError", "HTTPClientError", "ResponseStreamingError"): (
        StoreError,
        "the endpoint broke off or did not answer, several times",
        _SLOW,
    ),
}
_BY_CLASS = {name: meaning for names, meaning in _CLIENT_SIDE.items() for name in names}


def code_of(exc: BaseException) -> str:
    """The server's error code, such as 'NoSuchKey', or '' if `exc` is no answer of a server."""
    response: Any = getattr(_root(exc), "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def status_of(exc: BaseException) -> int:
    """The HTTP status of the server's answer, or 0 if `exc` is no answer of a server."""
    response: Any = getattr(_root(exc), "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(exc: BaseException) -> bool:
    """Whether there is no such object."""
    return code_of(exc) in MISSING


def is_client_error(exc: BaseException) -> bool:
    """Whether `exc` comes from boto3 or below. Some of its errors are OSErrors, so the class is not enough."""
    return type(exc).__module__.partition(".")[0] in {"boto3", "botocore", "s3transfer", "urllib3"}


def is_answer_cut(exc: BaseException) -> bool:
    """Whether the rest of an answer is missing: botocore does not repeat the request if the answer is an error."""
    return type(exc).__module__.partition(".")[0] == "urllib3"


def store_error(exc: BaseException, uri: str, bucket: str, endpoint: str, doing: str, key: str) -> StoreError:
    """The error with a sentence for an error while `doing` something to `key`; "" is the store as a whole.

    The server's own text is quoted only for unknown codes, and without anything that looks secret.
    """
    exc = _root(exc)
    code, status = code_of(exc), status_of(exc)
    meaning = _BY_CODE.get(code) or _BY_CODE.get(str(status))
    if not code:
        names = [kind.__name__ for kind in type(exc).__mro__]
        meaning = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    said = code or type(exc).__name__
    if meaning is None:
        meaning = (StoreError, "it failed", "see the server's log")
        said = scrub(str(exc))[:300]
    kind, matter, advice = (meaning[0], meaning[1].format(bucket=bucket), meaning[2].format(bucket=bucket))
    what = repr(key) if key else "what is there"
    return kind(f"{uri} at {endpoint}: cannot {doing} {what}: {matter} ({said}); {advice}")


def _root(exc: BaseException) -> BaseException:
    """The original error, within the ones that boto3's transfers wrap around it."""
    if type(exc).__module__.startswith(("boto3", "s3transfer")):
        return getattr(exc, "last_exception", None) or exc.__cause__ or exc.__context__ or exc
    return exc
