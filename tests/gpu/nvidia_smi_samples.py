"""Text in the shape that ``nvidia-smi`` prints (drivers 535 to 570), to read it without a GPU."""

from __future__ import annotations

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6)
"""

QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Tue Jul 15 16:01:30 2025
Driver Version                            : 570.86.15
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 7
        Compute Instance ID               : 0
        Device Attributes
            Shared
                Multiprocessor count      : 14
        FB Memory Usage
            Total                         : 4864 MiB
            Reserved                      : 0 MiB
            Used                          : 12 MiB
            Free                          : 4851 MiB
    MIG Device
        Index                             : 1
        GPU Instance ID                   : 2
        Compute Instance ID               : 1
    GPU UUID                              : GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
    PCI
        Bus                               : 0x07
        Bus Id                            : 00000000:07:00.0
    Performance State                     : P0
    FB Memory Usage
        Total                             : 40960 MiB
        Reserved                          : 617 MiB
        Used                              : 37 MiB
        Free                              : 40306 MiB
    Processes                             : None

GPU 00000000:81:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
    PCI
        Bus Id                            : 00000000:81:00.0
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 1187 MiB
        Free                              : 79821 MiB
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4711
            Type                          : C
            Name                          : python
            Used GPU Memory               : 1178 MiB
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4712
            Type                          : C
            Name                          : python
            Used GPU Memory               : N/A
"""

GPU_ROWS = """\
GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, 40960, 37, 40306, 617
GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 81559, 1187, 79821, 551
"""

PROCESS_ROWS = """\
4711, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 1178
4712, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, [N/A]
"""
