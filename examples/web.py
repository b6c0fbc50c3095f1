"""A web application without an event loop: it starts orders of `order.py`, shows them and approves them.

Shows a client in sync code, and a start with an id of its own: an order that is posted twice is one run. This is
plain WSGI, to need nothing else; in a view of Flask or Django the three calls are the same.

    perdure worker examples/order.py:app
    python examples/web.py
    curl -X POST localhost:8000/orders/7
    curl localhost:8000/orders/7
    curl -X POST localhost:8000/orders/7/approve
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from wsgiref.simple_server import make_server

from order import Approval, Order, fulfil

from perdure.errors import RunEnded, RunNotFound


def respond(method: str, path: str) -> tuple[str, str]:
    match method, path.strip("/").split("/"):
        case "POST", ["orders", number]:
            order = Order(number, cents=1250, hold=timedelta(seconds=5))
            run = fulfil.options(id=f"order-{number}").start(order).wait()
            return "200 OK" if run.existed else "201 Created", f"run {run.id}"
        case "GET", ["orders", number]:
            return "200 OK", fulfil.get(f"order-{number}").why().wait()
        case "POST", ["orders", number, "approve"]:
            fulfil.get(f"order-{number}").signal("approve", Approval(by="the web")).wait()
            return "202 Accepted", "approved"
        case _:
            return "404 Not Found", "try /orders/7"


def web(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    try:
        status, text = respond(environ["REQUEST_METHOD"], environ["PATH_INFO"])
    except RunNotFound as error:
        status, text = "404 Not Found", str(error)
    except RunEnded as error:
        status, text = "409 Conflict", str(error)
    start_response(status, [("Content-Type", "text/plain")])
    return [f"{text}\n".encode()]


if __name__ == "__main__":
    with make_server("localhost", 8000, web) as server:
        server.serve_forever()
