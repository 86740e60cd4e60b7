"""A collector of traces: takes what OTLP over HTTP sends, and reads it with the official message types, which know no other field."""
import base64
import http.server
import json
import threading

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .deadline import eventually
from .process import free_port


class Collector:
    """Listens from the start; `status` is what it answers, `deliveries` the headers that came, `bodies` the bytes."""

    def __init__(self):
        self.port, self.status, self.deliveries, self.bodies, self._lock = free_port(), 200, [], [], threading.Lock()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with collector._lock:
                    status = collector.status
                    collector.deliveries.append((self.path, dict(self.headers)))
                    if status == 200:
                        collector.bodies.append(body)
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def requests(self):
        """All that came, as messages; unknown fields and wrong types are refused."""
        with self._lock:
            bodies = list(self.bodies)
        return [json_format.ParseDict(_ids_in_base64(json.loads(body)), ExportTraceServiceRequest()) for body in bodies]

    def spans(self):
        """All spans, as they came."""
        return [Span(span) for request in self.requests() for whole in request.resource_spans
                for scope in whole.scope_spans for span in scope.spans]

    def await_spans(self, wanted, within=15.0):
        """The spans for which `wanted` holds, as soon as there is one."""
        return eventually(lambda: [span for span in self.spans() if wanted(span)], within=within, what="a span")

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


def _ids_in_base64(message):
    """OTLP has ids in hexadecimal, where the general JSON form of the messages has base64."""
    if isinstance(message, list):
        return [_ids_in_base64(one) for one in message]
    if not isinstance(message, dict):
        return message
    ids = ("traceId", "spanId", "parentSpanId")
    return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else _ids_in_base64(v) for k, v in message.items()}


class Span:
    """One span, easy to ask."""

    def __init__(self, span):
        self.name, self.kind, self.status = span.name, span.kind, span.status
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.state, self.began, self.ended = span.trace_state, span.start_time_unix_nano, span.end_time_unix_nano
        self.events = {event.name: event.time_unix_nano for event in span.events}
        self.attributes = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}

    def __getitem__(self, name):
        return self.attributes.get(name)

    def __repr__(self):
        return f"{self.name} {self.attributes}"
