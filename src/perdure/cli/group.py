"""What all commands share: how mistyped names, late imports and errors are dealt with."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from perdure.cli.output import clean
from perdure.errors import PerdureError
from perdure.wording import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_VERBOSE = "perdure.verbose"
_INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C, where nothing was to be brought to a good end."""


class Commands(click.Group):
    """A group that shows Perdure's errors as a line, knows what a mistyped command was meant to be, and imports
    commands that are rarely needed when they are.

    - `later`: commands by name, each as `module:object` and the line that the list of commands shows for it.
    """

    def __init__(self, *args: Any, later: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later = dict(later or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._later]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._later[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            if args[0] not in names:
                hint = did_you_mean(args[0], names)
                raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        rows += [(name, line) for name, (_, line) in self._later.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PerdureError as error:
            if ctx.parent is not None or verbose(ctx):
                raise
            fail(str(error))
        except KeyboardInterrupt:
            if ctx.parent is not None or verbose(ctx):
                raise
            raise SystemExit(_INTERRUPTED) from None


def fail(message: str, code: int = 1) -> None:
    """Shows an error and ends the command."""
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    click.echo(clean(message), err=True)
    raise SystemExit(code)


def verbose_option(fn: F) -> F:
    """Adds `-v`, which is understood before and after the name of a command."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[_VERBOSE] = True

    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Log more, and show where errors come from.",
    )(fn)


def verbose(ctx: click.Context) -> bool:
    """Whether `-v` was given, or PERDURE_DEBUG is set."""
    return _VERBOSE in ctx.meta or os.environ.get("PERDURE_DEBUG", "") not in ("", "0")
