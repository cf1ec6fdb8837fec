"""The pages about metrics against the code: the table, and every question that the Grafana dashboard asks."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from grafana_dashboard import DASHBOARD, PANELS, questions

from ranktop.budget.terms import CATEGORIES
from ranktop.tui.loopback import is_loopback
from ranktop.tui.prometheus.command import NoAddress, address
from ranktop.tui.prometheus.families import FAMILIES, UNITS, Family
from ranktop.tui.prometheus.follow import ENDED_SECONDS
from ranktop.tui.prometheus.labels import LONGEST, MOST_GROUPS, MOST_JOBS, MOST_RANKS, THROTTLE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "prometheus.md").read_text()


def test_the_table_is_the_code() -> None:
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in PAGE.splitlines() if "| `" in line]
    told = {name.strip("`"): (kind, labels, words) for name, kind, labels, words in rows}
    made = {
        family.name: (family.kind, ", ".join(f"`{label}`" for label in family.labels), family.help)
        for family in FAMILIES.values()
    }
    assert told == made


def test_the_bounds_that_the_page_names() -> None:
    words = " ".join(PAGE.split())
    assert f"{MOST_JOBS} jobs, {MOST_RANKS} ranks in all" in words
    assert f"{MOST_GROUPS} process groups" in words
    assert f"cut at {LONGEST} characters" in words
    assert f"told of for {ENDED_SECONDS:.0f} seconds" in words


def test_the_throttle_reasons_are_those_of_the_probe() -> None:
    from ranktop.probes.nvml.fast import reasons_in_words

    assert set(reasons_in_words(2**11 - 1)) == THROTTLE


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_follow_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"ranktop_[a-z]+(_[a-z]+)*", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert (family.kind == "info") == family.name.endswith("_info")
    assert not re.search(r"_(ms|percent|mhz|kb|mb|gb|count|sum|bucket|gauge|counter)(_|$)", family.name)
    assert family.help.endswith(".")
    assert "\n" not in family.help
    words = family.base.split("_")
    assert all(unit == words[-1] for unit in UNITS if unit in words), "the unit comes last"
    # A server puts these on everything itself.
    assert not {"job", "instance"} & set(family.labels)


@pytest.mark.parametrize("question", questions())
def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(question: str) -> None:
    series = re.findall(r"(ranktop_\w+)(?:\{(.*?)\})?", question)
    assert series
    for name, matchers in series:
        family = FAMILIES.get(name) or FAMILIES[re.sub(r"_(sum|count)$", "", name)]
        if name not in FAMILIES:
            assert family.kind == "summary"
        labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers))
        assert labels <= set(family.labels), (name, labels)
        assert not re.search(r"\brate\b", question) or family.kind in ("counter", "summary"), name
        for category in re.findall(r'category[=!]~?"([^"]+)"', matchers):
            assert set(category.split("|")) <= set(CATEGORIES)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    # The last version of the classic model, to which older ones are migrated.
    assert DASHBOARD["schemaVersion"] == 42
    assert DASHBOARD["id"] is None
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "job", "rank"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or above
    for panel in PANELS:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"]
    required = {one["id"] for one in DASHBOARD["__requires"] if one["type"] == "panel"}
    assert required == {panel["type"] for panel in PANELS}


@pytest.mark.parametrize(
    ("text", "host", "port", "closed"),
    [
        ("127.0.0.1:9400", "127.0.0.1", 9400, True),
        ("localhost:0", "localhost", 0, True),
        ("9500", "127.0.0.1", 9500, True),
        ("[::1]:9400", "::1", 9400, True),
        (":9400", "0.0.0.0", 9400, False),
        ("0.0.0.0:9400", "0.0.0.0", 9400, False),
        ("[::]:9400", "::", 9400, False),
        ("gpu01:9400", "gpu01", 9400, False),
    ],
)
def test_addresses_and_who_can_reach_them(text: str, host: str, port: int, closed: bool) -> None:
    assert address(text) == (host, port)
    assert is_loopback(host) is closed


@pytest.mark.parametrize("text", ["", "gpu01", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:9400", "a:\u0663"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(NoAddress, match=r"--listen takes HOST:PORT"):
        address(text)
