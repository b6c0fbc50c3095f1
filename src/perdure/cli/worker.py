"""`perdure worker`: serves an app, in this process or in several."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
from click.core import ParameterSource
from msgspec import Struct

from perdure.app import App
from perdure.cli.group import verbose, verbose_option
from perdure.cli.stopping import LAST_MOMENTS, Stop, end_within, take_lifeline
from perdure.cli.target import load_app
from perdure.engine.supervisor import MARGIN, Supervisor, bury
from perdure.engine.worker import Worker
from perdure.errors import InvalidInput
from perdure.wording import did_you_mean, shown_url

logger = logging.getLogger("perdure.worker")

_RELOAD_GRACE = 3.0
"""Seconds that runs have to end before a reload, unless said otherwise: whoever saved a file waits for it."""

_CLOSE = 1.0
"""Seconds that closing the store may take at the end."""

_NO_MORE = 0.5
"""Seconds for Python's end when the store could not be closed: its threads would be waited for."""


class Options(Struct, frozen=True):
    """How to serve."""

    target: str
    queues: list[str] | None
    concurrency: int
    processes: int
    lease: float
    grace: float
    sessions: int
    verbose: bool

    def command(self, *more: str, processes: int = 1) -> list[str]:
        """The command line for another process that serves like this."""
        options = ["--concurrency", str(self.concurrency), "--processes", str(processes)]
        options += ["--lease", str(self.lease), "--grace", str(self.grace), "--sessions", str(self.sessions)]
        if self.queues is not None:
            options += ["--queues", ",".join(self.queues)]
        if self.verbose:
            options.append("--verbose")
        return [sys.executable, "-m", "perdure", "worker", self.target, *options, *more]


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("-q", "--queues", metavar="A,B", help="Queues to serve; those that the app names if not given.")
@click.option("-c", "--concurrency", default=50, show_default=True, help="Runs at once, per process.")
@click.option("-p", "--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--lease", default=10.0, show_default=True, help="Seconds after which a silent worker counts as dead.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds that runs have to end at a stop.")
@click.option("--sessions", type=click.IntRange(0), default=10, show_default=True, help="It owns at most; 0: none.")
@click.option("--reload", "reloading", is_flag=True, help="Restart when a .py file below the directory changes.")
@click.option("--supervised-as", metavar="NAME", hidden=True, help="Serve under this name, until standard input ends.")
@click.option("--no-banner", is_flag=True, hidden=True, help="Leave it to the parent to say what is served.")
@click.option("--instead-of", metavar="NAME", hidden=True, help="A dead worker whose runs are handed back first.")
@verbose_option
@click.pass_context
def worker(
    ctx: click.Context,
    target: str,
    queues: str | None,
    concurrency: int,
    processes: int,
    lease: float,
    grace: float,
    sessions: int,
    reloading: bool,
    supervised_as: str | None,
    no_banner: bool,
    instead_of: str | None,
) -> None:
    """Run the workflows of an app.

    MODULE:APP is a module and the name of the App in it (shop:app), or a file (path/to/shop.py:app); without a name it
    is the module's only App.

    Ctrl-C or SIGTERM stops it: runs in flight have --grace seconds to end, then they are handed back. A second one
    hands them back at once.
    """
    if reloading and ctx.get_parameter_source("grace") is not ParameterSource.COMMANDLINE:
        grace = _RELOAD_GRACE
    served = None if queues is None else [queue.strip() for queue in queues.split(",") if queue.strip()]
    if served == []:
        raise click.UsageError("--queues names no queue", ctx)
    options = Options(target, served, concurrency, processes, lease, grace, sessions, verbose(ctx))
    lifeline = None if supervised_as is None else take_lifeline()
    if reloading:
        from perdure.cli.reload import reload

        set_up_logging(options, tell_processes=processes > 1)
        _run(lambda stop: reload(options, stop), limit=None, lifeline=lifeline)
        return
    app = load_app(target)
    set_up_logging(options, tell_processes=lifeline is not None or processes > 1)
    made = app.worker(
        queues=served, concurrency=concurrency, lease=lease, grace=grace, sessions=sessions, name=supervised_as
    )
    _check_queues(app, served)
    if processes > 1:
        _run(lambda stop: _supervise(app, options, stop), limit=None, lifeline=lifeline)
    else:
        banner = None if no_banner else _banner(app, options)
        _run(
            lambda stop: _serve(app, made, stop, grace, banner, instead_of),
            limit=grace + 2 * MARGIN,
            lifeline=lifeline,
        )


def set_up_logging(options: Options, *, tell_processes: bool) -> None:
    """Logs to the terminal, unless the app's module has arranged for something else."""
    process = " [%(process)d]" if tell_processes else ""
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format=f"%(asctime)s.%(msecs)03d %(levelname)-7s{process} %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("asyncio").setLevel(logging.INFO)


# --- the two ways to serve


async def _serve(
    app: App, worker: Worker, stop: Stop, grace: float, banner: Sequence[str] | None, instead_of: str | None
) -> None:
    """A worker in this process, until it is stopped."""
    async with _left_in_time(app):
        if instead_of is not None:
            await bury(await app.client.store(), instead_of)
        await worker.start()
        # What is loaded by now stays: a collection that walks it again and again is the longest pause that runs see.
        gc.collect()
        gc.freeze()
        if banner is None:
            logger.info("serving as %s", worker.name)
        else:
            _tell(banner)
        await stop.asked.wait()
        logger.info("stopping: %d runs in flight have %g s to end", worker.running, grace)
        ending = asyncio.ensure_future(worker.stop())
        hurried = asyncio.ensure_future(stop.hurried.wait())
        await asyncio.wait({ending, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            ending.cancel()
            await asyncio.wait({ending})
            ending = asyncio.ensure_future(worker.stop(0))
        hurried.cancel()
        await ending
        logger.info("stopped")


async def _supervise(app: App, options: Options, stop: Stop) -> None:
    """Workers in processes of their own, until this one is stopped."""
    async with _left_in_time(app):
        # Made or migrated here, once, and an error about it is shown once.
        await app.client.store()
        supervisor = Supervisor(
            lambda name: options.command("--supervised-as", name, "--no-banner"),
            app.client.store,
            processes=options.processes,
            grace=options.grace,
        )
        _tell(_banner(app, options))
        running = asyncio.ensure_future(supervisor.run())
        for request, then in ((stop.asked, supervisor.stop), (stop.hurried, supervisor.hurry)):
            asked = asyncio.ensure_future(request.wait())
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            then()
        await running
        logger.info("stopped")


@asynccontextmanager
async def _left_in_time(app: App) -> AsyncGenerator[None]:
    """Closes the app's store at the end; a store that does not answer keeps no process from a good end."""
    closed = False
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_CLOSE):
                await app.close()
            closed = True
        except TimeoutError:
            logger.warning("gave up waiting for the store to be closed")
    if not closed:
        end_within(_NO_MORE, 0)


def _run(serve: Callable[[Stop], Coroutine[Any, Any, None]], *, limit: float | None, lifeline: int | None) -> None:
    """Runs the event loop of a process that serves, and ends the process when that is over."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass

    async def main() -> None:
        stop = Stop(limit)
        stop.listen(lifeline)
        await serve(stop)
        # A thread of the user's that hangs would keep Python from ending.
        end_within(LAST_MOMENTS, 0)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


# --- what is told


def _banner(app: App, options: Options) -> list[str]:
    workflows = sorted(app.workflows)
    names = ", ".join(workflows[:5]) + (", …" if len(workflows) > 5 else "")
    queues = options.queues or app.queue_names
    processes = f"{options.processes} processes, each " if options.processes > 1 else ""
    return [
        f"Serving {len(workflows)} workflow{'' if len(workflows) == 1 else 's'} ({names}) on queue"
        f"{'' if len(queues) == 1 else 's'} {', '.join(queues)} of {shown_url(app.url)},"
        f" {processes}{options.concurrency} at once.",
        f"Ctrl-C stops: runs have {options.grace:g} s to end; once more hands them back at once.",
    ]


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def _check_queues(app: App, served: list[str] | None) -> None:
    if not app.workflows:
        raise InvalidInput(f"{app} has no workflows: nothing to serve; import the modules that define them")
    named = app.queue_names
    for queue in served or ():
        if queue not in named:
            hint = did_you_mean(queue, named)
            logger.warning("no workflow names queue %r%s; they name: %s", queue, hint, ", ".join(named))
