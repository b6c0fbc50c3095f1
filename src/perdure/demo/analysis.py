"""What there is to say about Python files. Nothing here knows of workflows."""

from __future__ import annotations

import ast
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SKIPPED = {"__pycache__", "site-packages", "dist-packages"}

_PARSING = threading.Lock()
"""Up to Python 3.12 two threads that make syntax trees at the same time can spoil each other's."""


@dataclass
class Function:
    """A function, by where it is and how long it is."""

    name: str
    file: str
    lines: int


@dataclass
class FileFacts:
    """What was found in one file. One that can't be parsed has its lines counted, and says why in `error`."""

    file: str
    lines: int = 0
    functions: int = 0
    classes: int = 0
    longest: Function | None = None
    imports: list[str] = field(default_factory=list[str])
    error: str | None = None


@dataclass
class PackageFacts:
    """The same for all files of a package, or of all packages together. `imports` counts the files that import."""

    name: str
    files: list[str]
    unparsed: list[str]
    lines: int
    functions: int
    classes: int
    longest: Function | None
    imports: dict[str, int]


def find_packages(root: Path) -> dict[str, list[str]]:
    """The Python files below a directory by the package or module at its top that they belong to, largest first.

    Files whose name can't be printed are left out.
    """
    sizes: Counter[str] = Counter()
    packages: dict[str, list[str]] = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED)
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            file = path.relative_to(root)
            if path.is_file() and str(file).isprintable():
                package = file.parts[0].removesuffix(".py")
                packages.setdefault(package, []).append(file.as_posix())
                sizes[package] += path.stat().st_size
    return {package: packages[package] for package, _ in sizes.most_common()}


def analyse(root: Path, file: str) -> FileFacts:
    """Reads and parses one file."""
    try:
        source = (root / file).read_bytes()
    except OSError as error:
        return FileFacts(file, error=str(error))
    facts = FileFacts(file, lines=len(source.splitlines()))
    try:
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        facts.error = f"{type(error).__name__}: {error}"
        return facts
    imports: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            facts.functions += 1
            function = Function(node.name, file, (node.end_lineno or node.lineno) - node.lineno + 1)
            facts.longest = _longer(facts.longest, function)
        elif isinstance(node, ast.ClassDef):
            facts.classes += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module.partition(".")[0])
    facts.imports = sorted(imports)
    return facts


def combine(name: str, facts: Iterable[FileFacts]) -> PackageFacts:
    """The facts of a package from those of its files."""
    facts = list(facts)
    return PackageFacts(
        name,
        files=[each.file for each in facts],
        unparsed=[each.file for each in facts if each.error is not None],
        lines=sum(each.lines for each in facts),
        functions=sum(each.functions for each in facts),
        classes=sum(each.classes for each in facts),
        longest=_longest(each.longest for each in facts),
        imports=Counter(module for each in facts for module in each.imports),
    )


def total(packages: Iterable[PackageFacts]) -> PackageFacts:
    """The facts of all packages together."""
    packages = list(packages)
    imports: Counter[str] = Counter()
    for package in packages:
        imports.update(package.imports)
    return PackageFacts(
        "total",
        files=[file for package in packages for file in package.files],
        unparsed=[file for package in packages for file in package.unparsed],
        lines=sum(package.lines for package in packages),
        functions=sum(package.functions for package in packages),
        classes=sum(package.classes for package in packages),
        longest=_longest(package.longest for package in packages),
        imports=imports,
    )


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, however deep. Expressions, most of a tree, are not looked into."""
    left = [tree]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                yield node
                left.append(node)


def _longest(functions: Iterable[Function | None]) -> Function | None:
    longest = None
    for function in functions:
        if function is not None:
            longest = _longer(longest, function)
    return longest


def _longer(one: Function | None, other: Function) -> Function:
    """The longer one; of equals the one that comes first by its file, in whatever order they are found."""
    if one is None or (-other.lines, other.file, other.name) < (-one.lines, one.file, one.name):
        return other
    return one
