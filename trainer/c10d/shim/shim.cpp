// C interface of libtorch's c10d. It passes plain data, opaque handles, and tch's tensors (at::Tensor*).
// Functions that can fail return 0 or 1; evenstep_last_error() of the same thread returns the message.
#include <ATen/core/Tensor.h>
#include <c10/util/env.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef EVENSTEP_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <cstring>
#include <system_error>
#include <thread>

#include "guard.h"

using milliseconds = std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

struct Group {
  c10::intrusive_ptr<c10d::Backend> backend;
  bool on_device;       // NCCL: operations run on the GPU, and only abort() ends one that a peer does not join
  bool aborted = false;
};

thread_local std::string last_error;

// c10d's watchdog acts only if finish() does not.
static constexpr auto watchdog_margin = milliseconds(10'000);
// finish() asks without a pause first, because most operations are short, and then at this interval.
static constexpr int busy_polls = 2'000;
static constexpr auto poll_interval = std::chrono::microseconds(50);

static void abort_operations(Group* group) {
  if (!group->on_device || group->aborted) return;
  group->aborted = true;
  group->backend->abort();
}

// Waits on the host until an operation is done. Gloo does so itself, for at most gloo_ms. NCCL only queues the
// operation on the GPU, and it then waits for the other ranks without limit: finish() observes it, and aborts the
// group after an error or timeout_ms.
static void finish(Group* group, const c10::intrusive_ptr<c10d::Work>& work, int64_t timeout_ms,
                   milliseconds gloo_ms) {
  if (!group->on_device) {
    if (!work->wait(gloo_ms)) throw std::runtime_error("the operation was aborted");
    return;
  }
  auto deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
  bool late = false;
  for (int polls = 0; !late && !work->isCompleted(); ++polls) {
    if (polls < busy_polls) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(poll_interval);
    late = std::chrono::steady_clock::now() >= deadline;
  }
  auto error = work->exception();
  // After an abort by the watchdog, the operation counts as completed.
  if (!error && !late && group->backend->getError() == c10d::ErrorType::SUCCESS) {
    work->wait();  // later work on this thread's stream follows the operation
    return;
  }
  guard([&] { abort_operations(group); });
  if (error) std::rethrow_exception(error);
  if (late) throw std::runtime_error("another rank did not take part within " + std::to_string(timeout_ms) + " ms");
  throw std::runtime_error("the connection to another rank failed");
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
    *out = new Group{c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, world_size, options), false};
  });
}

int evenstep_group_nccl(Store* store, int rank, int world_size, int64_t timeout_ms, int device, Group** out) {
  return guard([&] {
#ifdef EVENSTEP_NCCL
    // If c10d's watchdog sees an error before finish() does, it must end the kernels (2) instead of the process (3).
    c10::utils::set_env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", false);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = milliseconds(timeout_ms) + watchdog_margin;
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(*store, rank, world_size, options);
    group->setBoundDeviceId(at::Device(at::kCUDA, device));
    group->eagerConnectSingleDevice(at::Device(at::kCUDA, device));
    *out = new Group{std::move(group), true};
#else
    throw std::runtime_error("built without the feature `nccl`");
#endif
  });
}

// Leaves the group after the last operation of all ranks. Only NCCL distinguishes this from leaving early: it
// flushes its operations, together with the other ranks.
int evenstep_group_close(Group* group) {
  int failed = guard([&] {
    if (group->on_device && !group->aborted) group->backend->shutdown();
  });
  guard([&] { delete group; });
  return failed;
}

// Leaves the group at any time. NCCL's kernels would otherwise wait for the other ranks without end.
void evenstep_group_free(Group* group) {
  guard([&] { abort_operations(group); });
  guard([&] { delete group; });
}

int evenstep_all_reduce_sum(Group* group, at::Tensor* tensor, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    options.timeout = milliseconds(timeout_ms);
    finish(group, group->backend->allreduce(tensors, options), timeout_ms, ::kNoTimeout);
  });
}

int evenstep_broadcast(Group* group, at::Tensor* tensor, int root, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = milliseconds(timeout_ms);
    finish(group, group->backend->broadcast(tensors, options), timeout_ms, ::kNoTimeout);
  });
}

int evenstep_send(Group* group, at::Tensor* tensor, int to, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group, group->backend->send(tensors, to, 0), timeout_ms, milliseconds(timeout_ms));
  });
}

int evenstep_receive(Group* group, at::Tensor* tensor, int from, int64_t timeout_ms) {
  return guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group, group->backend->recv(tensors, from, 0), timeout_ms, milliseconds(timeout_ms));
  });
}

int evenstep_barrier(Group* group, int64_t timeout_ms) {
  return guard([&] {
    c10d::BarrierOptions options;
    options.timeout = milliseconds(timeout_ms);
    finish(group, group->backend->barrier(options), timeout_ms, ::kNoTimeout);
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
}
