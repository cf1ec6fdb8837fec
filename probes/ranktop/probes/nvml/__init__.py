"""An NVIDIA device through NVML: see device.py for how it is read and fast.py and slow.py for what is asked."""

from ranktop.probes.nvml.connect import Target, Variables
from ranktop.probes.nvml.device import NvmlDevice

__all__ = ["NvmlDevice", "Target", "Variables"]
