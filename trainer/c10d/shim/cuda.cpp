// C interface of CUDA devices. It uses c10's interfaces for any device, so that it compiles without CUDA's headers and
// runs without CUDA.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

#include "guard.h"

static c10::Device on(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

static c10::impl::VirtualGuardImpl cuda() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

// Returns a function of the driver.
template <class F>
static F* driver(void* library, const char* name) {
  auto* found = reinterpret_cast<F*>(dlsym(library, name));
  if (found == nullptr) throw std::runtime_error(std::string("the NVIDIA driver has no function ") + name);
  return found;
}

static void check_driver(int status, const char* name) {
  if (status != 0) throw std::runtime_error(std::string(name) + " returned " + std::to_string(status));
}

extern "C" {
// The linker drops libtorch_cuda because no symbol of it is used; loading it registers the CUDA backend.
int evenstep_cuda_load() {
  return guard([] {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  });
}

// A new thread otherwise uses device 0: it would reserve memory there, and fail if it is full.
int evenstep_cuda_set_device(int device) {
  return guard([&] { cuda().setDevice(on(device)); });
}

// Sends all later work of the calling thread on a device to a separate stream.
int evenstep_cuda_own_stream(int device, int high_priority) {
  return guard([&] { cuda().exchangeStream(cuda().getStreamFromGlobalPool(on(device), high_priority != 0)); });
}

// Waits for the calling thread's work on its stream of a device.
int evenstep_cuda_stream_wait(int device) {
  return guard([&] { cuda().getStream(on(device)).synchronize(); });
}

// Peak of the bytes that tensors have used on a device.
int evenstep_cuda_peak_bytes(int device, int64_t* bytes) {
  return guard([&] {
    auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    *bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  });
}

// Returns cached memory of all devices to the driver.
int evenstep_cuda_empty_cache() {
  return guard([] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache(); });
}

// The 16 bytes of a device's UUID, from the driver: its numbering follows CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER,
// as libtorch's does.
int evenstep_cuda_uuid(int device, uint8_t* uuid) {
  return guard([&] {
    auto* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    int handle = 0;
    check_driver(driver<int(unsigned)>(library, "cuInit")(0), "cuInit");
    check_driver(driver<int(int*, int)>(library, "cuDeviceGet")(&handle, device), "cuDeviceGet");
    // Version 2 distinguishes the MIG instances of a GPU.
    check_driver(driver<int(uint8_t*, int)>(library, "cuDeviceGetUuid_v2")(uuid, handle), "cuDeviceGetUuid_v2");
  });
}
}
