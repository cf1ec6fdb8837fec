"""What the replay's keys do, and what the dashboard shows of where it stands; knows nothing of Textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from ranktop.tui.replay.deck import Deck
from ranktop.tui.replay.seeker import Seeker
from ranktop.tui.replay.spells import Findings
from ranktop.tui.replay.survey import Survey
from ranktop.tui.replay.tape import Tape
from ranktop.tui.replay.times import clock, span
from ranktop.tui.session.source import Link
from ranktop.tui.view.scrubber import Scrub
from ranktop.tui.view.text import plain
from ranktop.tui.view.text import ranges as numbers

OpenTape = Callable[[], Tape]


class Player:
    """A deck with the survey of its recording. Each key's method returns what to tell in the last line."""

    def __init__(
        self,
        open_tape: OpenTape,
        *,
        at: float | None = None,
        growing: bool = False,
        real: Callable[[], float] = time.monotonic,
        aside: bool = True,
    ) -> None:
        """``open_tape`` opens the recording, once for each thread; ``growing``: its job still runs.

        ``at``: where to begin, seconds on the recording's clock, by default at its beginning. ``aside``: what is sought
        is prepared on a thread of its own.
        """
        self.survey = Survey(open_tape, growing=growing, busy=self._busy)
        self.deck = Deck(
            open_tape(), at=at, real=real, standing=lambda t: self.survey.findings.standing(t), growing=growing,
            seeker=Seeker(open_tape) if aside else None,
        )  # fmt: skip

    def _busy(self) -> bool:
        """Whether someone waits for a picture, or it does not come along as fast as wished."""
        head = self.deck.head
        return self.deck.seeking or (head.playing and head.real_speed() is not None)

    @property
    def findings(self) -> Findings:
        """What is known of the whole recording so far."""
        return self.survey.findings

    def close(self) -> None:
        """End the survey and let go of the recording."""
        self.survey.stop()
        self.deck.close()

    # What the keys do.

    def toggle(self) -> str:
        """Play or pause."""
        deck = self.deck
        if deck.head.playing:
            deck.pause()
            return f"paused at {self.wall()}"
        again = deck.ended and not deck.growing
        deck.play()
        return f"playing {'from the beginning ' if again else ''}at {speed(deck.head.speed)}"

    def faster(self, by: int) -> str:
        """Change the speed."""
        head = self.deck.head
        changed = head.faster(by)
        limit = "" if changed else f", the {'most' if by > 0 else 'least'} there is"
        return f"speed: {speed(head.speed)}{limit}{'' if head.playing else ' (paused; space plays)'}"

    def step(self, seconds: float) -> str:
        """Pause, and go so many seconds on or back; where fewer samples are kept to the next or last of them."""
        deck = self.deck
        spacing = deck.spacing
        deck.step(seconds if abs(seconds) >= spacing else spacing * (1 if seconds > 0 else -1))
        return self._edge(seconds)

    def skip(self, seconds: float) -> str:
        """Go so many seconds on or back, playing or not."""
        self.deck.seek(self.deck.at + seconds)
        return self._edge(seconds)

    def share(self, share: float) -> str:
        """Go to a share of the recording, 0 to 1."""
        tape = self.deck.tape
        self.deck.seek(tape.begin + share * (tape.end - tape.begin))
        return {0.0: "the beginning", 1.0: "the end"}.get(share, f"{100 * share:.0f} % of the recording")

    def finding(self, by: int) -> str:
        """Pause at the next time at which a finding begins, or the last one before."""
        found = self.findings.beside(self.deck.at, by)
        if found is None:
            return self._no_finding(by)
        self.deck.pause()
        self.deck.seek(found.first)
        rule, _, ranks = found.key
        whom = f"of rank{'s' if len(ranks) > 1 else ''} {numbers(ranks, 2)}" if ranks else "of the job"
        place = self.findings.stories.index(found) + 1
        about = "begins before" if found.rough else "begins at"
        count = f"{place} of {len(self.findings.stories)}{'' if self.findings.done else ' so far'}"
        return f"{plain(rule).replace('_', ' ')} {whom} {about} {clock(self.deck.tape.wall(found.first))}; {count}"

    def _edge(self, by: float) -> str:
        tape, at = self.deck.tape, self.deck.at
        if by < 0 and at <= tape.begin:
            return "the beginning"
        return "the end" + (", as recorded so far" if self.deck.growing else "") if by > 0 and at >= tape.end else ""

    def _no_finding(self, by: int) -> str:
        if self.survey.failure:
            return plain(self.survey.failure)
        where = "later" if by > 0 else "earlier"
        looked = "" if self.findings.done else f"; {100 * self.looked():.0f} % is looked through"
        return f"no warning or critical finding {where}{looked}"

    # What is shown.

    def looked(self) -> float:
        """Return the share of the recording that was looked through for findings."""
        tape = self.deck.tape
        whole = max(1e-9, tape.end - tape.begin)
        return min(1.0, sum(last - first for first, last in self.findings.seen) / whole)

    def wall(self) -> str:
        """Return the recorded wall clock's time of the picture."""
        return clock(self.deck.tape.wall(self.deck.now))

    def state(self) -> str:
        """Say how it plays: ``4x``, ``64x (real 21x)``, ``paused``, ``end``."""
        deck = self.deck
        if not deck.head.playing:
            return "end" if deck.ended else "paused"
        real = deck.head.real_speed()
        return speed(deck.head.speed) + (f" (real {speed(real)})" if real is not None and not deck.ended else "")

    def link(self) -> Link:
        """Return where it stands, in the place of a connection's state."""
        return Link(state="replay", detail=f"{self.wall()} {self.state().split(' (')[0]}", age=0.0)

    def scrub(self) -> Scrub:
        """Return what the scrubber's line tells."""
        deck, tape, found = self.deck, self.deck.tape, self.findings
        begin, whole = tape.begin, max(1e-9, tape.end - tape.begin)

        def place(t: float) -> float:
            return max(0.0, min(1.0, (t - begin) / whole))

        marks = [(place(spell.first), spell.severity) for spell in found.stories]
        marks += [(place(sign.at), sign.kind) for sign in found.signs]
        return Scrub(
            place=place(deck.at), wall=clock(tape.wall(deck.at)), date=_date(tape, deck.at), state=self.state(),
            done=span(deck.at - begin), whole=span(whole), spacing=deck.spacing, marks=marks,
            seen=[(place(first), place(last)) for first, last in found.seen],
        )  # fmt: skip


def _date(tape: Tape, at: float) -> str:
    """Return the date at a time, where that is not today or the recording goes over midnight."""
    try:
        there = datetime.fromtimestamp(tape.wall(at))
        days = {datetime.fromtimestamp(tape.wall(t)).date() for t in (tape.begin, tape.end)}
    except (ValueError, OverflowError, OSError):
        return ""
    return "" if days == {datetime.now().date()} else there.strftime("%b %d")


def speed(value: float) -> str:
    """Write a speed: ``0.25x``, ``4x``, ``21x``."""
    return f"{value:.2g}x" if value < 1 else f"{value:.0f}x" if value >= 10 or value == int(value) else f"{value:.1f}x"
