"""The connection service file of libpq: what a name in a URL stands for."""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from perdure.errors import StoreUrlError


def read_service(service: str, name: str) -> dict[str, str]:
    """The options of a service, from the first file that has it: that of the user (PGSERVICEFILE, or
    `~/.pg_service.conf`), or that of the system (in PGSYSCONFDIR). Raises `StoreUrlError`, which shows no value."""
    files = _files()
    for file in files:
        # The driver would take a % in a password for something else, and say nothing of a service that is not there.
        read = configparser.RawConfigParser(
            delimiters="=", comment_prefixes="#", default_section="", strict=False, empty_lines_in_values=False
        )
        try:
            read.read_string(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (configparser.Error, UnicodeDecodeError) as error:
            line = getattr(error, "lineno", None) or next(iter(getattr(error, "errors", [])), ("?",))[0]
            raise StoreUrlError(
                f"{name!r}: the service file {str(file)!r} can't be read from line {line} on: it has lines of the kinds"
                " [service] and option=value"
            ) from None
        except OSError as error:
            raise StoreUrlError(f"{name!r}: the service file {str(file)!r} can't be read ({error.strerror})") from error
        if read.has_section(service):
            return dict(read.items(service))
    raise StoreUrlError(
        f"{name!r}: there is no service {service!r} in {' or '.join(repr(str(file)) for file in files)}: write it there"
        " ([service], and host=…, dbname=… in lines of their own), or say with PGSERVICEFILE where it is"
    )


def _files() -> list[Path]:
    files = [Path(os.environ.get("PGSERVICEFILE") or _home() / ".pg_service.conf")]
    if system := os.environ.get("PGSYSCONFDIR"):
        files.append(Path(system) / "pg_service.conf")
    return files


def _home() -> Path:
    return Path(os.environ.get("APPDATA", ""), "postgresql") if os.name == "nt" else Path.home()
