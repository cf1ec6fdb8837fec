"""Hugging Face transformers' Trainer: a callback of its own kind tells what the Trainer says publicly."""

from __future__ import annotations


def met() -> None:
    """``transformers.trainer`` has been imported."""
