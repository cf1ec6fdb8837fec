"""Before there is a job: waiting for one, or choosing among several."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ranktop.tui.view.start import choose_lines, waiting_lines
from ranktop.tui.widgets.lines import Lines

if TYPE_CHECKING:
    from ranktop.tui.app import RanktopApp
    from ranktop.wire.endpoints import Found, JobEntry


class StartScreen(Screen[None]):
    """Shows what was found so far: nothing and how to attach, or several jobs to choose from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "one job up", id="job-up", show=False),
        Binding("down,j", "move(1)", "one job down", id="job-down", show=False),
        Binding("enter", "take", "attach to the job", id="job-take", show=False),
    ]

    app: RanktopApp

    def __init__(self) -> None:
        super().__init__()
        self.found: Found | None = None
        self._chosen = ""
        """Id of the job that Enter takes."""

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def on_mount(self) -> None:
        """Draw, and again every half second: the wait and the jobs' ages go on."""
        self.set_interval(0.5, self.draw)
        self.draw()

    def on_resize(self) -> None:
        """Lay out anew."""
        self.draw()

    def show(self, found: Found) -> None:
        """Take what a search gave."""
        self.found = found
        if self._chosen not in [job.id for job in found.jobs]:
            self._chosen = found.jobs[0].id if found.jobs else ""
        self.draw()

    def draw(self) -> None:
        """Draw what is known now."""
        width, height = self.size
        if self.found is not None and len(self.found.jobs) > 1:
            lines = choose_lines(self.found, self._chosen, self.app.glyphs, width, height, self.app.place)
        else:
            problems = self.found.problems if self.found else []
            lines = waiting_lines(
                problems, self.app.trouble, self.app.waited(), self.app.glyphs, width, height, self.app.place
            )
        self.query_one("#text", Lines).show(lines, self.app.palette)

    def _jobs(self) -> list[JobEntry]:
        return list(self.found.jobs) if self.found else []

    def action_move(self, by: int) -> None:
        """Move to another job."""
        ids = [job.id for job in self._jobs()]
        if ids:
            self._chosen = ids[(ids.index(self._chosen) + by) % len(ids)]
        self.draw()

    def action_take(self) -> None:
        """Attach to the chosen job."""
        for job in self._jobs():
            if job.id == self._chosen:
                self.app.take(job)
