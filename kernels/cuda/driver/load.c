//go:build cuda

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern void *reprise_driver_table[];
extern const char reprise_driver_names[];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int status;
static int (*count)(int *);

int reprise_driver_missing(void) { return 500; } /* CUDA_ERROR_NOT_FOUND */

static void load(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    status = -1;
    return;
  }
  int i = 0;
  for (const char *name = reprise_driver_names; *name; name += strlen(name) + 1, i++) {
    void *symbol = dlsym(lib, name);
    if (symbol) reprise_driver_table[i] = symbol;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
  count = (int (*)(int *))dlsym(lib, "cuDeviceGetCount");
  setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* kernels must not be loaded in the middle of a capture */
  status = init && count ? init(0) : -2;
}

int reprise_driver_load(void) {
  pthread_once(&once, load);
  return status;
}

/* gorgonia.org/cu calls cuInit when the program starts and exits if it fails: it hears success, the real one is in load. */
int cuInit(unsigned flags) { return flags ? 1 : 0; }

int cuDeviceGetCount(int *n) {
  *n = 0;
  return count ? count(n) : 100; /* CUDA_ERROR_NO_DEVICE */
}
