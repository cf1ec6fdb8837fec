"""The Grafana dashboard of the documentation, and every question that it asks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "docs" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {one["name"]: one for one in DASHBOARD["templating"]["list"]}


def questions() -> list[str]:
    """Every PromQL expression of the dashboard, its annotations and variables included."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [one["expr"] for one in DASHBOARD["annotations"]["list"] if "expr" in one]
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            inner = re.fullmatch(r"(?:query_result|label_values)\((.*?)(?:, (\w+))?\)", variable["query"]["query"])
            assert inner is not None
            found.append(inner[1])
    return found
