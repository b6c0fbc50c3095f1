"""Two steps of one name are found when a worker starts, wherever the code of the app's workflows gets to them."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from perdure import App, step
from perdure.engine.reach import check_definitions
from perdure.errors import DefinitionError

Write = Callable[..., ModuleType]

SHOP = """
    from perdure import App, step
    app = App("sqlite://")

    @step
    async def charge(n: int) -> int: ...

    @app.workflow
    async def fulfil(n: int) -> None:
        await charge(n)
"""
CHARGE = """
    from perdure import step

    @step
    async def charge(n: int) -> int: ...
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules, and imports the one named shop."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(**texts: str) -> ModuleType:
        names.extend(texts)
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.import_module("shop")

    yield write
    for name in names:
        sys.modules.pop(name, None)


def check(app: App) -> None:
    check_definitions([workflow.definition for workflow in app.workflows.values()])


FOUND = {
    "through a function": ("from billing import pay\n", "await pay(n)"),
    "through a module": ("import billing\n", "await billing.pay(n)"),
    "in a module": ("import billing\n", "await billing.charge(n)"),
    "through a class": ("from billing import Till\n", "await Till().pay(n)"),
    "through an object": ("from billing import till\n", "await till.pay(n)"),
    "through a step": ("from billing import settle\n", "await settle(n)"),
    "in a nested function": ("import billing\n", "await (lambda: billing.pay(n))()"),
    "behind a decorator": ("from billing import guarded\n", "await guarded(n)"),
    "in the module's own names": ("from billing import charge as other\n", "pass"),
}
BILLING = f"""{CHARGE}
    import functools

    async def pay(n):
        await deeper(n)

    async def deeper(n):
        return [await charge(n) for _ in "ab"]

    class Till:
        async def pay(self, n):
            return await charge(n)

    till = Till()

    @step
    async def settle(n: int) -> None:
        await charge(n)

    def guard(fn):
        @functools.wraps(fn)
        async def call(*args):
            return await fn(*args)
        return call

    @guard
    async def guarded(n):
        return await charge(n)
"""


@pytest.mark.parametrize(("imports", "call"), FOUND.values(), ids=FOUND)
def test_two_steps_of_one_name_in_two_modules_are_refused_at_the_start(write: Write, imports: str, call: str) -> None:
    shop = write(shop=imports + textwrap.dedent(SHOP) + f"    {call}\n", billing=BILLING)
    with pytest.raises(DefinitionError, match="two steps are named 'charge'") as refused:
        check(shop.app)
    assert sorted(re.findall(r"(\w+)\.py:", str(refused.value))) == ["billing", "shop"]


FINE = {
    "of a module of which nothing is used": ("import billing\n", "pass"),
    "beside what is used of a module": ("import billing\n", "billing.note(n)"),
    "beside what is used of two modules": ("import billing, ledger\n", "billing.note(n), ledger.charge"),
    "of another app": ("from billing import app as other, collect\n", "await collect.start(n)"),
    "that is the same one by two names": ("import shop\n", "await shop.charge(n)"),
}


@pytest.mark.parametrize(("imports", "call"), FINE.values(), ids=FINE)
def test_steps_that_the_workflows_do_not_get_to_may_have_any_name(write: Write, imports: str, call: str) -> None:
    billing = f"""{CHARGE}
    from perdure import App
    app = App("sqlite://")

    def note(n): ...

    @app.workflow
    async def collect(n: int) -> None:
        await charge(n)
"""
    shop = write(shop=imports + textwrap.dedent(SHOP) + f"    {call}\n", billing=billing, ledger="def charge(n): ...\n")
    check(shop.app)


def made(app: App, kind: str) -> None:
    @step
    async def pay() -> str:
        return kind

    @app.workflow(name=kind)
    async def flow() -> str:
        return await pay()


def test_workflows_of_one_factory_may_have_steps_of_one_name() -> None:
    app = App("sqlite://")
    made(app, "one")
    made(app, "two")
    check(app)


class Proxy:
    """What a web framework has for its request: it raises whatever it is asked outside of one."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("working outside of a request")


request = Proxy()


def test_objects_that_can_not_be_asked_do_no_harm() -> None:
    app = App("sqlite://")

    @app.workflow
    async def flow() -> str:
        return str(request)

    check(app)
