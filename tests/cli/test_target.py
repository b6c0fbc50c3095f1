"""Finding an app by what is typed for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.cli.target import TargetError, load_app

ONE = "from perdure import App\nshop = App('sqlite://')\n"
TWO = "from perdure import App\none = App('sqlite://')\ntwo = App('sqlite:///two.db')\n"


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("spec", ["one_app:shop", "one_app", "one_app.py:shop", "./one_app.py", "one_app.py"])
def test_a_module_or_file_with_one_app(folder: Path, spec: str) -> None:
    write(folder, "one_app.py", ONE)
    assert load_app(spec) is sys.modules["one_app"].shop


def test_the_one_named_app_is_meant_when_there_are_several(folder: Path) -> None:
    write(folder, "several.py", f"{TWO}app = App('sqlite:///three.db')\n")
    assert load_app("several").url == "sqlite:///three.db"


def test_one_app_with_two_names_is_one_app(folder: Path) -> None:
    write(folder, "one_app.py", f"{ONE}alias = shop\n")
    assert load_app("one_app") is sys.modules["one_app"].alias


def test_a_file_elsewhere_can_import_its_neighbours(folder: Path) -> None:
    write(folder, "deep/er/neighbour.py", "URL = 'sqlite:///n.db'\n")
    write(folder, "deep/er/main_app.py", "from perdure import App\nfrom neighbour import URL\napp = App(URL)\n")
    assert load_app("deep/er/main_app.py:app").url == "sqlite:///n.db"


def test_a_file_in_a_package_is_imported_as_part_of_it(folder: Path) -> None:
    write(folder, "src/pack/__init__.py", "")
    write(folder, "src/pack/settings.py", "URL = 'sqlite:///p.db'\n")
    write(folder, "src/pack/work.py", "from perdure import App\nfrom .settings import URL\napp = App(URL)\n")
    assert load_app("src/pack/work.py") is sys.modules["pack.work"].app


def test_an_app_inside_of_something(folder: Path) -> None:
    write(folder, "inside.py", "from perdure import App\nclass Config:\n    app = App('sqlite://')\n")
    assert load_app("inside:Config.app") is sys.modules["inside"].Config.app


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("one_ap:shop", r"no module 'one_ap' in .* \(did you mean 'one_app'\?\); here are: one_app, two_apps"),
        ("one_ap.py", r"no file .*one_ap\.py \(did you mean 'one_app\.py'\?\)"),
        ("nowhere/x.py", r"no file .*nowhere/x\.py"),
        ("one_app.sub:shop", r"no module 'one_app\.sub'|importing 'one_app\.sub'"),
        ("one_app:shp", r"'one_app' has no 'shp' \(did you mean 'shop'\?\)"),
        ("one_app:zzzzz", r"'one_app' has no 'zzzzz'; there are: one_app:shop"),
        ("one_app:App", r"one_app:App is a type, not an App; there are: one_app:shop"),
        ("two_apps", r"several apps; say which one: two_apps:one, two_apps:two"),
        ("no_app", r"'no_app' has no App; make one"),
        (":app", r"names no module"),
        (".", r"'\.' names no module; write MODULE:APP, such as shop:app; here are: one_app, two_apps"),
        (".:app", r"'\.' names no module; write MODULE:APP"),
        ("..", r"'\.\.' names no module; write MODULE:APP"),
        ("./", r"is a directory; write MODULE:APP, such as shop:app; here are: one_app, two_apps"),
    ],
)
def test_what_can_not_be_found(folder: Path, spec: str, says: str) -> None:
    write(folder, "one_app.py", ONE)
    write(folder, "two_apps.py", TWO)
    if spec == "no_app":
        write(folder, "no_app.py", "x = 1\n")
    with pytest.raises(TargetError, match=says):
        load_app(spec)


def test_an_error_inside_of_the_module_is_shown_where_it_is(folder: Path) -> None:
    write(folder, "broken.py", "import math\n\ndef f():\n    return 1 / 0\n\nf()\n")
    with pytest.raises(TargetError) as raised:
        load_app("broken:app")
    message = str(raised.value)
    assert message.startswith("importing 'broken' failed:\nTraceback")
    assert 'broken.py", line 4, in f' in message
    assert message.endswith("ZeroDivisionError: division by zero")
    assert "importlib" not in message and "target.py" not in message


def test_a_module_that_ends_the_program_says_what_to_do(folder: Path) -> None:
    write(folder, "script.py", "import sys\n\nsys.exit('usage: script FILE')\n")
    with pytest.raises(TargetError, match="importing 'script' ends the program") as raised:
        load_app("script:app")
    assert 'if __name__ == "__main__":' in str(raised.value)
    assert "sys.exit('usage: script FILE')" in str(raised.value)


def test_a_module_that_the_module_misses_is_not_taken_for_it(folder: Path) -> None:
    write(folder, "needy.py", "import something_that_is_not_there\n")
    with pytest.raises(
        TargetError, match=r"(?s)importing 'needy' failed.*No module named 'something_that_is_not_there'"
    ):
        load_app("needy")


def test_a_syntax_error_is_shown_with_its_line(folder: Path) -> None:
    write(folder, "typo.py", "x = 1\ndef f(:\n")
    with pytest.raises(TargetError, match=r'(?s)typo\.py", line 2.*SyntaxError'):
        load_app("typo")


def test_a_file_with_the_name_of_another_module_says_so(folder: Path) -> None:
    write(folder, "json.py", ONE)
    with pytest.raises(TargetError, match=r"can't be imported as 'json': that is .*; rename it"):
        load_app("json.py")
