/* Begin and end of NVML and of every call: counting, waiting, and what aborts. */
#define _GNU_SOURCE
#include "stub.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { GENERATIONS = 64 };

/* A row of handles for every time that NVML was initialised, so that an old handle is recognised. */
static Device handles[GENERATIONS][MAX_DEVICES];
static int generation, initialized, was_initialized, in_flight;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count_call(const char *function, int number) {
  static int file = -2;
  if (file == -2) {
    const char *path = getenv("NVML_STUB_CALLS");
    file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  }
  if (file < 0) return;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char text[160];
  int size = snprintf(text, sizeof text, "%lld.%09ld %s %d\n", (long long)now.tv_sec, now.tv_nsec, function, number);
  if (write(file, text, (size_t)size) != size) die(function, "cannot count calls");
}

/* Waits without the lock, so that only this call does. */
static void nap(double seconds) {
  if (seconds <= 0) return;
  struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  pthread_mutex_unlock(&lock);
  while (nanosleep(&left, &left)) {}
  pthread_mutex_lock(&lock);
}

Ret enter(const char *function, Device *device) {
  pthread_mutex_lock(&lock);
  if (device && (device < handles[generation] || device >= handles[generation] + MAX_DEVICES || !device->given))
    die(function, initialized ? "a handle that was not given out since nvmlInit" : "a handle without nvmlInit");
  int number = device ? device->number : -1;
  count_call(function, number);
  if (!initialized && was_initialized) die(function, "a call after nvmlShutdown");
  in_flight++;
  if (!initialized) return UNINITIALIZED;
  load();
  Ret ret = code_for(number, function, 1);
  nap(seconds_of(number, function));
  return ret;
}

Ret leave(Ret ret) {
  in_flight--;
  pthread_mutex_unlock(&lock);
  return ret;
}

Ret hand_out(const char *function, int number, Device **device) {
  Ret ret = code_for(number, function, 1);
  nap(seconds_of(number, function));
  if (ret != SUCCESS) return ret;
  *device = &handles[generation][number];
  **device = (Device){number, 1};
  return SUCCESS;
}

NVML Ret nvmlInitWithFlags(uint flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  count_call(__func__, -1);
  load();
  const char *seconds = look_up("init.sleep"), *code = look_up("init.ret");
  Ret ret = code ? atoi(code) : SUCCESS;
  nap(seconds ? (*seconds == 'f' ? 1e9 : atof(seconds)) : 0);
  if (ret == SUCCESS && !initialized++) {
    generation = (generation + 1) % GENERATIONS;
    for (int i = 0; i < MAX_DEVICES; i++) handles[generation][i].given = 0;
    was_initialized = 1;
  }
  pthread_mutex_unlock(&lock);
  return ret;
}

NVML Ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

NVML Ret nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  count_call(__func__, -1);
  if (!initialized) die(__func__, "without nvmlInit");
  if (initialized == 1 && in_flight) die(__func__, "during a call");
  initialized--;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

NVML const char *nvmlErrorString(Ret code) {
  static _Thread_local char text[32];
  snprintf(text, sizeof text, "error %d", code);
  return text;
}
