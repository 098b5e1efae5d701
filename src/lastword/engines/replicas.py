"""Replicas: the service's application on Ray Serve, N times behind one address.

Each replica is the whole service with a model, a queue and limits of its own; Ray Serve's proxy
hands a request to the less busy of two. What waits is therefore bounded per replica, and
`/metrics` is that of the replica which answers.
"""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from ray import serve

from lastword.engines.ray import Cluster, connected, hide_gpus
from lastword.errors import InputError, ModelError
from lastword.service.app import create_app
from lastword.service.log import Log
from lastword.service.server import spare_the_model
from lastword.service.settings import Settings
from lastword.service.tracing import trace_if_asked

if TYPE_CHECKING:
    from lastword.tracer import Tracer

NAME = "lastword"
_CONSTRUCTIONS = 2  # tries of a replica to load its model before the start is given up


def run(load: "Callable[[], Tracer]", settings: Settings, cluster: Cluster) -> None:
    """Serve until SIGTERM or SIGINT; what the replicas have accepted is answered before it returns.

    Args:
        load: Makes the tracer, in each replica.
        settings: Limits and manners, of each replica; the address is the proxy's.
        cluster: Where the replicas are, and how many.

    Raises:
        InputError: An address that cannot be listened on, or a cluster without a token.
        ModelError: A replica cannot load the model.
    """
    _require_door(settings, cluster)
    log = Log()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with connected(cluster), _stop_event() as stop:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": settings.host, "port": settings.port},
        )
        try:
            serve.run(deployment(load, settings, cluster), name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise ModelError(f"no replica starts: {_cause()}") from error
        log.event("started", address=f"http://{settings.host}:{settings.port}")
        stop.wait()
        log.event("draining")
        serve.delete(NAME)
        log.event("stopped")


def deployment(load: "Callable[[], Tracer]", settings: Settings, cluster: Cluster) -> Any:
    """The application as Ray Serve runs it; also for a Serve configuration of one's own.

    Args:
        load: Makes the tracer, in each replica.
        settings: Limits and manners, of each replica.
        cluster: How many replicas there are, and what each takes.
    """

    def build() -> FastAPI:
        hide_gpus()
        app = create_app(load(), settings)
        trace_if_asked(app)
        app.state.service.announce()
        spare_the_model()
        return app

    application = serve.deployment(
        name=NAME,
        num_replicas=cluster.workers,
        ray_actor_options=cluster.share,
        # The application's own queue says 429; Serve's would only make clients wait.
        max_ongoing_requests=2 * settings.requests,
        graceful_shutdown_timeout_s=settings.deadline_seconds + settings.drain_seconds,
        max_constructor_retry_count=_CONSTRUCTIONS,
    )
    return application(serve.ingress(build)()).bind()


@contextmanager
def _stop_event() -> Iterator[threading.Event]:
    stop = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _require_door(settings: Settings, cluster: Cluster) -> None:
    """Refuse what Ray Serve would take and then not do, or do for everyone.

    Raises:
        InputError: It is so.
    """
    if settings.port == 0:
        raise InputError("Ray Serve takes no free port by itself: give --port a number")
    if settings.state is not None:
        raise InputError("replicas cannot share a file: leave --state out, or serve without Ray")
    if not cluster.own:
        if settings.token is None:
            raise InputError(
                "a running cluster's proxy may listen anywhere: set --token or LASTWORD_TOKEN"
            )
        return
    try:
        socket.create_server((settings.host, settings.port)).close()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error


def _cause() -> str:
    """Find what a replica's constructor raised, out of all that Ray Serve says about it."""
    replicas = serve.status().applications[NAME].deployments[NAME]
    errors = [line.strip() for line in replicas.message.splitlines() if "Error: " in line]
    return errors[-1].partition("Error: ")[2][:300] if errors else replicas.message[:300]
