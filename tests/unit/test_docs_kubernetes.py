"""The Kubernetes example of docs/containers.md: it parses, and its parts fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "containers.md"


def test_the_job_is_sound() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job: dict[str, Any] = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure"), "what a Job demands"
    assert "hostPID" not in pod
    assert all(side["restartPolicy"] == "Always" for side in pod["initContainers"]), "else the job would wait for it"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = []
    for container in (*pod["initContainers"], *pod["containers"]):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= set(volumes)
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        assert all(isinstance(value, str) for value in (*environment.values(), *container["command"]))
        places.append((environment["RANKTOP_RUN_DIR"], environment["RANKTOP_STATE_DIR"], mounts["/shared"]))
        for place in places[-1][:2]:
            # The volume's own root is root's: the first rank makes a directory within.
            assert re.fullmatch(r"/shared/[a-z]+", place)
    assert len(set(places)) == 1, "both containers look at the same place"
