"""A small HTTP server that continues the trace of each request, as instrumented servers do. Prints its port."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry import propagate, trace


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        caller = propagate.extract({name.lower(): value for name, value in self.headers.items()})
        with trace.get_tracer("endpoint").start_as_current_span(
            f"POST {self.path}", context=caller, kind=trace.SpanKind.SERVER
        ) as span:
            span.set_attribute("baggage", self.headers.get("baggage", ""))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
print(server.server_port, flush=True)
server.serve_forever()
