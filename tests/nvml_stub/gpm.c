/* GPM: two samples of a device are taken and metrics made of them. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIVE = 0x47504d21, MAX_METRICS = 512 };

typedef struct { uint mark; int number; } Sample;
typedef struct { uint version, supported; } Support;
typedef struct { uint id; Ret ret; double value; char *short_name, *long_name, *unit; } Metric;
typedef struct { uint version, count; Sample *first, *second; Metric metrics[]; } MetricsGet;
_Static_assert(sizeof(Metric) == 40 && offsetof(MetricsGet, metrics) == 24, "nvmlGpmMetricsGet_t");

static void check(const char *function, Sample *sample) {
  if (!sample || sample->mark != ALIVE) die(function, "a GPM sample that was not allocated");
}

NVML Ret nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
  BEGIN(device);
  if (support->version != 1) return leave(VERSION_MISMATCH);
  support->supported = (uint)number_of(device->number, "gpm", 0);
  return leave(SUCCESS);
}

NVML Ret nvmlGpmSampleAlloc(Sample **sample) {
  BEGIN_SYSTEM();
  *sample = malloc(sizeof **sample);
  **sample = (Sample){ALIVE, -1};
  return leave(SUCCESS);
}

NVML Ret nvmlGpmSampleFree(Sample *sample) {
  check(__func__, sample);
  BEGIN_SYSTEM();
  sample->mark = 0;
  free(sample);
  return leave(SUCCESS);
}

NVML Ret nvmlGpmSampleGet(Device *device, Sample *sample) {
  check(__func__, sample);
  BEGIN(device);
  if (!number_of(device->number, "gpm", 0)) return leave(NOT_SUPPORTED);
  sample->number = device->number;
  return leave(SUCCESS);
}

NVML Ret nvmlGpmMigSampleGet(Device *device, uint gpu_instance, Sample *sample) {
  check(__func__, sample);
  BEGIN(device);
  if (!number_of(device->number, "gpm", 0)) return leave(NOT_SUPPORTED);
  for (int i = 0; i < device_count(); i++)
    if (is_mig(i) && (int)number_of(i, "parent", MAX_DEVICES) == device->number && number_of(i, "gi", 0) == gpu_instance) {
      sample->number = i;
      return leave(SUCCESS);
    }
  return leave(NOT_FOUND);
}

/* Of the device whose samples they are; every metric has a code of its own. */
NVML Ret nvmlGpmMetricsGet(MetricsGet *get) {
  BEGIN_SYSTEM();
  if (get->version != 1) return leave(VERSION_MISMATCH);
  check(__func__, get->first);
  check(__func__, get->second);
  int number = get->first->number;
  if (number < 0 || get->second->number != number || get->first == get->second || get->count > MAX_METRICS)
    return leave(INVALID_ARGUMENT);
  Ret told = code_for(number, __func__, 1);
  if (told != SUCCESS) return leave(told);
  char key[32];
  for (uint i = 0; i < get->count; i++) {
    Metric *metric = &get->metrics[i];
    snprintf(key, sizeof key, "gpm%u.ret", metric->id);
    metric->ret = (Ret)number_of(number, key, SUCCESS);
    snprintf(key, sizeof key, "gpm%u", metric->id);
    const char *value = of_device(number, key);
    if (metric->ret == SUCCESS && !value) metric->ret = NOT_SUPPORTED;
    metric->value = metric->ret == SUCCESS ? atof(value) : -1;
  }
  return leave(SUCCESS);
}
