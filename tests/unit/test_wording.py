"""How things are named in sentences."""

from __future__ import annotations

import pytest

from perdure import App
from perdure.wording import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop@home.db?synchronous=normal", "sqlite:///shop@home.db?synchronous=normal"),
        ("postgresql://ada:secret@db:5432/shop?schema=a", "postgresql://ada@db:5432/shop"),
        ("postgresql://ada@db/shop?password=secret", "postgresql://ada@db/shop"),
        ("postgresql://db:5432/shop?user=ada&password=secr@t", "postgresql://db:5432/shop"),
        ("postgresql://db/shop?listen=postgresql%3A%2F%2Fada%3Asecret%40db%2Fshop", "postgresql://db/shop"),
        ("postgresql://ada:sec%2Fret@a,b:1/shop", "postgresql://ada@a,b:1/shop"),
        ("redis://:secret@db", "redis://@db"),
        ("redis+sentinel://a,b/shop?sentinel_password=secret", "redis+sentinel://a,b/shop"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert repr(App(url)) == f"<app on {shown}>"
