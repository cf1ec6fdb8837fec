"""Who is let in by ``ranktop serve``, decided without a server."""

from __future__ import annotations

import itertools

import pytest

from ranktop.tui.serve.command import address
from ranktop.tui.serve.gate import MOST, Gate, asked_here, from_own_page


def test_a_token_is_good_once_and_opens_one_place() -> None:
    gate = Gate()
    token = gate.token
    assert len(token) >= 43, "256 bits"
    assert gate.admit("") is None
    assert gate.admit(token[:-1]) is None
    assert gate.admit("\udcff€") is None
    assert (first := gate.admit(token)) is not None
    assert gate.admit(token) is None
    assert gate.token != token
    assert (second := gate.admit(gate.token)) is not None
    assert gate.opens(*first)
    assert gate.opens(*second)
    assert not gate.opens(first[0], second[1])
    assert not gate.opens(first[0], "")
    assert not gate.opens("", "")
    assert not gate.opens("nowhere", "")


def test_browsers_are_bounded() -> None:
    numbers = itertools.count()
    gate = Gate(lambda: str(next(numbers)))
    admitted = [gate.admit(gate.token) for _ in range(MOST + 1)]
    assert [bool(one and gate.opens(*one)) for one in admitted] == [False, *[True] * MOST]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:9", "[::1]:8000", "127.0.0.1", "LOCALHOST:80", "127.1.2.3"]
)
def test_names_of_this_machine(host: str) -> None:
    assert asked_here(host)


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1:8000", "127.0.0.1.evil.example",
     "127.0.0.1:8000@evil", "0.0.0.0:8000", "[::]:8000", "localhost:port", "2130706433", "[127.0.0.1]x"],
)  # fmt: skip
def test_other_names_are_refused(host: str | None) -> None:
    assert not asked_here(host)


def test_a_web_socket_is_opened_by_the_own_page_only() -> None:
    host = "127.0.0.1:8000"
    assert from_own_page("http://127.0.0.1:8000", host)
    assert from_own_page("http://127.0.0.1:8000", host, "same-origin")
    for origin in (
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:9000",
        "http://localhost:8000",
        "https://127.0.0.1:8000",
    ):
        assert not from_own_page(origin, host)
    assert not from_own_page("http://127.0.0.1:8000", host, "same-site")
    assert not from_own_page("http://127.0.0.1:8000", None)


def test_where_it_may_listen(capsys: pytest.CaptureFixture[str]) -> None:
    assert address("8000") == address("127.0.0.1:8000") == address("localhost:8000") == ("127.0.0.1", 8000)
    assert address("[::1]:0") == ("::1", 0)
    for text in ("0.0.0.0:8000", "[::]:80", "10.0.0.1:80", "gpu01:80"):
        with pytest.raises(SystemExit) as ended:
            address(text)
        assert ended.value.code == 2
        assert "listen on 127.0.0.1, and there: ssh -L" in capsys.readouterr().err
    for text in ("", "nonsense", "127.0.0.1:99999", "::1:80", "127.0.0.1:", "a:b:1"):
        with pytest.raises(SystemExit):
            address(text)
        assert "--listen takes HOST:PORT" in capsys.readouterr().err
