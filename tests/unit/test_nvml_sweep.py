"""Every getter x every return code, on one GPU of eight: the other seven stay right, the eighth says what and why.

``pytest -s`` prints how many pairs have run.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nvml_stub.client import difference
from nvml_stub.sweep import AT_START, CODES, CURES, FIELDS, OLDER, WORDS, Pair, Sweep, words_of

pytest_plugins = ["nvml_stub.fixtures"]
pytestmark = pytest.mark.timeout(300)


def wrong(pairs: list[Pair], check: Callable[[Pair], object]) -> list[str]:
    """Return what a check says of pairs that fail it."""
    return [f"{pair.name}: {problem}" for pair in pairs if (problem := check(pair))]


def test_every_function_that_is_called_is_swept(nvml_sweep: Sweep) -> None:
    asked = {name for name in nvml_sweep.called if name not in AT_START}
    assert asked == {*FIELDS, *OLDER}, "the probe and the table differ"
    assert len(nvml_sweep.pairs) == len({*FIELDS, *OLDER}) * len(CODES)


def test_the_reading_is_there_within_an_interval(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: "" if pair.met and pair.seconds < 1 else f"{pair.seconds:.2f} s") == []


def test_the_other_seven_stay_as_they_were(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: pair.others) == []


def test_everything_is_as_before_when_the_code_is_gone(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: pair.after) == []


def test_a_code_costs_the_getters_own_fields_and_names_itself(nvml_sweep: Sweep) -> None:
    def check(pair: Pair) -> object:
        reading = pair.told["reading"]
        own = {name: "reading" if name in reading else "detail" for name in pair.fields}
        # Under the first version of memory info there is no "reserved" to lose.
        had = {name: part for name, part in own.items() if pair.before[part][name] is not None}
        expected = {f"{part}.{name}" for name, part in had.items()} | {f"{part}.reasons" for part in own.values()}
        changed = set(difference(pair.before, pair.told))
        if changed != expected or reading["state"] != "ok":
            return f"{reading['state']}, changed {sorted(changed ^ expected)}"
        for name, part in own.items():
            reason = pair.told[part]["reasons"].get(name, "")
            words: tuple[str, ...] = (words_of(pair.getter, pair.code, name),)
            if words[0].startswith("(NVML"):
                words = (*words, WORDS[pair.code], CURES.get(pair.code, ""))
            if pair.told[part][name] is not None or not all(word in reason for word in words):
                return f"{name} is {pair.told[part][name]}: {reason!r}"
        return ""

    pairs = [pair for pair in nvml_sweep.pairs if pair.fields]
    assert len(pairs) > 500
    assert wrong(pairs, check) == []


def test_an_older_form_answers_in_place_of_a_newer_one(nvml_sweep: Sweep) -> None:
    pairs = [pair for pair in nvml_sweep.pairs if not pair.fields]
    assert {pair.getter for pair in pairs} == {newer for names in OLDER.values() for newer in names}

    def check(pair: Pair) -> object:
        older = next(name for name, newer in OLDER.items() if newer[-1] == pair.getter)
        changed = set(difference(pair.before, pair.told))
        if pair.getter.endswith("MemoryInfo_v2"):
            reason = pair.told["reading"]["reasons"].get("reserved", "")
            if "counts what it reserves as used" not in reason or pair.told["reading"]["reserved"] is not None:
                return f"reserved is not said to be unknown: {reason!r}"
            changed -= {"reading.reserved", "reading.reasons"}
        return changed or ("" if older in pair.called else f"{older} was not called")

    assert wrong(pairs, check) == []
