"""A real S3-compatible server in a process of its own: moto's, over HTTP, with some odd buckets.

    lake     as it should be
    odd      ignores If-None-Match, as stores do that do not know it
    lossy    does what the PUT of a manifest's first version asks and says 503
    denied   answers nothing but 403

`python -m tests.s3_server` prints its port and serves until it is killed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

BUCKETS = ("lake", "odd", "lossy")
Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]


class OddBuckets:
    """Moto's application, one request at a time: a store decides between writers atomically."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._lost: set[str] = set()

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        bucket = path.split("/")[1]
        if bucket == "denied":
            return _refuse(start, "403 Forbidden", "AccessDenied")
        if bucket == "odd":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            if bucket == "lossy" and path.endswith("1.json") and path not in self._lost:
                self._lost.add(path)
                list(self._app(environ, _untold))
                return _refuse(start, "503 Slow Down", "SlowDown")
            return list(self._app(environ, start))


def _untold(*_: object) -> Callable[[bytes], None]:
    """A `start_response` that nobody hears."""
    return lambda _: None


def _refuse(start: Start, status: str, code: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()]


def main() -> None:
    """Serve on a free port of the loopback."""
    import botocore.session
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = OddBuckets(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1"
    )
    for bucket in BUCKETS:
        client.create_bucket(Bucket=bucket)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
