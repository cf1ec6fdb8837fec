/* A stand-in for libnvidia-ml.so.1: the part of NVML that ranktop and its tests call, driven by a file.
 *
 * $NVML_STUB_FILE names a file of lines "key value", read again whenever it changed. A value that is not given is not
 * supported by the device (3). Numbers may be decimal or 0x hexadecimal.
 *
 *   devices 2                      number of devices (MIG instances counted)
 *   driver cuda nvml               versions: 570.86.15, 12080, 12.570.86.15
 *   init.ret 18  init.sleep 8      return code of nvmlInit and the seconds it takes
 *
 *   d0.uuid d0.name                %xx escapes a byte
 *   d0.index .minor .pci .numa     index among whole GPUs, number of /dev/nvidia<minor>, 00000000:81:00.0, node
 *   d0.total .used .free .reserved bytes, as memory info v2 has them (v1 counts reserved as used)
 *   d0.util .memutil .fan .encoder .decoder    percent
 *   d0.power .limit .limit_min .limit_max .limit_default    mW
 *   d0.energy                      mJ
 *   d0.temp .mem_temp .t_shutdown .t_slowdown .t_mem_max .t_gpu_max    degrees Celsius
 *   d0.graphics .sm .mem .video and max_ before each        MHz
 *   d0.reasons                     bits of nvmlClocksEventReasons
 *   d0.pstate .persistence .compute_mode .recovery          NVML's numbers
 *   d0.pcie_gen .pcie_width .pcie_max_gen .pcie_max_width .pcie_tx .pcie_rx (KB/s) .pcie_replays
 *   d0.ecc .ecc_pending .ecc_volatile_corrected .ecc_volatile_uncorrected .ecc_aggregate_corrected .ecc_aggregate_uncorrected
 *   d0.remap_corrected .remap_uncorrected .remap_pending .remap_failed
 *   d0.nvlinks 18                  number of links; .nvlink_state .nvlink_replay .nvlink_recovery .nvlink_crc of all of
 *                                  them (0 when not given), .nvlink14_state ... of one
 *   d0.blackwell 1                 field 215 instead of 161 to 163
 *   d0.procs 123:456,789:1000      pid:bytes or pid:bytes:gpu instance:compute instance; .graphics_procs .mps_procs
 *   d0.mig_mode .mig_pending .mig_max
 *   d0.gpm 1                       GPM supported; .gpm2 35.5: metric 2
 *
 *   A MIG instance is a device with a MIG- uuid and d1.parent .mig_index .gi .ci .sms .slices; what NVML tells only of
 *   whole GPUs it refuses with 2 (utilization: 3), or with d1.mig_ret.
 *
 *   d0.nvmlDeviceGetName.ret 15    return code of one function of one device; d0.*.ret of all its functions; *.ret of all
 *                                  functions of every device; nvmlSystemGetDriverVersion.ret of a function without device.
 *                                  A handle getter has both: nvmlDeviceGetHandleByUUID.ret and d0.nvmlDeviceGetHandleByUUID.ret
 *                                  "15 after 20": only from the 21st call that it applies to
 *   d0.*.lost_after 20             "ret 15 after 20", whatever ret says
 *   d0.field82.ret 3               of one field value; d0.gpm2.ret of one GPM metric
 *   d0.nvmlDeviceGetName.sleep 2   seconds that it takes, may be fractional, or "forever"; with * as above
 * $NVML_STUB_CALLS names a file to which every call appends "monotonic-seconds function device" (device -1: none).
 *
 * Strict: a wrong struct version is refused with 25; a NULL or foreign handle, one from before the last shutdown, a call
 * after the last nvmlShutdown and a shutdown during a call abort the process. Compile with -D<function>=<other> to leave
 * a function out.
 */
#ifndef STUB_H
#define STUB_H

#include <stddef.h>

#define NVML __attribute__((visibility("default")))

typedef unsigned int uint;
typedef unsigned long long ull;
typedef int Ret;
typedef struct { int number, given; } Device;

enum {
  SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
  GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};
enum { MAX_DEVICES = 256 };

/* steering.c: what the file says. Call with the lock held. */
void die(const char *function, const char *why) __attribute__((noreturn));
void load(void);
const char *look_up(const char *key);
const char *of_device(int number, const char *what);
int has(int number, const char *what);
ull number_of(int number, const char *what, ull otherwise);
int is_mig(int number);
int device_count(void);
double seconds_of(int number, const char *function);
/* The code that a call is to return: what the file says (`counted`: the call counts for "after"), or that of MIG. */
Ret code_for(int number, const char *function, int counted);

/* calls.c: every call begins with `enter`, which takes the lock, and ends with `leave`, which gives it back. */
Ret enter(const char *function, Device *device);
Ret leave(Ret ret);
/* Gives out a handle, unless getting this device's handle is to fail. */
Ret hand_out(const char *function, int number, Device **device);

/* In a function about a device, or about none: return at once unless it is to succeed. */
#define BEGIN(device)                                  \
  if (!(device)) die(__func__, "a NULL handle");       \
  Ret code_ = enter(__func__, (device));               \
  if (code_ != SUCCESS) return leave(code_)
#define BEGIN_SYSTEM()                                 \
  Ret code_ = enter(__func__, NULL);                   \
  if (code_ != SUCCESS) return leave(code_)

static inline Ret give_uint(int number, const char *what, uint *to) {
  if (!to) return INVALID_ARGUMENT;
  if (!has(number, what)) return NOT_SUPPORTED;
  *to = (uint)number_of(number, what, 0);
  return SUCCESS;
}

static inline Ret give_ull(int number, const char *what, ull *to) {
  if (!to) return INVALID_ARGUMENT;
  if (!has(number, what)) return NOT_SUPPORTED;
  *to = number_of(number, what, 0);
  return SUCCESS;
}

#endif
