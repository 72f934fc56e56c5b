// A libcuda.so.1 that passes everything on to the driver and, once the file $LOST_DEVICE exists, runs a kernel that writes to a bad address
// before the next event is recorded. The driver then answers every call of that context with an error, as after a kernel that crashed.
// tools/gpu_lost_device.py builds it and puts it before the driver.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static const char kBadKernel[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry bad() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 64; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }\n";

static void* of_driver(const char* name) {
  static void* driver = NULL;
  if (!driver) driver = dlopen(REAL_DRIVER, RTLD_NOW | RTLD_LOCAL);
  return dlsym(driver, name);
}

int cuEventRecord(void* event, void* stream) {
  int (*record)(void*, void*) = (int (*)(void*, void*))of_driver("cuEventRecord");
  const char* trigger = getenv("LOST_DEVICE");
  if (trigger && unlink(trigger) == 0) {
    int (*load)(void**, const void*) = (int (*)(void**, const void*))of_driver("cuModuleLoadData");
    int (*find)(void**, void*, const char*) = (int (*)(void**, void*, const char*))of_driver("cuModuleGetFunction");
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) =
        (int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))of_driver("cuLaunchKernel");
    void *module = NULL, *function = NULL;
    if (load(&module, kBadKernel) == 0 && find(&function, module, "bad") == 0)
      launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
  }
  return record(event, stream);
}
