/* A stand-in for libnvidia-ml.so.1: the part of NVML that ranktop and its tests call, driven by a file.
 *
 * $NVML_STUB_FILE names a file of lines "key value", read again whenever it changed:
 *   devices 2                      number of devices (MIG instances counted, after the others)
 *   init.ret 18                    return code of nvmlInit
 *   init.sleep 8                   seconds it takes
 *   d0.uuid GPU-...                also d0.name (%xx escapes a byte), d0.index, d0.parent (of a MIG instance)
 *   d0.total d0.used d0.free d0.reserved     bytes
 *   d0.util d0.power d0.limit d0.temp d0.sm d0.mem
 *   d0.procs 123:456,789:1000      pid:bytes
 *   d0.nvmlDeviceGetName.ret 15    return code of one function of one device; d0.*.ret of all its functions; *.ret of every device's
 *   d0.nvmlDeviceGetName.sleep 2   seconds that it takes; likewise
 * $NVML_STUB_CALLS names a file to which every call appends "monotonic-seconds function".
 *
 * Strict: a wrong struct version is refused with 25; a handle that it did not give out, a call after the last nvmlShutdown and a
 * shutdown during a call abort the process. Compile with -DWITHOUT_<function> to leave a function out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
typedef int Ret;
typedef struct { int number; } Device;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
enum { MAX_DEVICES = 256, MAX_LINES = 4096, TEXT = 256 };

static Device devices[MAX_DEVICES];
static struct { char key[96]; char value[TEXT]; } lines[MAX_LINES];
static int line_count;
static struct stat seen;
static int initialized, was_initialized, in_flight;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *why) {
  fprintf(stderr, "nvml_stub: %s\n", why);
  abort();
}

/* Reads the file again if it is another one; a writer replaces it by renaming. */
static void load(void) {
  const char *path = getenv("NVML_STUB_FILE");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  char text[512];
  line_count = 0;
  while (line_count < MAX_LINES && fgets(text, sizeof text, file))
    if (sscanf(text, "%95s %255[^\n]", lines[line_count].key, lines[line_count].value) == 2) line_count++;
  fclose(file);
  seen = now;
}

static const char *look_up(const char *key) {
  for (int i = line_count - 1; i >= 0; i--)
    if (!strcmp(lines[i].key, key)) return lines[i].value;
  return NULL;
}

static const char *of_device(int number, const char *what) {
  char key[128];
  snprintf(key, sizeof key, "d%d.%s", number, what);
  return look_up(key);
}

static ull number_of(int device, const char *what, ull otherwise) {
  const char *value = of_device(device, what);
  return value ? strtoull(value, NULL, 10) : otherwise;
}

static int device_count(void) {
  const char *value = look_up("devices");
  int count = value ? atoi(value) : 0;
  return count > MAX_DEVICES ? MAX_DEVICES : count;
}

static void count_call(const char *function) {
  const char *path = getenv("NVML_STUB_CALLS");
  if (!path) return;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char text[128];
  int size = snprintf(text, sizeof text, "%lld.%09ld %s\n", (long long)now.tv_sec, now.tv_nsec, function);
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0) return;
  if (write(file, text, (size_t)size) != size) die("cannot count calls");
  close(file);
}

static void nap(double seconds) {
  struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&left, &left)) {}
}

/* The most particular setting of a function: d0.name.what, then d0.*.what, then *.what. */
static const char *setting(int device, const char *function, const char *what) {
  char key[128];
  const char *value;
  snprintf(key, sizeof key, "%s.%s", function, what);
  if ((value = of_device(device, key))) return value;
  snprintf(key, sizeof key, "*.%s", what);
  if ((value = of_device(device, key))) return value;
  return look_up(key);
}

/* Begins a call about a device: counts it, waits as told, returns the code to give; `leave` ends it. */
static Ret enter(const char *function, Device *device) {
  pthread_mutex_lock(&lock);
  count_call(function);
  if (!initialized) {
    if (was_initialized) die("a call after nvmlShutdown");
    pthread_mutex_unlock(&lock);
    return UNINITIALIZED;
  }
  if (device && (device < devices || device >= devices + MAX_DEVICES)) die("a handle that was never given out");
  load();
  int number = device ? device->number : -1;
  const char *seconds = setting(number, function, "sleep");
  const char *code = setting(number, function, "ret");
  double wait = seconds ? atof(seconds) : 0;
  Ret ret = code ? atoi(code) : SUCCESS;
  in_flight++;
  pthread_mutex_unlock(&lock);
  if (wait > 0) nap(wait);
  return ret;
}

static Ret leave(Ret ret) {
  pthread_mutex_lock(&lock);
  if (initialized) in_flight--;
  pthread_mutex_unlock(&lock);
  return ret;
}

/* In a function about a device: return at once unless it is to succeed. */
#define BEGIN(device)                         \
  if (!(device)) die("a NULL handle");        \
  Ret code_ = enter(__func__, (device));      \
  if (code_ == UNINITIALIZED && !initialized) \
    return code_;                             \
  if (code_ != SUCCESS) return leave(code_)

Ret nvmlInitWithFlags(uint flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  count_call(__func__);
  load();
  const char *seconds = look_up("init.sleep"), *code = look_up("init.ret");
  double wait = seconds ? atof(seconds) : 0;
  Ret ret = code ? atoi(code) : SUCCESS;
  pthread_mutex_unlock(&lock);
  if (wait > 0) nap(wait);
  if (ret != SUCCESS) return ret;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_DEVICES; i++) devices[i].number = i;
  initialized++;
  was_initialized = 1;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

Ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

Ret nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  count_call(__func__);
  if (!initialized) die("nvmlShutdown without nvmlInit");
  if (initialized == 1 && in_flight) die("nvmlShutdown during a call");
  initialized--;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

const char *nvmlErrorString(Ret code) {
  static _Thread_local char text[32];
  snprintf(text, sizeof text, "error %d", code);
  return text;
}

Ret nvmlSystemGetDriverVersion(char *version, uint length) {
  Ret ret = enter(__func__, NULL);
  if (ret != SUCCESS) return initialized ? leave(ret) : ret;
  snprintf(version, length, "%s", "999.99");
  return leave(SUCCESS);
}

static int is_mig(int number) {
  const char *uuid = of_device(number, "uuid");
  return uuid && !strncmp(uuid, "MIG-", 4);
}

Ret nvmlDeviceGetCount_v2(uint *count) {
  Ret ret = enter(__func__, NULL);
  if (ret != SUCCESS) return initialized ? leave(ret) : ret;
  *count = 0;
  for (int i = 0; i < device_count(); i++) *count += !is_mig(i);
  return leave(SUCCESS);
}

/* Gives out a handle, unless getting this device's handle is to fail. */
static Ret hand_out(const char *function, int number, Device **device) {
  const char *code = setting(number, function, "ret");
  if (code && atoi(code) != SUCCESS) return atoi(code);
  *device = &devices[number];
  return SUCCESS;
}

Ret nvmlDeviceGetHandleByIndex_v2(uint index, Device **device) {
  Ret ret = enter(__func__, NULL);
  if (ret != SUCCESS) return initialized ? leave(ret) : ret;
  for (int i = 0; i < device_count(); i++)
    if (!is_mig(i) && number_of(i, "index", (ull)i) == index) return leave(hand_out(__func__, i, device));
  return leave(INVALID_ARGUMENT);
}

Ret nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
  Ret ret = enter(__func__, NULL);
  if (ret != SUCCESS) return initialized ? leave(ret) : ret;
  for (int i = 0; i < device_count(); i++) {
    const char *mine = of_device(i, "uuid");
    if (mine && !strcmp(mine, uuid)) return leave(hand_out(__func__, i, device));
  }
  return leave(NOT_FOUND);
}

Ret nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *device, Device **parent) {
  BEGIN(device);
  const char *value = of_device(device->number, "parent");
  if (!value) return leave(INVALID_ARGUMENT);
  *parent = &devices[atoi(value)];
  return leave(SUCCESS);
}

static Ret text_of(Device *device, const char *what, char *text, uint length) {
  const char *value = of_device(device->number, what);
  uint used = 0;
  for (; value && *value && used + 1 < length; used++) {
    char hex[3] = {0};
    if (*value == '%' && value[1] && value[2]) {
      memcpy(hex, value + 1, 2);
      text[used] = (char)strtol(hex, NULL, 16);
      value += 3;
    } else {
      text[used] = *value++;
    }
  }
  text[used] = 0;
  return SUCCESS;
}

Ret nvmlDeviceGetUUID(Device *device, char *text, uint length) {
  BEGIN(device);
  return leave(text_of(device, "uuid", text, length));
}

Ret nvmlDeviceGetName(Device *device, char *text, uint length) {
  BEGIN(device);
  return leave(text_of(device, "name", text, length));
}

Ret nvmlDeviceGetIndex(Device *device, uint *index) {
  BEGIN(device);
  *index = (uint)number_of(device->number, "index", (ull)device->number);
  return leave(SUCCESS);
}

typedef struct { ull total, free, used; } Memory;
typedef struct { uint version; ull total, reserved, free, used; } MemoryV2;

Ret nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
  BEGIN(device);
  int n = device->number;
  memory->total = number_of(n, "total", 0);
  memory->free = number_of(n, "free", 0);
  /* The first version counts the driver's own bytes as used. */
  memory->used = number_of(n, "used", 0) + number_of(n, "reserved", 0);
  return leave(SUCCESS);
}

#ifndef WITHOUT_nvmlDeviceGetMemoryInfo_v2
Ret nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
  BEGIN(device);
  if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return leave(VERSION_MISMATCH);
  int n = device->number;
  memory->total = number_of(n, "total", 0);
  memory->reserved = number_of(n, "reserved", 0);
  memory->free = number_of(n, "free", 0);
  memory->used = number_of(n, "used", 0);
  return leave(SUCCESS);
}
#endif

typedef struct { uint gpu, memory; } Utilization;

Ret nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
  BEGIN(device);
  rates->gpu = (uint)number_of(device->number, "util", 0);
  rates->memory = (uint)number_of(device->number, "memutil", 0);
  return leave(SUCCESS);
}

Ret nvmlDeviceGetPowerUsage(Device *device, uint *milliwatts) {
  BEGIN(device);
  *milliwatts = (uint)number_of(device->number, "power", 0);
  return leave(SUCCESS);
}

Ret nvmlDeviceGetEnforcedPowerLimit(Device *device, uint *milliwatts) {
  BEGIN(device);
  *milliwatts = (uint)number_of(device->number, "limit", 0);
  return leave(SUCCESS);
}

#ifndef WITHOUT_nvmlDeviceGetTemperature
Ret nvmlDeviceGetTemperature(Device *device, int sensor, uint *degrees) {
  BEGIN(device);
  if (sensor != 0) return leave(INVALID_ARGUMENT);
  *degrees = (uint)number_of(device->number, "temp", 0);
  return leave(SUCCESS);
}
#endif

typedef struct { uint version; int sensor; int degrees; } Temperature;

Ret nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
  BEGIN(device);
  if (temperature->version != (sizeof(Temperature) | 1u << 24)) return leave(VERSION_MISMATCH);
  temperature->degrees = (int)number_of(device->number, "temp", 0);
  return leave(SUCCESS);
}

Ret nvmlDeviceGetClockInfo(Device *device, int type, uint *megahertz) {
  BEGIN(device);
  if (type != 1 && type != 2) return leave(INVALID_ARGUMENT);
  *megahertz = (uint)number_of(device->number, type == 1 ? "sm" : "mem", 0);
  return leave(SUCCESS);
}

typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } Process;

static Ret processes(Device *device, uint *count, Process *found) {
  const char *text = of_device(device->number, "procs");
  uint room = *count, number = 0;
  while (text && *text) {
    char *end;
    uint pid = (uint)strtoul(text, &end, 10);
    ull used = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
    if (found && number < room) found[number] = (Process){pid, used, 0xffffffffu, 0xffffffffu};
    number++;
    text = *end == ',' ? end + 1 : "";
  }
  *count = number;
  return number > room || (!found && number) ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifndef WITHOUT_nvmlDeviceGetComputeRunningProcesses_v3
Ret nvmlDeviceGetComputeRunningProcesses_v3(Device *device, uint *count, Process *found) {
  BEGIN(device);
  return leave(processes(device, count, found));
}
#endif

Ret nvmlDeviceGetComputeRunningProcesses_v2(Device *device, uint *count, Process *found) {
  BEGIN(device);
  return leave(processes(device, count, found));
}
