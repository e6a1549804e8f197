/* A stand-in for the CUDA driver (libcuda.so.1) without a GPU, for tests: contexts, memory, copies and streams.

   As on a discrete GPU: a context is current in a thread or in none; the host may not touch the device's memory
   (PROT_NONE); what is asked of a stream is done when somebody waits for it, and until then the host's memory that it
   goes to holds poison. There are no kernels: every other call of the driver is refused (the table of those is made by
   prepare.py). What it holds can be asked for with stand_in_held(). */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1 /* names as they are in the library: cuMemAlloc_v2 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default"))) CUresult
#define POISON 0xA5
enum { DEEP = 64, PAGE = 4096 };
static const size_t total = (size_t)1 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int started;
static int held_host, held_streams;

/* --- contexts: a stack of them per thread */
struct CUctx_st { int alive; };
static struct CUctx_st primary;
static int primary_users;
static __thread CUcontext stack[DEEP];
static __thread int depth;

static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
#define STARTED if (!started) return CUDA_ERROR_NOT_INITIALIZED
#define IN_CONTEXT \
  STARTED; \
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT; \
  if (!current()->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED

static CUresult push(CUcontext context) {
  if (depth == DEEP) return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = context;
  return CUDA_SUCCESS;
}
API cuInit(unsigned flags) { started = 1; return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
API cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device) {
  STARTED;
  *made = calloc(1, sizeof **made);
  (*made)->alive = 1;
  return push(*made);
}
API cuCtxDestroy_v2(CUcontext context) {
  STARTED;
  if (!context || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
  context->alive = 0;
  if (current() == context) depth--;
  return CUDA_SUCCESS;
}
API cuCtxDetach(CUcontext context) { return cuCtxDestroy_v2(context); }
API cuCtxPushCurrent_v2(CUcontext context) { STARTED; return context ? push(context) : CUDA_ERROR_INVALID_CONTEXT; }
API cuCtxPopCurrent_v2(CUcontext *popped) {
  STARTED;
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  CUcontext top = stack[--depth];
  if (popped) *popped = top;
  return CUDA_SUCCESS;
}
API cuCtxGetCurrent(CUcontext *context) { STARTED; *context = current(); return CUDA_SUCCESS; }
API cuCtxGetDevice(CUdevice *device) { IN_CONTEXT; *device = 0; return CUDA_SUCCESS; }
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  STARTED;
  primary.alive = 1;
  primary_users++;
  *context = &primary;
  return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  STARTED;
  if (!primary_users) return CUDA_ERROR_INVALID_CONTEXT;
  primary.alive = --primary_users > 0;
  return CUDA_SUCCESS;
}

/* --- the one device, which says what it is */
API cuDriverGetVersion(int *version) { *version = 12090; return CUDA_SUCCESS; }
API cuDeviceGetCount(int *count) { STARTED; *count = 1; return CUDA_SUCCESS; }
API cuDeviceGet(CUdevice *device, int number) {
  STARTED;
  *device = 0;
  return number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
API cuDeviceGetName(char *name, int length, CUdevice device) {
  STARTED;
  snprintf(name, length, "no GPU (stand-in for the driver)");
  return CUDA_SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { STARTED; *bytes = total; return CUDA_SUCCESS; }
API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) { STARTED; *major = 8; *minor = 9; return CUDA_SUCCESS; }
API cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  STARTED;
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 8
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 9
           : which == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING       ? 1 : 0;
  return CUDA_SUCCESS;
}

/* --- memory of the device: what the program is given, and where the bytes are */
struct block { char *given, *bytes; size_t size, mapped; struct block *next; };
static struct block *blocks;
static size_t taken;

static char *bytes_at(CUdeviceptr at, size_t size) {
  char *found = NULL;
  pthread_mutex_lock(&lock);
  for (struct block *b = blocks; b && !found; b = b->next)
    if ((char *)at >= b->given && (char *)at + size <= b->given + b->size) found = b->bytes + ((char *)at - b->given);
  pthread_mutex_unlock(&lock);
  return found;
}
API cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
  IN_CONTEXT;
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  size_t mapped = (size + PAGE - 1) / PAGE * PAGE;
  if (taken + mapped > total) return CUDA_ERROR_OUT_OF_MEMORY;
  struct block *b = calloc(1, sizeof *b);
  b->given = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  b->bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->given == MAP_FAILED || b->bytes == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(b->bytes, POISON, mapped);
  b->size = size, b->mapped = mapped;
  pthread_mutex_lock(&lock);
  b->next = blocks, blocks = b, taken += mapped;
  pthread_mutex_unlock(&lock);
  *at = (CUdeviceptr)b->given;
  return CUDA_SUCCESS;
}
API cuMemFree_v2(CUdeviceptr at) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  struct block **link = &blocks;
  while (*link && (*link)->given != (char *)at) link = &(*link)->next;
  struct block *b = *link;
  if (b) *link = b->next, taken -= b->mapped;
  pthread_mutex_unlock(&lock);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  munmap(b->given, b->mapped), munmap(b->bytes, b->mapped), free(b);
  return CUDA_SUCCESS;
}
API cuMemGetInfo_v2(size_t *left, size_t *all) { IN_CONTEXT; *left = total - taken; *all = total; return CUDA_SUCCESS; }

/* --- page-locked memory of the host */
API cuMemHostAlloc(void **at, size_t size, unsigned flags) {
  IN_CONTEXT;
  if (posix_memalign(at, PAGE, size ? size : 1)) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(*at, POISON, size);
  held_host++;
  return CUDA_SUCCESS;
}
API cuMemAllocHost_v2(void **at, size_t size) { return cuMemHostAlloc(at, size, 0); }
API cuMemFreeHost(void *at) { IN_CONTEXT; free(at); held_host--; return CUDA_SUCCESS; }

/* --- streams: work is done when somebody waits for it, as late as a real device may be */
struct work { char *to; const char *from; size_t size; struct work *next; };
struct CUstream_st { CUcontext context; struct work *first, **end; };

static CUresult begin(CUstream stream, char *to, const char *from, size_t size) {
  IN_CONTEXT;
  if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
  if (!stream || stream->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  struct work *w = malloc(sizeof *w);
  *w = (struct work){to, from, size, NULL};
  *stream->end = w, stream->end = &w->next;
  return CUDA_SUCCESS;
}
API cuStreamCreate(CUstream *made, unsigned flags) {
  IN_CONTEXT;
  *made = calloc(1, sizeof **made);
  (*made)->context = current(), (*made)->end = &(*made)->first;
  held_streams++;
  return CUDA_SUCCESS;
}
API cuStreamSynchronize(CUstream stream) {
  IN_CONTEXT;
  if (!stream || stream->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  while (stream->first) {
    struct work *w = stream->first;
    memcpy(w->to, w->from, w->size);
    stream->first = w->next, free(w);
  }
  stream->end = &stream->first;
  return CUDA_SUCCESS;
}
API cuStreamDestroy_v2(CUstream stream) {
  CUresult result = cuStreamSynchronize(stream);
  if (result) return result;
  held_streams--, free(stream);
  return CUDA_SUCCESS;
}
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  return begin(stream, bytes_at(to, size), from, size);
}
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  CUresult result = begin(stream, to, bytes_at(from, size), size);
  if (!result) memset(to, POISON, size);
  return result;
}
static CUresult copy(char *to, const char *from, size_t size) {
  IN_CONTEXT;
  if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
  memcpy(to, from, size);
  return CUDA_SUCCESS;
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { return copy(bytes_at(to, size), from, size); }
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return copy(to, bytes_at(from, size), size); }

/* --- words, and everything else */
API cuGetErrorString(CUresult error, const char **text) {
  static __thread char words[64];
  snprintf(words, sizeof words, "error %d of the stand-in for the driver", error);
  *text = words;
  return CUDA_SUCCESS;
}
API cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }
/* what is held: bytes of the device, page-locked blocks, streams, users of the primary context */
__attribute__((visibility("default"))) void stand_in_held(size_t held[4]) {
  held[0] = taken, held[1] = held_host, held[2] = held_streams, held[3] = primary_users;
}
#define REFUSED(name) __attribute__((visibility("default"))) int name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
