"""Records the session that the first picture of the README shows: ``python docs/record_session.py``.

It trains docs/session_train.py on this machine's CPUs under the agent and writes its recording to docs/session.ranktop.
Nothing is made up: what the picture shows is what the agents of these ranks measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 170
RANKS = 4
JOB = "5e5510"


def main() -> int:
    """Train, export the recording."""
    target = HERE / "session.ranktop"
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ, "RANKTOP_RUN_DIR": f"{folder}/run", "RANKTOP_STATE_DIR": f"{folder}/state",
            "RANKTOP_JOB_ID": JOB, "RANKTOP_JOB_NAME": "gpt-25m", "RANKTOP_HUB_LINGER": "1", "OMP_NUM_THREADS": "1",
            "RANKTOP_INTERVAL": "2",
        }  # fmt: skip
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        script = ["-m", "ranktop.agent", str(HERE / "session_train.py"), str(SECONDS)]
        subprocess.run([*launch, *script], env=environment, check=True)
        export = [sys.executable, "-m", "ranktop.tui.cli", "export", JOB, "--format", "recording", "--force"]
        subprocess.run([*export, "--output", str(target)], env=environment, check=True)
    print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
