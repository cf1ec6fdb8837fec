"""NVLink: the state and the errors of each link that exists."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.probes.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, OTHER_VERSION, Absent, code_of
from ranktop.probes.nvml.fields import field_values
from ranktop.probes.nvml.getter import Getter, Subject, Values
from ranktop.probes.nvml.limits import NO_NUMBER_64
from ranktop.probes.reading import NvLink

_STATE: Final = 165
_REPLAY: Final = 161
_RECOVERY: Final = 162
_CRC: Final = 163
_RECOVERY_EVENTS: Final = 215
"""Field ids (nvml.h, ``NVML_FI_DEV_NVLINK_*``); from Blackwell on there is no 161 to 163, and 215 for 162."""
_FIELDS: Final = (_STATE, _REPLAY, _RECOVERY, _CRC, _RECOVERY_EVENTS)
_DOWN: Final = 0
_UP: Final = (1, 2)
"""Active, or asleep to save power."""
_LINKS: Final = 18
"""Asked for where the driver does not tell how many there are."""

_ITEMS: Final = 4
"""Of a link asked one by one of older drivers: state, and the first three of ``nvmlNvLinkErrorCounter_t``."""
_SINGLY: Final = (*OTHER_VERSION, INVALID_ARGUMENT, NOT_SUPPORTED)
"""What drivers say that don't know these fields."""


def _ask(subject: Subject) -> Values:
    count = _LINKS if subject.link_count is None else subject.link_count
    if not count:
        return {"nvlinks": ()}
    wanted = [(field, link) for link in range(count) for field in _FIELDS]
    try:
        answers = field_values(subject, wanted)
    except Exception as error:
        # A pynvml that does not know scopes raises a TypeError.
        if not isinstance(error, AttributeError | TypeError) and code_of(error) not in _SINGLY:
            raise
        return _one_by_one(subject, count)
    size = len(_FIELDS)
    links = [_link(link, answers[link * size : (link + 1) * size]) for link in range(count)]
    found = tuple(link for link in links if link is not None)
    if not found:
        return _one_by_one(subject, count)
    subject.links, subject.link_cursor, subject.links_known = {}, 0, False
    return {"nvlinks": found}


def _link(link: int, answers: list[int | Exception]) -> NvLink | None:
    state, *counters = answers
    if isinstance(state, Exception) and code_of(state) in (INVALID_ARGUMENT, NOT_SUPPORTED):
        return None
    replay, recovery, crc, events = (
        value if isinstance(value, int) and 0 <= value < NO_NUMBER_64 else None for value in counters
    )
    return NvLink(
        link=link,
        up=state in _UP if state in (_DOWN, *_UP) else None,
        replay=replay,
        recovery=events if recovery is None else recovery,
        crc=crc,
    )


def _one_by_one(subject: Subject, count: int) -> Values:
    """Ask for as many links as there are calls left, going on where the last turn ended.

    Raises Absent until each has been asked for: some of the links would look like all of them.
    """
    asked = 0
    while asked < count * _ITEMS and subject.left > 0:
        link, item = divmod(subject.link_cursor % (count * _ITEMS), _ITEMS)
        asked += 1
        subject.link_cursor += 1
        if item and link not in subject.links:
            continue
        try:
            if item:
                value = int(subject.nvml.nvmlDeviceGetNvLinkErrorCounter(subject.gpu(), link, item - 1))
            else:
                value = int(subject.nvml.nvmlDeviceGetNvLinkState(subject.gpu(), link))
        except Exception as error:
            if not _missing(subject, link, item, error):
                subject.links_known = True
                break
            continue
        _note(subject, link, item, value)
    subject.links_known |= subject.link_cursor >= count * _ITEMS
    if not subject.links_known:
        raise Absent("the driver tells one link at a time, and not all have been asked for yet")
    return {"nvlinks": tuple(subject.links[link] for link in sorted(subject.links))}


def _note(subject: Subject, link: int, item: int, value: int | None) -> None:
    known = subject.links.get(link) or NvLink(link=link)
    if not item:
        known = replace(known, up=value == 1)
    elif item == 1:
        known = replace(known, replay=value)
    elif item == 2:
        known = replace(known, recovery=value)
    else:
        known = replace(known, crc=value)
    subject.links[link] = known


def _missing(subject: Subject, link: int, item: int, error: Exception) -> bool:
    """Note that an item could not be had; returns whether to go on to the next."""
    code = code_of(error)
    if item:
        _note(subject, link, item, None)
        return True
    if code not in (INVALID_ARGUMENT, NOT_SUPPORTED):
        if not subject.links:
            subject.link_cursor = 0
            raise error
        subject.links[link] = NvLink(link=link)
        return True
    # No such link, and none behind it; or, of the first, none at all.
    if code == INVALID_ARGUMENT or link == 0:
        subject.links = {known: value for known, value in subject.links.items() if known < link}
        subject.link_cursor = 0
        return False
    subject.links.pop(link, None)
    return True


LINKS: Final = Getter("nvmlDeviceGetNvLinkState", ("nvlinks",), _ask, calls=3)
