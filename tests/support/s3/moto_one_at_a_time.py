"""moto's S3 server, which writes one object after another: `moto_one_at_a_time.py PORT`.

By itself it looks whether there is an object and then makes one, in as many threads as there are clients: on a busy
machine two conditional writes of one key succeed, which no S3 server does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_application = DomainDispatcherApplication(create_backend_app)
_writing = threading.Lock()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """moto's, one write at a time."""
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        return _application(environ, start_response)
    with _writing:
        return list(_application(environ, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
