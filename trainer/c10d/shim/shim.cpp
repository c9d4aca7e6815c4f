// C interface of libtorch's c10d. It passes plain data, opaque handles, and tch's tensors (at::Tensor*).
// Functions that can fail return 0 or 1; evenstep_last_error() of the same thread returns the message.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef EVENSTEP_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <cstring>
#include <system_error>

using milliseconds = std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;
using Group = c10::intrusive_ptr<c10d::Backend>;

static thread_local std::string last_error;

template <class F>
static int guard(F body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "an exception of unknown type";
  }
  return 1;
}

extern "C" {
const char* evenstep_last_error() { return last_error.c_str(); }

// A server on port 0 picks a free port; *port returns the port in use.
int evenstep_store_tcp(const char* host, uint16_t* port, int server, int64_t timeout_ms, Store** out) {
  return guard([&] {
    c10d::TCPStoreOptions options;
    options.port = *port;
    options.isServer = server != 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    *port = store->getPort();
    *out = new Store(std::move(store));
  });
}

int evenstep_store_prefix(Store* store, const char* prefix, Store** out) {
  return guard([&] { *out = new Store(c10::make_intrusive<c10d::PrefixStore>(prefix, *store)); });
}

int evenstep_store_set(Store* store, const char* key, const uint8_t* value, size_t size) {
  return guard([&] { (*store)->set(key, std::vector<uint8_t>(value, value + size)); });
}

int evenstep_store_get(Store* store, const char* key, int64_t timeout_ms, uint8_t* value, size_t capacity,
                       size_t* size) {
  return guard([&] {
    (*store)->wait({key}, milliseconds(timeout_ms));
    auto stored = (*store)->get(key);
    if (stored.size() > capacity) throw std::runtime_error("the value is longer than the longest allowed");
    *size = stored.size();
    std::memcpy(value, stored.data(), stored.size());
  });
}

int evenstep_store_add(Store* store, const char* key, int64_t amount, int64_t* total) {
  return guard([&] { *total = (*store)->add(key, amount); });
}

// Sets the key to `desired` if it holds `expected`, or if it is absent and `expected` is empty. Returns its
// value afterwards.
int evenstep_store_compare_set(Store* store, const char* key, const uint8_t* expected, size_t expected_size,
                               const uint8_t* desired, size_t desired_size, uint8_t* value, size_t capacity,
                               size_t* size) {
  return guard([&] {
    auto held = (*store)->compareSet(key, std::vector<uint8_t>(expected, expected + expected_size),
                                     std::vector<uint8_t>(desired, desired + desired_size));
    if (held.size() > capacity) throw std::runtime_error("the value is longer than the longest allowed");
    *size = held.size();
    std::memcpy(value, held.data(), held.size());
  });
}

int evenstep_store_check(Store* store, const char* key, int* present) {
  return guard([&] { *present = (*store)->check({key}) ? 1 : 0; });
}

void evenstep_store_free(Store* store) {
  guard([&] { delete store; });
}

// interface: the address or host name whose network card gloo uses ("127.0.0.1" on one machine).
int evenstep_group_gloo(Store* store, int rank, int world_size, int64_t timeout_ms, const char* interface,
                        Group** out) {
  return guard([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->threads = 1;  // one collective at a time; more threads only wait
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(interface));
    *out = new Group(c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, world_size, options));
  });
}

int evenstep_group_nccl(Store* store, int rank, int world_size, int64_t timeout_ms, int device, Group** out) {
  return guard([&] {
#ifdef EVENSTEP_NCCL
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = milliseconds(timeout_ms);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(*store, rank, world_size, options);
    group->setBoundDeviceId(at::Device(at::kCUDA, device));
    group->eagerConnectSingleDevice(at::Device(at::kCUDA, device));
    *out = new Group(std::move(group));
#else
    throw std::runtime_error("built without the feature `nccl`");
#endif
  });
}

void evenstep_group_free(Group* group) {
  guard([&] { delete group; });
}

int evenstep_all_reduce_sum(Group* group, at::Tensor* tensor, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    options.timeout = milliseconds(timeout_ms);
    (*group)->allreduce(tensors, options)->wait();
  });
}

int evenstep_broadcast(Group* group, at::Tensor* tensor, int root, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = milliseconds(timeout_ms);
    (*group)->broadcast(tensors, options)->wait();
  });
}

// Gloo limits the wait here. NCCL only queues the work on the current stream, and a limit would block the
// host.
static void finish(Group* group, const c10::intrusive_ptr<c10d::Work>& work, int64_t timeout_ms) {
  auto bound = (*group)->getBackendName() == "gloo" ? milliseconds(timeout_ms) : ::kNoTimeout;
  if (!work->wait(bound)) throw std::runtime_error("the operation was aborted");
}

int evenstep_send(Group* group, at::Tensor* tensor, int to, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group, (*group)->send(tensors, to, 0), timeout_ms);
  });
}

int evenstep_receive(Group* group, at::Tensor* tensor, int from, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group, (*group)->recv(tensors, from, 0), timeout_ms);
  });
}

int evenstep_barrier(Group* group, int64_t timeout_ms) {
  return guard([&] {
    c10d::BarrierOptions options;
    options.timeout = milliseconds(timeout_ms);
    (*group)->barrier(options)->wait();
  });
}

// Lets the calling thread run only while no other thread needs its core.
int evenstep_idle_class() {
  return guard([] {
    sched_param parameters{};
    if (sched_setscheduler(0, SCHED_IDLE, &parameters) != 0)
      throw std::system_error(errno, std::generic_category(), "sched_setscheduler");
  });
}

// Sends all later work of the calling thread on a CUDA device to a separate stream. Uses c10's virtual guard,
// so that this compiles without CUDA's headers.
int evenstep_own_stream(int device, int high_priority) {
  return guard([&] {
    c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    cuda.exchangeStream(cuda.getStreamFromGlobalPool({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)},
                                                     high_priority != 0));
  });
}

// Waits for the calling thread's work on its stream of a CUDA device.
int evenstep_stream_wait(int device) {
  return guard([&] {
    c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    cuda.getStream({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}).synchronize();
  });
}

// The linker drops libtorch_cuda because no symbol of it is used; loading it registers the CUDA backend.
// Returns 1 if it is loaded. Its absence is not an error: the CPU build has no such library.
int evenstep_load_cuda() { return dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr; }
}
