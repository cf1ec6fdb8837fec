/* Memory, load, power, temperature, clocks and the bus. */
#include "stub.h"

typedef struct { ull total, free, used; } Memory;
typedef struct { uint version; ull total, reserved, free, used; } MemoryV2;
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");

NVML Ret nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
  BEGIN(device);
  int n = device->number;
  if (!has(n, "total")) return leave(NOT_SUPPORTED);
  *memory = (Memory){number_of(n, "total", 0), number_of(n, "free", 0), number_of(n, "used", 0) + number_of(n, "reserved", 0)};
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
  BEGIN(device);
  int n = device->number;
  if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return leave(VERSION_MISMATCH);
  if (!has(n, "total")) return leave(NOT_SUPPORTED);
  memory->total = number_of(n, "total", 0);
  memory->reserved = number_of(n, "reserved", 0);
  memory->free = number_of(n, "free", 0);
  memory->used = number_of(n, "used", 0);
  return leave(SUCCESS);
}

typedef struct { uint gpu, memory; } Utilization;

NVML Ret nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
  BEGIN(device);
  Ret ret = give_uint(device->number, "util", &rates->gpu);
  rates->memory = (uint)number_of(device->number, "memutil", 0);
  return leave(ret);
}

#define CODEC(function, key)                                             \
  NVML Ret function(Device *device, uint *percent, uint *microseconds) { \
    BEGIN(device);                                                       \
    Ret ret = give_uint(device->number, key, percent);                   \
    if (microseconds) *microseconds = 166667;                            \
    return leave(ret);                                                   \
  }

CODEC(nvmlDeviceGetEncoderUtilization, "encoder")
CODEC(nvmlDeviceGetDecoderUtilization, "decoder")

#define GETTER(function, type, key)                         \
  NVML Ret function(Device *device, type *value) {          \
    BEGIN(device);                                          \
    return leave(give_##type(device->number, key, value));  \
  }

GETTER(nvmlDeviceGetPowerUsage, uint, "power")
GETTER(nvmlDeviceGetEnforcedPowerLimit, uint, "limit")
GETTER(nvmlDeviceGetPowerManagementLimit, uint, "limit")
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, uint, "limit_default")
GETTER(nvmlDeviceGetTotalEnergyConsumption, ull, "energy")
GETTER(nvmlDeviceGetCurrentClocksEventReasons, ull, "reasons")
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, ull, "reasons")
GETTER(nvmlDeviceGetPerformanceState, uint, "pstate")
GETTER(nvmlDeviceGetPowerState, uint, "pstate")
GETTER(nvmlDeviceGetPersistenceMode, uint, "persistence")
GETTER(nvmlDeviceGetComputeMode, uint, "compute_mode")
GETTER(nvmlDeviceGetFanSpeed, uint, "fan")
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, uint, "pcie_gen")
GETTER(nvmlDeviceGetCurrPcieLinkWidth, uint, "pcie_width")
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, uint, "pcie_max_gen")
GETTER(nvmlDeviceGetMaxPcieLinkWidth, uint, "pcie_max_width")
GETTER(nvmlDeviceGetPcieReplayCounter, uint, "pcie_replays")

NVML Ret nvmlDeviceGetPowerManagementLimitConstraints(Device *device, uint *least, uint *most) {
  BEGIN(device);
  Ret ret = give_uint(device->number, "limit_min", least);
  return leave(ret == SUCCESS ? give_uint(device->number, "limit_max", most) : ret);
}

NVML Ret nvmlDeviceGetTemperature(Device *device, uint sensor, uint *degrees) {
  BEGIN(device);
  if (sensor != 0) return leave(INVALID_ARGUMENT);
  return leave(give_uint(device->number, "temp", degrees));
}

typedef struct { uint version; int sensor, degrees; } Temperature;

NVML Ret nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
  BEGIN(device);
  if (temperature->version != (sizeof(Temperature) | 1u << 24)) return leave(VERSION_MISMATCH);
  if (temperature->sensor != 0) return leave(INVALID_ARGUMENT);
  return leave(give_uint(device->number, "temp", (uint *)&temperature->degrees));
}

NVML Ret nvmlDeviceGetTemperatureThreshold(Device *device, uint threshold, uint *degrees) {
  static const char *const keys[] = {"t_shutdown", "t_slowdown", "t_mem_max", "t_gpu_max"};
  BEGIN(device);
  if (threshold >= 8) return leave(INVALID_ARGUMENT);
  return leave(threshold < 4 ? give_uint(device->number, keys[threshold], degrees) : NOT_SUPPORTED);
}

NVML Ret nvmlDeviceGetClockInfo(Device *device, uint type, uint *megahertz) {
  static const char *const keys[] = {"graphics", "sm", "mem", "video"};
  BEGIN(device);
  return leave(type < 4 ? give_uint(device->number, keys[type], megahertz) : INVALID_ARGUMENT);
}

NVML Ret nvmlDeviceGetMaxClockInfo(Device *device, uint type, uint *megahertz) {
  static const char *const keys[] = {"max_graphics", "max_sm", "max_mem", "max_video"};
  BEGIN(device);
  return leave(type < 4 ? give_uint(device->number, keys[type], megahertz) : INVALID_ARGUMENT);
}

NVML Ret nvmlDeviceGetPcieThroughput(Device *device, uint counter, uint *kilobytes) {
  static const char *const keys[] = {"pcie_tx", "pcie_rx"};
  BEGIN(device);
  return leave(counter < 2 ? give_uint(device->number, keys[counter], kilobytes) : INVALID_ARGUMENT);
}
