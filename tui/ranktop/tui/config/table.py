"""Every setting, once: the file, the variables, ``ranktop config`` and the documentation are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ranktop.tui.config.kinds import Choice, Kind, Number, Switch, Text, Texts

UNTOLD: Final = ("keys", "findings")
"""Sections of the file that have tables of their own (``keymap``, ``session.findings.limits``)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One habit that may stand in the file, in a variable, or on a command line."""

    section: str
    key: str
    kind: Kind
    default: Any
    words: str
    flag: str = ""
    """The flag that sets it for one command; empty: there is none."""
    named: str = ""
    """Its variable, where that is not RANKTOP_ and the key."""
    passed: bool = False
    """What the file says is put into the environment, where the one that uses it looks, and its children."""

    @property
    def name(self) -> str:
        """How it is told: ``dashboard.theme``."""
        return f"{self.section}.{self.key}"

    @property
    def told(self) -> str:
        """What it means and what it takes."""
        return f"{self.words} ({self.kind.form})" if self.kind.form else self.words

    @property
    def variable(self) -> str:
        """Its variable: ``RANKTOP_THEME``."""
        return f"RANKTOP_{(self.named or self.key).upper()}"


THEMES: Final = ("auto", "dark", "light", "ansi", "ansi-dark", "ansi-light", "none")
SCALES: Final = ("auto", "device", "process", "tensors")
SHOWN: Final = ("peak", "step_start", "forward_end", "backward_start", "backward_end", "step_end", "now")
ORDERS: Final = ("rank", "used", "difference", "utilization", "power", "temperature", "step time", "age")
NEVER: Final = "never"

SETTINGS: Final = (
    Setting("dashboard", "theme", Choice(THEMES), "auto", "colours; auto: what suits the terminal", "--theme"),
    Setting("dashboard", "ascii", Switch(auto=True), "auto", "draw without Unicode; auto: by the locale", "--ascii"),
    Setting("dashboard", "scale", Choice(SCALES), "auto", "what the full bar is at first (key z)"),
    Setting("dashboard", "moment", Choice(SHOWN), "peak", "which moment of a step the bars show at first (key m)"),
    Setting("dashboard", "sort", Choice(ORDERS), "rank", "order of the ranks at first (key o)"),
    Setting("dashboard", "detail", Switch(), True, "the panel of the selected rank is open at first (key Enter)"),
    Setting("dashboard", "link", Number(0, 10**9, whole=True), 0,
            "bytes a second of a slow link behind tmux or screen; 0: no limit", passed=True),
    Setting("ssh", "remote_command", Text(), "", "how ranktop is run on another machine; empty: it is searched for",
            "--remote-command", passed=True),
    Setting("ssh", "options", Texts(), [], "options for ssh, KEY=VALUE each", "-o", "ssh_options"),
    Setting("ssh", "identity", Text(), "", "identity file, as ssh -i", "-i", "ssh_identity"),
    Setting("ssh", "jump", Text(), "", "machine to go through, as ssh -J", "-J", "ssh_jump"),
    Setting("ssh", "config", Text(), "", "configuration of ssh, as ssh -F", "-F", "ssh_config"),
    Setting("status", "fail_on", Choice((NEVER, "warning", "critical")), NEVER,
            "`ranktop status` exits with 1 when a finding is at least that grave", "--fail-on"),
    Setting("prometheus", "listen", Text(), "127.0.0.1:9400", "where `ranktop export --prometheus` serves the metrics",
            "--listen", "prometheus_listen"),
    Setting("serve", "listen", Text(), "127.0.0.1:8000", "where `ranktop serve` serves the dashboard", "--listen",
            "serve_listen"),
    Setting("paths", "run_dir", Text(), "", "where jobs are looked for; a job's own agents read the variable alone",
            passed=True),
    Setting("paths", "state_dir", Text(), "",
            "where recordings are looked for; a job's own agents read the variable alone", passed=True),
)  # fmt: skip
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
SECTIONS: Final = tuple(dict.fromkeys([*(setting.section for setting in SETTINGS), *UNTOLD]))

CONFIG: Final = "RANKTOP_CONFIG"

AGENT: Final = {
    "RANKTOP_DISABLE": "1: no agent",
    "RANKTOP_INTERVAL": "seconds between samples (1)",
    "RANKTOP_RUN_DIR": "where sockets live: a directory of yours with mode 0700 ($XDG_RUNTIME_DIR/ranktop, else "
    "ranktop-UID in the temporary folder)",
    "RANKTOP_STATE_DIR": "where recordings are written (~/.local/state/ranktop)",
    "RANKTOP_JOB_NAME": "name of the job, instead of the script's",
    "RANKTOP_JOB_ID": "id of the job, instead of a hash",
    "RANKTOP_DEVICE": "host, nvml:UUID (or its beginning), nvml:INDEX or nvml:local_rank: report this device instead "
    "of the one that torch names",
    "RANKTOP_GPM": "1: read GPM metrics too (SM, tensor and DRAM activity of Hopper and newer); they may disturb a "
    "profiler",
    "RANKTOP_HUB_LINGER": "seconds that a hub stays after its last rank (180)",
    "RANKTOP_RECORD": "off: no recording",
    "RANKTOP_RECORD_BYTES": "largest recording (512 MiB)",
    "RANKTOP_RECORD_JOBS": "recordings that are kept (20)",
    "RANKTOP_NODES": "off: nodes do not look for each other",
    "RANKTOP_HUB_ADDRESS": "address at which other nodes reach this one's hub",
    "RANKTOP_HUB_BIND": "addresses at which it listens",
    "RANKTOP_HUB_PORT": "its port",
    "RANKTOP_STORE": "the job's store, HOST:PORT",
}
"""Variables of the agent and the hub -> what they mean. They are read in the job's environment, never from the file:
the agent lives in the training process, where nothing may be read, parsed or refused that the job does not need."""
