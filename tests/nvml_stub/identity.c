/* Versions, handles, names and places. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies a text, %xx taken for one byte. */
static Ret give_text(const char *value, char *text, uint length) {
  if (!value) return NOT_SUPPORTED;
  uint used = 0;
  while (*value) {
    if (used + 1 >= length) return INSUFFICIENT_SIZE;
    char hex[3] = {0};
    if (*value == '%' && value[1] && value[2]) {
      memcpy(hex, value + 1, 2);
      text[used++] = (char)strtol(hex, NULL, 16);
      value += 3;
    } else {
      text[used++] = *value++;
    }
  }
  text[used] = 0;
  return SUCCESS;
}

static const char *or_else(const char *key, const char *otherwise) {
  const char *value = look_up(key);
  return value ? value : otherwise;
}

NVML Ret nvmlSystemGetDriverVersion(char *text, uint length) {
  BEGIN_SYSTEM();
  return leave(give_text(or_else("driver", "570.86.15"), text, length));
}

NVML Ret nvmlSystemGetNVMLVersion(char *text, uint length) {
  BEGIN_SYSTEM();
  return leave(give_text(or_else("nvml", "12.570.86.15"), text, length));
}

NVML Ret nvmlSystemGetCudaDriverVersion(int *version) {
  BEGIN_SYSTEM();
  *version = atoi(or_else("cuda", "12080"));
  return leave(SUCCESS);
}

NVML Ret nvmlSystemGetCudaDriverVersion_v2(int *version) {
  BEGIN_SYSTEM();
  *version = atoi(or_else("cuda", "12080"));
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetCount_v2(uint *count) {
  BEGIN_SYSTEM();
  *count = 0;
  for (int i = 0; i < device_count(); i++) *count += !is_mig(i);
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetHandleByIndex_v2(uint index, Device **device) {
  BEGIN_SYSTEM();
  for (int i = 0; i < device_count(); i++)
    if (!is_mig(i) && number_of(i, "index", (ull)i) == index) return leave(hand_out(__func__, i, device));
  return leave(INVALID_ARGUMENT);
}

NVML Ret nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
  if (!uuid) die(__func__, "a NULL uuid");
  BEGIN_SYSTEM();
  for (int i = 0; i < device_count(); i++) {
    const char *mine = of_device(i, "uuid");
    if (mine && !strcmp(mine, uuid)) return leave(hand_out(__func__, i, device));
  }
  return leave(NOT_FOUND);
}

static int place_of(const char *text, uint place[3]) {
  return text && sscanf(text, "%x:%x:%x", &place[0], &place[1], &place[2]) == 3;
}

NVML Ret nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device **device) {
  BEGIN_SYSTEM();
  uint wanted[3], place[3];
  if (!place_of(bus_id, wanted)) return leave(INVALID_ARGUMENT);
  for (int i = 0; i < device_count(); i++)
    if (!is_mig(i) && place_of(of_device(i, "pci"), place) && !memcmp(place, wanted, sizeof place))
      return leave(hand_out(__func__, i, device));
  return leave(NOT_FOUND);
}

NVML Ret nvmlDeviceGetUUID(Device *device, char *text, uint length) {
  BEGIN(device);
  return leave(give_text(of_device(device->number, "uuid"), text, length));
}

NVML Ret nvmlDeviceGetName(Device *device, char *text, uint length) {
  BEGIN(device);
  return leave(give_text(of_device(device->number, "name"), text, length));
}

/* Of a MIG instance: the index within its GPU. */
NVML Ret nvmlDeviceGetIndex(Device *device, uint *index) {
  BEGIN(device);
  int n = device->number;
  *index = (uint)(is_mig(n) ? number_of(n, "mig_index", 0) : number_of(n, "index", (ull)n));
  return leave(SUCCESS);
}

typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");

NVML Ret nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
  BEGIN(device);
  uint place[3];
  if (!place_of(of_device(device->number, "pci"), place)) return leave(NOT_SUPPORTED);
  *info = (PciInfo){.domain = place[0], .bus = place[1], .device = place[2], .id = 0x233010de, .subsystem = 0x16c110de};
  snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", place[0] & 0xffff, place[1] & 0xff, place[2] & 0xff);
  snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", place[0], place[1] & 0xff, place[2] & 0xff);
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetNumaNodeId(Device *device, uint *node) {
  BEGIN(device);
  return leave(give_uint(device->number, "numa", node));
}

NVML Ret nvmlDeviceGetMinorNumber(Device *device, uint *minor) {
  BEGIN(device);
  return leave(give_uint(device->number, "minor", minor));
}
