"""What a command works on: an app, found as `MODULE:APP`, or a store, by its URL."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from perdure.app import App
from perdure.cli.group import verbose_option
from perdure.errors import PerdureError
from perdure.stores import is_missing
from perdure.stores.base import Store
from perdure.wording import did_you_mean

T = TypeVar("T")


class TargetError(PerdureError):
    """An app that can't be found or imported."""


_WRITE = "write MODULE:APP, such as shop:app"

_MAKING = {"migrate", "add", "set", "pause", "resume", "apply"}
"""Commands that may make a store that isn't there; the others only look."""


def load_app(spec: str) -> App:
    """The app that `module:name`, `module` or `path/to/file.py:name` names.

    Modules are looked for from the working directory too. Without a name it is the module's `app`, or its only App.
    """
    place, name = _split(spec)
    if not place:
        raise TargetError(f"{spec!r} names no module; {_WRITE}")
    module = _import_file(Path(place)) if _is_file(place) else _import_module(place)
    return _find(module, place, name)


def on_store(app: App, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """Does something with the app's store, opened for it and closed again."""

    async def opened() -> T:
        async with app:
            return await work(await app.client.store())

    return asyncio.run(opened())


def with_store(fn: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that say which store it works on, and the app for it as first argument."""

    @verbose_option
    @click.option("-a", "--app", "spec", metavar="MODULE:APP", envvar="PERDURE_APP", help="The app whose store it is.")
    @click.option("-u", "--url", metavar="URL", envvar="PERDURE_URL", help="The store, such as sqlite:///shop.db.")
    @functools.wraps(fn)
    def command(*args: Any, spec: str | None, url: str | None, **kwargs: Any) -> None:
        fn(_target(click.get_current_context(), spec, url), *args, **kwargs)

    return command


def _target(ctx: click.Context, spec: str | None, url: str | None) -> App:
    if spec is not None and url is not None:
        said = [ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("spec", "url")]
        if all(said):
            raise click.UsageError("--app and --url exclude each other", ctx)
        # What was typed counts more than the environment, and there the URL, which needs no code to be imported.
        if said[0]:
            url = None
    if url is not None:
        if ctx.command.name not in _MAKING and is_missing(url):
            raise TargetError(
                f"there is no store at {url}; the first worker or start makes it, or `perdure migrate --url {url}`"
            )
        return App(url)
    if spec is not None:
        return load_app(spec)
    raise click.UsageError("say which store: --app MODULE:APP or --url URL (or set PERDURE_APP or PERDURE_URL)", ctx)


# --- finding the module


def _split(spec: str) -> tuple[str, str]:
    place, colon, name = spec.rpartition(":")
    if not colon or "/" in name or "\\" in name:  # `C:\shop.py` has a colon too
        return spec, ""
    return place, name


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if path.is_dir():
        raise TargetError(f"{path} is a directory; {_WRITE}{_listed(_modules(path))}")
    if not path.is_file():
        nearby = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise TargetError(f"there is no file {path}{did_you_mean(path.name, nearby)}")
    # By its name from where its outermost package lies, so that other processes can import it by that name too.
    root, parts = path.parent, [] if path.name == "__init__.py" else [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    module = _import(".".join(parts), root)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise TargetError(f"{path} can't be imported as {module.__name__!r}: that is {found or 'built in'}; rename it")
    return module


def _import_module(name: str) -> ModuleType:
    here = Path.cwd()
    if name.startswith("."):
        raise TargetError(f"{name!r} names no module; {_WRITE}{_listed(_modules(here))}")
    try:
        return _import(name, here)
    except ModuleNotFoundError as error:
        known = _modules(here)
        raise TargetError(
            f"there is no module {error.name!r} in {here} or installed{did_you_mean(name, known)}{_listed(known)}"
        ) from error


def _modules(directory: Path) -> list[str]:
    return sorted(
        [each.stem for each in directory.glob("*.py")] + [each.parent.name for each in directory.glob("*/__init__.py")]
    )


def _listed(modules: list[str]) -> str:
    return f"; here are: {', '.join(modules[:10])}" if modules else ""


def _import(name: str, root: Path) -> ModuleType:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        raise TargetError(
            f"importing {name!r} ends the program, where it is to define an app: what is to be done when it runs as a"
            f' script belongs under `if __name__ == "__main__":`\n{_trace(error)}'
        ) from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise  # it is the module itself that is not there
        raise TargetError(f"importing {name!r} failed:\n{_trace(error)}") from error


def _trace(error: BaseException) -> str:
    """The traceback without the frames of the import itself, which come first."""
    trace = traceback.TracebackException.from_exception(error)
    ours = (str(Path(__file__)), "<frozen importlib", importlib.__file__)
    inner = [frame for frame in trace.stack if not frame.filename.startswith(ours)]
    trace.stack = traceback.StackSummary.from_list(inner[-8:])
    trace.__context__ = trace.__cause__ if error.__suppress_context__ else trace.__context__
    return "".join(trace.format()).rstrip()


# --- finding the app in it


def _find(module: ModuleType, place: str, name: str) -> App:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    listed = ", ".join(f"{place}:{key}" for key in apps)
    if name:
        found: object = module
        for part in name.split("."):
            if not hasattr(found, part):
                hint = did_you_mean(name, list(vars(module))) or (f"; there are: {listed}" if listed else "")
                raise TargetError(f"{place!r} has no {name!r}{hint}")
            found = getattr(found, part)
        if not isinstance(found, App):
            hint = f"; there are: {listed}" if listed else ""
            raise TargetError(f"{place}:{name} is a {type(found).__name__}, not an App{hint}")
        return found
    if "app" in apps:
        return apps["app"]
    distinct = {id(value): value for value in apps.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if distinct:
        raise TargetError(f"{place!r} has several apps; say which one: {listed}")
    raise TargetError(f"{place!r} has no App; make one at its top level: app = App('sqlite:///{Path(place).stem}.db')")
