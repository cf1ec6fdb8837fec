/* Lists of processes, in the three versions that drivers have had. */
#include "stub.h"

#include <stdlib.h>

/* Only the first version lacks the instances. */
typedef struct { uint pid; ull used; } ProcessV1;
typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } Process;
_Static_assert(sizeof(ProcessV1) == 16 && sizeof(Process) == 24, "nvmlProcessInfo_t");

static ull next_number(const char **text, ull otherwise) {
  if (**text != ':') return otherwise;
  char *end;
  ull value = strtoull(*text + 1, &end, 10);
  *text = end;
  return value;
}

static Ret list(int number, const char *key, uint *count, void *found, int version) {
  const char *text = of_device(number, key);
  if (!count || (*count && !found)) return INVALID_ARGUMENT;
  uint room = *count, length = 0;
  uint no_instance = 0xffffffffu;
  uint gi = (uint)number_of(number, "gi", no_instance), ci = (uint)number_of(number, "ci", no_instance);
  while (text && *text) {
    char *end;
    Process process = {(uint)strtoul(text, &end, 10), 0, gi, ci};
    text = end;
    process.used = next_number(&text, 0);
    process.gpu_instance = (uint)next_number(&text, gi);
    process.compute_instance = (uint)next_number(&text, ci);
    if (length < room && version == 1) ((ProcessV1 *)found)[length] = (ProcessV1){process.pid, process.used};
    if (length < room && version > 1) ((Process *)found)[length] = process;
    length++;
    if (*text == ',') text++;
  }
  *count = length;
  return length > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(function, version, key)                                      \
  NVML Ret function(Device *device, uint *count, void *found) {           \
    BEGIN(device);                                                        \
    return leave(list(device->number, key, count, found, version));       \
  }

LIST(nvmlDeviceGetComputeRunningProcesses, 1, "procs")
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 2, "procs")
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 3, "procs")
LIST(nvmlDeviceGetGraphicsRunningProcesses, 1, "graphics_procs")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, "graphics_procs")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 3, "graphics_procs")
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 1, "mps_procs")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, "mps_procs")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 3, "mps_procs")
