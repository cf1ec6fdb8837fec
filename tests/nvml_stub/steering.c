/* Reads the steering file and answers what it says. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SLOTS = 1 << 15, MAX_ENTRIES = SLOTS / 2 };

typedef struct { const char *key, *value; ull count; } Entry;
typedef struct { char *text; Entry entries[MAX_ENTRIES]; int used; unsigned short slots[SLOTS]; } Table;

static Table tables[2];
static int current;
static struct stat seen;

void die(const char *function, const char *why) {
  fprintf(stderr, "nvml_stub: %s: %s\n", function, why);
  abort();
}

static uint hash_of(const char *key) {
  uint hash = 2166136261u;
  for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 16777619u;
  return hash;
}

static unsigned short *slot_of(Table *table, const char *key) {
  uint at = hash_of(key) % SLOTS;
  while (table->slots[at] && strcmp(table->entries[table->slots[at] - 1].key, key)) at = (at + 1) % SLOTS;
  return &table->slots[at];
}

static Entry *find(Table *table, const char *key) {
  unsigned short place = *slot_of(table, key);
  return place ? &table->entries[place - 1] : NULL;
}

/* Adds a line; one that stood in the table before as well keeps its count of calls. */
static void add(Table *table, const Table *before, char *line) {
  char *value = strchr(line, ' ');
  if (!value) return;
  *value++ = 0;
  unsigned short *slot = slot_of(table, line);
  if (!*slot) {
    if (table->used == MAX_ENTRIES) die("load", "too many lines in the steering file");
    *slot = (unsigned short)++table->used;
  }
  Entry *old = before->text ? find((Table *)before, line) : NULL;
  table->entries[*slot - 1] = (Entry){line, value, old && !strcmp(old->value, value) ? old->count : 0};
}

/* Reads the file again if it is another one; a writer replaces it by renaming. */
void load(void) {
  const char *path = getenv("NVML_STUB_FILE");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "r");
  if (!file || fstat(fileno(file), &now)) die("load", "cannot read the steering file");
  Table *table = &tables[!current];
  free(table->text);
  table->text = malloc((size_t)now.st_size + 1);
  if (!table->text) die("load", "no memory");
  table->text[fread(table->text, 1, (size_t)now.st_size, file)] = 0;
  fclose(file);
  table->used = 0;
  memset(table->slots, 0, sizeof table->slots);
  char *rest = NULL;
  for (char *line = strtok_r(table->text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    add(table, &tables[current], line);
  current = !current;
  seen = now;
}

static Entry *entry(const char *key) { return tables[current].text ? find(&tables[current], key) : NULL; }

const char *look_up(const char *key) {
  Entry *found = entry(key);
  return found ? found->value : NULL;
}

/* Puts "d<number>." (nothing for -1), two words and a dot between them together. */
static Entry *entry_of(int number, const char *first, const char *second) {
  char key[160], *end = key;
  if (number >= 0) end += sprintf(end, "d%d.", number);
  if (strlen(first) + (second ? strlen(second) : 0) > 120) die(first, "a key that is too long");
  end = stpcpy(end, first);
  if (second) {
    *end++ = '.';
    stpcpy(end, second);
  }
  return entry(key);
}

const char *of_device(int number, const char *what) {
  Entry *found = entry_of(number, what, NULL);
  return found ? found->value : NULL;
}

int has(int number, const char *what) { return of_device(number, what) != NULL; }

ull number_of(int number, const char *what, ull otherwise) {
  const char *value = of_device(number, what);
  return value ? strtoull(value, NULL, 0) : otherwise;
}

int is_mig(int number) {
  const char *uuid = number < 0 ? NULL : of_device(number, "uuid");
  return uuid && !strncmp(uuid, "MIG-", 4);
}

int device_count(void) {
  const char *value = look_up("devices");
  int count = value ? atoi(value) : 0;
  return count > MAX_DEVICES ? MAX_DEVICES : count;
}

/* The most particular setting of a function: of it and the device, of the device, of all. */
static Entry *setting(int number, const char *function, const char *what) {
  Entry *found = entry_of(number, function, what);
  if (!found && number >= 0) found = entry_of(number, "*", what);
  return found ? found : entry_of(-1, "*", what);
}

double seconds_of(int number, const char *function) {
  Entry *found = setting(number, function, "sleep");
  if (!found) return 0;
  return strcmp(found->value, "forever") ? atof(found->value) : 1e9;
}

/* What NVML tells only of whole GPUs; everything else is answered for MIG instances too. */
static Ret code_for_mig(int number, const char *function) {
  static const char *const answered[] = {
      "Name", "UUID", "Index", "MemoryInfo", "MemoryInfo_v2", "Attributes_v2", "GpuInstanceId", "ComputeInstanceId",
      "DeviceHandleFromMigDeviceHandle", "ComputeRunningProcesses", "ComputeRunningProcesses_v2",
      "ComputeRunningProcesses_v3", "GraphicsRunningProcesses", "GraphicsRunningProcesses_v2",
      "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses", "MPSComputeRunningProcesses_v2",
      "MPSComputeRunningProcesses_v3", "HandleByUUID", "MigDeviceHandleByIndex"};
  if (!strcmp(function, "nvmlDeviceIsMigDeviceHandle") || !strcmp(function, "nvmlGpmMetricsGet")) return SUCCESS;
  const char *name = strncmp(function, "nvmlDeviceGet", 13) ? "" : function + 13;
  for (size_t i = 0; i < sizeof answered / sizeof *answered; i++)
    if (!strcmp(name, answered[i])) return SUCCESS;
  if (!strcmp(name, "UtilizationRates")) return (Ret)number_of(number, "mig_ret", NOT_SUPPORTED);
  return (Ret)number_of(number, "mig_ret", INVALID_ARGUMENT);
}

Ret code_for(int number, const char *function, int counted) {
  Entry *lost = setting(number, function, "lost_after");
  if (lost) {
    lost->count += counted != 0;
    if (lost->count > strtoull(lost->value, NULL, 10)) return GPU_IS_LOST;
  }
  Entry *told = setting(number, function, "ret");
  if (!told) return is_mig(number) ? code_for_mig(number, function) : SUCCESS;
  char *end;
  Ret code = (Ret)strtol(told->value, &end, 10);
  if (strncmp(end, " after ", 7)) return code;
  told->count += counted != 0;
  return told->count > strtoull(end + 7, NULL, 10) ? code : SUCCESS;
}
