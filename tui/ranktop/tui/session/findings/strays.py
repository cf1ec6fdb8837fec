"""Ranks with a context on a GPU that is another rank's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ranktop.tui.session.findings.device import by_device
from ranktop.tui.session.findings.device_words import strangers, stray_sentence, stray_words
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import GONE

_ADVICE: Final = (
    "Call torch.cuda.set_device(local_rank) before anything touches CUDA, load with torch.load(..., "
    "map_location='cpu'), and pass device_id to init_process_group."
)


def strays(scene: Scene) -> Iterable[Finding]:
    """Find devices that carry contexts of ranks whose device is another one, one finding a device."""
    found = strangers(scene.snapshot)
    for members in by_device(scene.snapshot.ranks):
        view = next((view for view in members if view.rank in found and not view.stale), None)
        if view is None or view.card is None or view.state in GONE:
            continue
        stray = found[view.rank]
        ranks = tuple(member.rank for member in members)
        yield Finding(
            rule="strays",
            severity="warning",
            ranks=ranks,
            sentence=stray_sentence(stray, f"the GPU of {ranks_words(ranks)}"),
            short=stray_words(stray),
            evidence=(
                Evidence("contexts of", ranks_words(stray.ranks)),
                Evidence("they hold", stray.bytes, "B"),
                Evidence("GPU", view.card.device.uuid),
                *((Evidence("node", view.card.node),) if view.card.node else ()),
            ),
            advice=_ADVICE,
        )
