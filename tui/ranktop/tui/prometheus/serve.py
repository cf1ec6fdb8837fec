"""The web server of the metrics: ``/metrics``, and a page that points there."""

from __future__ import annotations

import io
import socket
import socketserver
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from ranktop.tui.prometheus.collector import Collector
from ranktop.tui.prometheus.follow import Follower

READ_SECONDS: Final = 10.0
"""Seconds that a client may take for its question."""

PAUSE: Final = 0.1
"""Seconds until the next try to accept a connection."""

PAGE: Final = (
    b"<!DOCTYPE html><html lang=en><title>ranktop</title><h1>ranktop</h1><p><a href=/metrics>Metrics</a> of the "
    b"training jobs on this machine.</html>\n"
)

_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread per request, none of which the end of the program waits for."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Take the port without asking a name server for this machine's name, as the base class does."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Wait a moment where strangers have taken all descriptors: the connection stays ready, and this would spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that leaves in the middle is its own business."""


class _Handler(WSGIRequestHandler):
    timeout = READ_SECONDS

    def get_stderr(self) -> TextIO:
        """Return where tracebacks go of clients that do not read or leave: nowhere."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def registry(follower: Follower, wall: Callable[[], float] = time.time) -> CollectorRegistry:
    """Return a registry of the jobs' metrics and of what the exporter itself costs."""
    found = CollectorRegistry(auto_describe=False)
    found.register(Collector(follower, wall))
    ProcessCollector(registry=found)
    return found


def application(follower: Follower, wall: Callable[[], float] = time.time) -> _App:
    """Return the WSGI application. Nothing is compressed: on one machine that costs more than it saves."""
    metrics: _App = make_wsgi_app(registry(follower, wall), disable_compression=True)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            try:
                return metrics(environ, start)
            except Exception as error:  # of what a client writes into its headers
                follower.failed("a scrape", error)
                start("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"the metrics cannot be given in that way\n"]
        if path == "/":
            start("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [PAGE]
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"the metrics are at /metrics\n"]

    return answer


def server(host: str, port: int, follower: Follower) -> WSGIServer:
    """Return a server that listens already; OSError where it cannot."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]

    class Server(_Server):
        address_family = family

    serving = Server((str(where[0]), port), _Handler)
    serving.set_app(application(follower))
    return serving
