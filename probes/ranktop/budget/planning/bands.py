"""How far each number can be trusted, and what that makes of their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ranktop.budget.terms import Amount


@dataclass(frozen=True, slots=True)
class Band:
    """The error of one number or of a sum."""

    within: float | None
    """Relative error; 0 = exact, None = nothing is known."""
    guessed: int = 0
    """Bytes of it that are a guess, for which ``within`` does not speak."""
    slack: int = 0
    """Bytes that a right measurement may show beside it: padding, or copies that a script may keep or not."""

    def words(self) -> str:
        """Return the band in words: ``exact``, ``within 3 %``, ``within 3 % but for 1.2 GiB guessed``."""
        if self.within is None:
            return "unknown"
        known = "exact" if self.within == 0 else f"within {percent(self.within)}"
        return f"{known} but for {self.guessed / 2**30:.2g} GiB guessed" if self.guessed else known

    def short(self) -> str:
        """Return the band in five cells."""
        if self.within is None:
            return "–"
        return ("0" if self.within == 0 else f"±{percent(self.within, '')}") + ("?" if self.guessed else "")


def percent(share: float, space: str = " ") -> str:
    """Write a relative error, never rounded down to nothing."""
    number = 100 * share
    text = f"{number:.0f}" if number >= 9.5 else f"{number:.1f}".removesuffix(".0")
    return f"<0.1{space}%" if text == "0" else f"{text}{space}%"


def of(amount: Amount) -> Band:
    """Return the band of one amount."""
    if amount.bytes is None:
        return Band(None)
    if amount.within is None:
        return Band(0.0, amount.bytes, amount.slack)
    return Band(amount.within, slack=amount.slack)


def margin_of(amounts: Mapping[str, Amount]) -> int:
    """Return the bytes by which a sum of amounts may be off, as if all errors went the same way."""
    known = sum((amount.bytes or 0) * amount.within for amount in amounts.values() if amount.within is not None)
    guessed = sum(amount.bytes or 0 for amount in amounts.values() if amount.within is None)
    return int(known + guessed / 2)


def of_sum(amounts: Mapping[str, Amount]) -> Band:
    """Return the band of a total: the errors of its parts, added as if all went the same way."""
    if not amounts or any(amount.bytes is None for amount in amounts.values()):
        return Band(None)
    total = sum(amount.bytes or 0 for amount in amounts.values())
    guessed = sum(amount.bytes or 0 for amount in amounts.values() if amount.within is None)
    error = sum((amount.within or 0.0) * (amount.bytes or 0) for amount in amounts.values())
    return Band(error / total if total else 0.0, guessed, sum(amount.slack for amount in amounts.values()))
