"""What one rank sends to others in one optimizer step, and how long that takes at least."""

from ranktop.budget.communication.volumes import collectives as collectives
from ranktop.budget.communication.volumes import left_out as left_out
from ranktop.budget.communication.volumes import time_at_least as time_at_least
