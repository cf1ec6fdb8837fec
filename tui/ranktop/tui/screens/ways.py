"""The ways from one screen to the others."""

from __future__ import annotations

from ranktop.tui.screens.live import LiveScreen


class WaysScreen(LiveScreen):
    """Goes to other screens; one that is below already is gone back to, so that none is there twice."""

    def action_device(self) -> None:
        """Go to the selected rank's device."""
        from ranktop.tui.screens.device import DeviceScreen

        if not self.app.reveal(DeviceScreen):
            self.app.push_screen(DeviceScreen(self))

    def action_imbalance(self) -> None:
        """Go to the grid of all ranks."""
        from ranktop.tui.screens.imbalance import ImbalanceScreen

        if not self.app.reveal(ImbalanceScreen):
            self.app.push_screen(ImbalanceScreen(self))

    def action_diff(self) -> None:
        """Lay the selected rank beside another."""
        from ranktop.tui.screens.diff import DiffScreen

        if not self.app.reveal(DiffScreen):
            self.app.push_screen(DiffScreen(self))

    def action_postmortem(self) -> None:
        """Tell what is known of the selected rank's end, where there is something to be told."""
        from ranktop.tui.screens.postmortem import PostmortemScreen
        from ranktop.tui.view.postmortem import has_account

        view = self.snapshot().rank(self.options.selected)
        if view is None or not has_account(view):
            who = "no rank" if view is None else f"rank {view.rank}"
            self.say(f"{who} has left no post-mortem: it neither ran out of memory nor died")
        elif not self.app.reveal(PostmortemScreen):
            self.app.push_screen(PostmortemScreen(self))

    def action_ranks(self) -> None:
        """Go to the selected rank on the ranks screen."""
        self.app.show_rank(self.options.selected)
