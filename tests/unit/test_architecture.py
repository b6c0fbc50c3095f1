"""Who may import whom. Dependencies flow one way, so that each layer can be read and tested without those above.

From the bottom to the top; a module may import from its own package and from the layers below:

    model    plain data and pure decisions: errors, model, values, codec, retry, clock, ...
    stores   the protocol (`stores.base`, `stores.exchange`), what stores share, and the stores that carry it out; no
             store knows another
    engine   what happens inside of a worker; of the stores it knows the protocol alone
    app      what users hold: the other modules at the top level, and the public names in `perdure` itself
    edges    dashboard, contrib, testing: built on what users hold
    cli      the command line, which may use them all

The test parses the sources, and so finds imports inside of functions and those for type checkers too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure

SOURCE = Path(perdure.__path__[0])

MODEL = {
    *(
        "backoff",
        "blame",
        "budget",
        "causes",
        "clock",
        "codec",
        "cron",
        "errors",
        "failures",
        "misspelt",
        "model",
        "rates",
        "retry",
        "signature",
    ),
    "values",
    "wording",
}
SEAM = ("base", "exchange")
"""Of `stores`, what all of them and the engine know."""
LAYERS = ["model", "stores", "engine", "app", "edges", "cli"]
PACKAGES = {
    "stores": "stores",
    "engine": "engine",
    "dashboard": "edges",
    "contrib": "edges",
    "testing": "edges",
    "bench": "edges",
    "demo": "edges",
    "cli": "cli",
    "__main__": "cli",
}


def layer(module: str) -> str:
    """The layer of a module ("perdure.engine.pump")."""
    part = module.split(".")[1] if "." in module else ""
    return PACKAGES.get(part) or ("model" if part in MODEL else "app")


def allowed(importer: str, imported: str) -> bool:
    above, below = layer(importer), layer(imported)
    if importer == "perdure":
        return True
    if imported == "perdure":
        # The public names are for those who use them as users do; below, that would be a circle.
        return above in ("edges", "cli")
    if above == below == "stores":
        return _store(imported) in (_store(importer), *SEAM, "shared", "") or _store(importer) == ""
    if above == below == "edges":
        return importer.split(".")[1] == imported.split(".")[1]
    if above == "engine" and below == "stores":
        return _store(imported) in SEAM
    return LAYERS.index(below) <= LAYERS.index(above)


def _store(module: str) -> str:
    """The part below `stores`: a store, "base" and the like, or "" for the package itself, which opens any of them."""
    return ".".join(module.split(".")[2:3])


def modules(source: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """The modules of ours that a file imports, each with its line."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *base.split(".")])
            base = base.rstrip(".")
            # `from perdure import errors` imports a module, `from perdure import App` a name.
            names = [full if (full := f"{base}.{name.name}") in known else base for name in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "perdure")


def test_imports_go_one_way() -> None:
    files = dict(modules(SOURCE))
    wrong = [
        f"{files[module]}:{line}: {module} ({layer(module)}) imports {name} ({layer(name)})"
        for module, path in files.items()
        for line, name in imports(module, path, set(files))
        if not allowed(module, name)
    ]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("perdure.retry", "perdure.errors", True),
        ("perdure.retry", "perdure.stores.base", False),
        ("perdure.stores.sqlite.store", "perdure.stores.base", True),
        ("perdure.stores.sqlite.store", "perdure.stores.postgres.store", False),
        ("perdure.stores", "perdure.stores.sqlite.store", True),
        ("perdure.stores.sqlite", "perdure.engine.pump", False),
        ("perdure.engine.pump", "perdure.stores.base", True),
        ("perdure.engine.pump", "perdure.stores.sqlite", False),
        ("perdure.engine.pump", "perdure.step", False),
        ("perdure.step", "perdure.engine.scope", True),
        ("perdure.step", "perdure", False),
        ("perdure.contrib.flask", "perdure", True),
        ("perdure.contrib.flask", "perdure.cli", False),
        ("perdure.testing", "perdure.dashboard", False),
        ("perdure.cli.main", "perdure.dashboard", True),
        ("perdure", "perdure.app", True),
    ],
)
def test_the_rules_themselves(importer: str, imported: str, expected: bool) -> None:
    assert allowed(importer, imported) == expected


def test_all_ways_to_import_are_found(tmp_path: Path) -> None:
    file = tmp_path / "inner.py"
    file.write_text(
        "import os, perdure.app\nfrom perdure import errors, App\nfrom .. import errors\nfrom ..cli import x\n"
        "from . import pump\ndef f():\n    from perdure.cli import main\n"
    )
    found = imports("perdure.engine.inner", file, {"perdure.errors", "perdure.engine.pump"})
    assert [name for _, name in found] == [
        "perdure.app",
        "perdure.errors",
        "perdure",
        "perdure.errors",
        "perdure.cli",
        "perdure.engine.pump",
        "perdure.cli",
    ]


def test_nothing_hangs_on_assert() -> None:
    """`python -O` leaves asserts out, and who gets an AssertionError does not learn what to do."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


UNWANTED = [
    "asyncpg",
    "click",
    "concurrent.futures.process",
    "http.server",
    "multiprocessing",
    "pebble",
    "perdure.dashboard",
    "psycopg",
    "pydantic",
    "pytest",
    "redis",
    "rich",
    "sqlalchemy",
    "urllib.request",
    "uvloop",
]


MOST_MODULES = 260
"""How many modules `import perdure` may bring in, those of the standard library included: what it takes is by their
number. They were 207 when this was written."""

PARTS = ("bench", "cli", "demo", "stores.postgres", "stores.redis", "stores.sqlite", "testing")


def test_importing_perdure_is_light() -> None:
    """What only the command line, one store or one kind of step needs is imported when it is used."""
    script = "import sys; before = set(sys.modules); import perdure; print(*(sys.modules.keys() - before))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    imported = set(found.stdout.split())
    assert "perdure.app" in imported
    assert imported & {*UNWANTED, *(f"perdure.{part}" for part in PARTS)} == set()
    assert len(imported) <= MOST_MODULES
