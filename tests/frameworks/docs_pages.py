"""The pages of the documentation: their fenced blocks, what is said of each in a comment before it, and their links."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHELL = ("sh", "bash")

LANGUAGES = (*SHELL, "python", "json", "toml", "yaml", "dockerfile", "promql", "")

PROGRAMS = (
    "ranktop", "python", "torchrun", "pip", "make", "accelerate", "deepspeed", "lightning", "srun", "sbatch",
    "docker", "podman", "kubectl", "ssh", "git", "apt",
)  # fmt: skip

COMMENT = re.compile(r"<!-- (not run|run by|output|exit codes?)(?::? (.*?))? -->")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str
    said: dict[str, str]
    """What the comments before it say: ``not run`` and ``run by`` (the reason, the test), ``output``, ``exit code``."""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def codes(self) -> set[int]:
        """Exit codes that its last command may have."""
        told = self.said.get("exit code") or self.said.get("exit codes") or "0"
        return {int(word) for word in re.findall(r"\d+", told.split("(")[0])}


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page under docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order; AssertionError for a fence that is not closed."""
    found: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"( *)(```+)(.*)", lines[at])
        if fence is None:
            at += 1
            continue
        indent, marks, language = len(fence[1]), fence[2], fence[3].strip()
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == marks), None)
        assert end is not None, f"{path.name}:{at + 1}: the block is not closed"
        text = "\n".join(line[indent:] for line in lines[at + 1 : end])
        page = str(path.relative_to(ROOT))
        found.append(Block(page, at + 1, language, text, said_before(lines, at)))
        at = end + 1
    return found


def said_before(lines: list[str], at: int) -> dict[str, str]:
    """Return what the comments directly above a line say."""
    said: dict[str, str] = {}
    while at > 0 and lines[at - 1].strip().startswith("<!--"):
        at -= 1
        comment = COMMENT.fullmatch(lines[at].strip())
        if comment is not None:
            said[comment[1]] = comment[2] or ""
    return said


def commands(block: str) -> list[str]:
    """Split a block of shell into its commands: as many lines each as bash needs."""
    found: list[str] = []
    waiting = ""
    for line in block.splitlines():
        waiting = f"{waiting}\n{line}" if waiting else line
        bare = re.sub(r"\s+#.*", "", line).rstrip()
        if not waiting.strip() or waiting.lstrip().startswith("#"):
            waiting = ""
        elif not bare.endswith("\\") and complete(waiting):
            found.append(waiting)
            waiting = ""
    assert not waiting, f"bash wants more after: {waiting}"
    return found


def complete(text: str) -> bool:
    """Return whether bash takes it as whole commands."""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
    return not done.stderr


def prose(path: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^ *```\s*?$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(path: Path) -> list[str]:
    """Return where the links and pictures of a page lead to."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path)))


def anchors(path: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(path), flags=re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found
