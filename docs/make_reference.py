"""Writes `docs/reference.md` from docstrings and `docs/cli.md` from the help of the commands.

    python docs/make_reference.py

A test says when they are not current.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads

import click

import perdure
import perdure.errors
import perdure.testing
from perdure.cli import cli
from perdure.engine.worker import Worker
from perdure.limits import LimitControl
from perdure.schedules import ScheduleControl, ScheduleStatus
from perdure.workflow import StartCall

DOCS = Path(__file__).parent
NOTE = "<!-- Made by docs/make_reference.py: change the docstrings, then run it. -->"

_HIDDEN = {
    "App": {"add", "find", "handle", "client", "clock", "known_queue"},
    "Call": {"send", "throw", "close"},
    "Worker": {"runtime", "die"},
    "LimitControl": {"declare_all"},
    "ScheduleControl": {"declare", "declare_all", "renamed", "unserved"},
    "StartCall": {"make_start", "make_recurring"},
    "ScheduleStatus": {"record"},
    "Workflow": {"app", "definition", "make_start", "make_recurring"},
    "Step": {"definition"},
    "Sandbox": {"stirred"},
    "Retry": {"allows", "covers", "delay_after"},
    "VirtualClock": {"saw", "call_at", "now", "move_to", "next_at", "stirred"},
}


def reference() -> str:
    """The page on the library."""
    lines = [
        "# Reference",
        "",
        NOTE,
        "",
        "Everything here is imported from `perdure`, errors from `perdure.errors`, the testing kit from"
        " `perdure.testing`. A `Call` is awaited in async code; sync code says `.wait()`.",
        "",
    ]
    for name in (
        "App",
        "Workflow",
        "step",
        "Step",
        "Retry",
        "sleep",
        "sleep_until",
        "wait_signal",
        "progress",
        "current_run",
    ):
        lines += _entry(name, getattr(perdure, name))
    for name in ("RunContext", "Run", "RunStatus", "Event", "State", "Batch", "BatchProgress", "Call", "Stream"):
        lines += _entry(name, getattr(perdure, name))
    lines += _entry("LimitControl", LimitControl, origin="`App.limits`")
    lines += _entry("ScheduleControl", ScheduleControl, origin="`App.schedules`")
    lines += _entry("ScheduleStatus", ScheduleStatus, origin="made by `App.schedules`")
    lines += _entry("Worker", Worker, origin="made by `App.worker`")
    lines += _entry("StartCall", StartCall, origin="made by `Workflow.options`")
    lines += ["# perdure.testing", "", _paragraphs(perdure.testing), ""]
    for name in perdure.testing.__all__:
        lines += _entry(name, getattr(perdure.testing, name))
    lines += ["# perdure.errors", "", _paragraphs(perdure.errors), ""]
    lines += list(_errors())
    return "\n".join(lines).rstrip() + "\n"


def commands() -> str:
    """The page on the command line."""
    lines = ["# Command line", "", NOTE, ""]
    for path, command in _commands(cli, "perdure"):
        # The names of the help option as `cli` sets them: a command that was called before in this process keeps them.
        names = cli.context_settings["help_option_names"]
        context = click.Context(
            command, info_name=path, max_content_width=100, terminal_width=100, help_option_names=names
        )
        lines += [f"## {path}", "", "```text", _plain(command.get_help(context)), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


# --- the library


def _entry(name: str, thing: Any, *, origin: str = "") -> Iterator[str]:
    yield f"## {name}"
    yield ""
    if origin:
        yield f"*{origin[0].upper()}{origin[1:]}.*"
        yield ""
    if inspect.isclass(thing):
        if not origin and thing is not perdure.State and not issubclass(thing, BaseException):
            yield from _signature(name, thing)
        yield _paragraphs(thing)
        yield ""
        yield from _attributes(thing)
        yield from _members(name, thing)
    else:
        yield from _signature(name, thing)
        yield _paragraphs(thing)
        yield ""


def _attributes(cls: type) -> Iterator[str]:
    """Attributes whose meaning stands in a text below them."""
    source = textwrap.dedent(inspect.getsource(cls))
    found = re.findall(
        r"^(    |        self\.)(\w+)(?:: ([^=\n]+?))?(?: = ([^\n]+))?\n\s+\"\"\"(.+?)\"\"\"",
        source,
        re.MULTILINE | re.DOTALL,
    )
    rows = []
    for _, name, kind, default, text in found:
        if name.startswith("_") or name in _HIDDEN.get(cls.__name__, set()):
            continue
        shown = f"{name}: {kind}" if kind else name
        if default and not default.startswith(("field(", "[]", "existed")):
            shown += f" = {default}"
        rows.append(f"- `{shown}`: {' '.join(text.split())}")
    if rows:
        yield from rows
        yield ""
    if cls is perdure.State:
        yield from (f"- `State.{state.name}`" for state in perdure.State)
        yield ""


def _members(name: str, cls: type) -> Iterator[str]:
    hidden = _HIDDEN.get(name, set())
    for member, thing in vars(cls).items():
        if member.startswith("_") or member in hidden:
            continue
        if isinstance(thing, property):
            yield f"### {name}.{member}"
            yield ""
            returns = inspect.signature(thing.fget).return_annotation if thing.fget else ""
            yield f"Attribute: `{_type(returns)}`" + ("" if not inspect.getdoc(thing) else "\n")
            if inspect.getdoc(thing):
                yield _paragraphs(thing)
            yield ""
        elif inspect.isfunction(thing):
            yield f"### {name}.{member}"
            yield ""
            yield from _signature(member, thing)
            yield _paragraphs(thing)
            yield ""


def _signature(name: str, thing: Any) -> Iterator[str]:
    fn = thing.__init__ if inspect.isclass(thing) else thing
    full = [each for each in get_overloads(fn) if len(inspect.signature(each).parameters) > 1]
    try:
        signature = inspect.signature(full[-1] if full and not inspect.isclass(thing) else fn)
    except (ValueError, TypeError):
        return
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    if any(
        "client" in p.name or "definition" in p.name or p.name in ("scope", "record", "checkpoint") for p in parameters
    ):
        return  # made by the library, not by its users
    shown = _shown(parameters, signature.return_annotation if not inspect.isclass(thing) else inspect.Signature.empty)
    prefix = "async " if inspect.iscoroutinefunction(fn) else ""
    line = f"{prefix}{name}({', '.join(shown[0])}){shown[1]}"
    if len(line) > 100:
        line = f"{prefix}{name}(\n" + "".join(f"    {each},\n" for each in shown[0]) + f"){shown[1]}"
    yield "```text"
    yield line
    yield "```"
    yield ""


def _shown(parameters: list[inspect.Parameter], returns: Any) -> tuple[list[str], str]:
    shown: list[str] = []
    keyword_only = positional_only = False
    for parameter in parameters:
        if positional_only and parameter.kind is not parameter.POSITIONAL_ONLY:
            shown.append("/")
        positional_only = parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        keyword_only = keyword_only or parameter.kind is parameter.VAR_POSITIONAL
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            default = getattr(parameter.default, "__qualname__", repr(parameter.default))
            text += f" = {default}" if ":" in text else f"={default}"
        shown.append(text)
    if positional_only:
        shown.append("/")
    return shown, "" if returns is inspect.Signature.empty else f" -> {_type(returns)}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.strip("'").replace("DEFAULT_QUEUE", "'default'")


def _errors() -> Iterator[str]:
    for name, thing in vars(perdure.errors).items():
        if inspect.isclass(thing) and thing.__module__ == "perdure.errors":
            bases = ", ".join(base.__name__ for base in thing.__bases__ if base.__name__ not in ("object", "Struct"))
            yield (
                f"- **{name}**"
                + (f" ({bases})" if bases else "")
                + f": {' '.join((inspect.getdoc(thing) or '').split())}"
            )


def _paragraphs(thing: Any) -> str:
    """A docstring as Markdown: what is indented in it is code."""
    text = thing.__doc__ if isinstance(thing, ModuleType) else inspect.getdoc(thing)
    lines: list[str] = []
    code: list[str] = []

    def end_code() -> None:
        while code and not code[-1]:
            code.pop()
        if code:
            lines.extend(["```text", *textwrap.dedent("\n".join(code)).splitlines(), "```", ""])
            code.clear()

    bullet = False
    for line in inspect.cleandoc(text or "").splitlines():
        bullet = line.startswith("- ") or (bullet and line.startswith("  ") and not line.startswith("    "))
        if line.startswith("    ") or (code and not line):
            code.append(line)
            continue
        end_code()
        lines.append(line.replace("```python", "```text") if not bullet else line)
    end_code()
    return "\n".join(lines).rstrip()


# --- the commands


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _commands(inner, f"{path} {name}")


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    (DOCS / "reference.md").write_text(reference(), encoding="utf-8")
    (DOCS / "cli.md").write_text(commands(), encoding="utf-8")
