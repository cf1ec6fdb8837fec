/* MIG: instances of a GPU with indexes that may have gaps. */
#include "stub.h"

NVML Ret nvmlDeviceGetMigMode(Device *device, uint *now, uint *pending) {
  BEGIN(device);
  Ret ret = give_uint(device->number, "mig_mode", now);
  if (ret == SUCCESS) *pending = (uint)number_of(device->number, "mig_pending", *now);
  return leave(ret);
}

/* 0 where MIG is not on. */
static ull most(int number) { return number_of(number, "mig_mode", 0) ? number_of(number, "mig_max", 7) : 0; }

NVML Ret nvmlDeviceGetMaxMigDeviceCount(Device *device, uint *count) {
  BEGIN(device);
  *count = (uint)most(device->number);
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint index, Device **instance) {
  BEGIN(device);
  int parent = device->number;
  if (!number_of(parent, "mig_mode", 0)) return leave(NOT_SUPPORTED);
  if (index >= most(parent)) return leave(INVALID_ARGUMENT);
  for (int i = 0; i < device_count(); i++)
    if (is_mig(i) && (int)number_of(i, "parent", MAX_DEVICES) == parent && number_of(i, "mig_index", 0) == index)
      return leave(hand_out(__func__, i, instance));
  return leave(NOT_FOUND);
}

NVML Ret nvmlDeviceIsMigDeviceHandle(Device *device, uint *is) {
  BEGIN(device);
  *is = (uint)is_mig(device->number);
  return leave(SUCCESS);
}

NVML Ret nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *instance, Device **device) {
  BEGIN(instance);
  int n = instance->number;
  if (!is_mig(n) || !has(n, "parent")) return leave(INVALID_ARGUMENT);
  int parent = (int)number_of(n, "parent", 0);
  return leave(parent < device_count() ? hand_out(__func__, parent, device) : NOT_FOUND);
}

NVML Ret nvmlDeviceGetGpuInstanceId(Device *device, uint *id) {
  BEGIN(device);
  return leave(is_mig(device->number) ? give_uint(device->number, "gi", id) : INVALID_ARGUMENT);
}

NVML Ret nvmlDeviceGetComputeInstanceId(Device *device, uint *id) {
  BEGIN(device);
  return leave(is_mig(device->number) ? give_uint(device->number, "ci", id) : INVALID_ARGUMENT);
}

typedef struct { uint multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; ull memory_mb; } Attributes;
_Static_assert(sizeof(Attributes) == 40, "nvmlDeviceAttributes_t");

NVML Ret nvmlDeviceGetAttributes_v2(Device *device, Attributes *attributes) {
  BEGIN(device);
  int n = device->number;
  if (!is_mig(n)) return leave(INVALID_ARGUMENT);
  uint slices = (uint)number_of(n, "slices", 1);
  *attributes = (Attributes){(uint)number_of(n, "sms", 16), 1, 1, 0, 0, 0, slices, slices, number_of(n, "total", 0) >> 20};
  return leave(SUCCESS);
}
