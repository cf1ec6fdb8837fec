/* ECC, row remapping, NVLink and the field values. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_LINKS = 36 };

NVML Ret nvmlDeviceGetEccMode(Device *device, uint *now, uint *pending) {
  BEGIN(device);
  Ret ret = give_uint(device->number, "ecc", now);
  *pending = (uint)number_of(device->number, "ecc_pending", *now);
  return leave(ret);
}

/* Counted only while ECC is on. */
static Ret ecc_errors(int number, uint type, uint counter, ull *count) {
  static const char *const keys[2][2] = {{"ecc_volatile_corrected", "ecc_volatile_uncorrected"},
                                         {"ecc_aggregate_corrected", "ecc_aggregate_uncorrected"}};
  if (type > 1 || counter > 1) return INVALID_ARGUMENT;
  return number_of(number, "ecc", 0) ? give_ull(number, keys[counter][type], count) : NOT_SUPPORTED;
}

NVML Ret nvmlDeviceGetTotalEccErrors(Device *device, uint type, uint counter, ull *count) {
  BEGIN(device);
  return leave(ecc_errors(device->number, type, counter, count));
}

NVML Ret nvmlDeviceGetRemappedRows(Device *device, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
  BEGIN(device);
  int n = device->number;
  Ret ret = give_uint(n, "remap_corrected", corrected);
  if (ret == SUCCESS) ret = give_uint(n, "remap_uncorrected", uncorrected);
  if (ret == SUCCESS) ret = give_uint(n, "remap_pending", pending);
  return leave(ret == SUCCESS ? give_uint(n, "remap_failed", failed) : ret);
}

/* What is said of one link, else of all. */
static Ret of_link(int number, uint link, const char *what, ull *value) {
  char key[64];
  ull links = number_of(number, "nvlinks", 0);
  if (!links) return NOT_SUPPORTED;
  if (link >= links) return INVALID_ARGUMENT;
  snprintf(key, sizeof key, "nvlink_%s", what);
  *value = number_of(number, key, 0);
  snprintf(key, sizeof key, "nvlink%u_%s", link, what);
  *value = number_of(number, key, *value);
  return SUCCESS;
}

NVML Ret nvmlDeviceGetNvLinkState(Device *device, uint link, uint *active) {
  BEGIN(device);
  if (link >= MAX_LINKS || !active) return leave(INVALID_ARGUMENT);
  ull state;
  Ret ret = of_link(device->number, link, "state", &state);
  if (ret == SUCCESS) *active = (uint)state;
  return leave(ret);
}

NVML Ret nvmlDeviceGetNvLinkErrorCounter(Device *device, uint link, uint counter, ull *value) {
  static const char *const names[] = {"replay", "recovery", "crc"};
  BEGIN(device);
  if (link >= MAX_LINKS || counter > 4 || !value) return leave(INVALID_ARGUMENT);
  return leave(counter < 3 ? of_link(device->number, link, names[counter], value) : NOT_SUPPORTED);
}

typedef union { double number; uint u; unsigned long ul; ull wide; long long signed_wide; int i; unsigned short us; } Value;
typedef struct { uint id, scope; long long timestamp, latency; uint type; Ret ret; Value value; } FieldValue;
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

static Ret narrow(int number, const char *key, FieldValue *field) {
  field->type = UNSIGNED_INT;
  return give_uint(number, key, &field->value.u);
}

static Ret field_value(int number, FieldValue *field) {
  char key[32];
  snprintf(key, sizeof key, "field%u.ret", field->id);
  Ret told = (Ret)number_of(number, key, SUCCESS);
  if (told != SUCCESS) return told;
  field->type = UNSIGNED_LONG_LONG;
  int older = !number_of(number, "blackwell", 0);
  switch (field->id) {
    case 3: case 4: case 5: case 6:
      return ecc_errors(number, (field->id - 3) % 2, (field->id - 3) / 2, &field->value.wide);
    case 82: return narrow(number, "mem_temp", field);
    case 83: return give_ull(number, "energy", &field->value.wide);
    case 91: return narrow(number, "nvlinks", field);
    case 94: return narrow(number, "pcie_replays", field);
    case 161: return older ? of_link(number, field->scope, "replay", &field->value.wide) : NOT_SUPPORTED;
    case 162: return older ? of_link(number, field->scope, "recovery", &field->value.wide) : NOT_SUPPORTED;
    case 163: return older ? of_link(number, field->scope, "crc", &field->value.wide) : NOT_SUPPORTED;
    case 215: return older ? NOT_SUPPORTED : of_link(number, field->scope, "recovery", &field->value.wide);
    case 165: {
      ull state = 0;
      Ret ret = of_link(number, field->scope, "state", &state);
      field->type = UNSIGNED_INT;
      field->value.u = (uint)state;
      return ret;
    }
    case 230: return narrow(number, "recovery", field);
    default: return NOT_SUPPORTED;
  }
}

/* Every entry has a code of its own; what a client finds beside a code that is not 0 is rubbish. */
NVML Ret nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *fields) {
  BEGIN(device);
  if (count <= 0 || !fields) return leave(INVALID_ARGUMENT);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; i++) {
    memset(&fields[i].value, 0xee, sizeof fields[i].value);
    fields[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    fields[i].latency = 1;
    fields[i].ret = field_value(device->number, &fields[i]);
  }
  return leave(SUCCESS);
}
