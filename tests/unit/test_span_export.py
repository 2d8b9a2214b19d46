"""Where a broker's spans go, with a collector and without one (F171)."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import http.server, os, sys, threading
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from octavo.runtime.telemetry import configure_logging
from octavo.serving import span_export
from octavo.serving.config import BrokerConfig

configure_logging("WARNING")
got = []
ended = threading.Event()

class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces" and not self.headers.get("Content-Encoding"):
            got.append(ExportTraceServiceRequest.FromString(body))
        if sys.argv[1] == "silent":
            ended.wait()  # longer than anybody may wait for it
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "3600"
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
span_export.STOP_TIMEOUT_S = float(sys.argv[2])
with span_export.exporting_spans(BrokerConfig(broker_id="broker-9", tracing=True)):
    trace.get_tracer("test").start_span("append orders").end()
ended.set()
for request in got:
    for resource in request.resource_spans:
        named = {one.key: one.value.string_value for one in resource.resource.attributes}
        names = [span.name for scope in resource.scope_spans for span in scope.spans]
        print(named["service.name"], named["service.instance.id"], *names)
"""


def run(way: str, stop_s: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, stop_s],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout, done.stderr


def test_the_last_spans_of_a_broker_reach_its_collector_under_its_name() -> None:
    stdout, stderr = run("listening", "30")
    assert stdout == "octavo-broker broker-9 append orders\n"
    assert stderr == ""


def test_a_collector_that_does_not_answer_holds_up_no_end() -> None:
    _, stderr = run("silent", "0.2")
    assert "event='spans-lost'" in stderr
