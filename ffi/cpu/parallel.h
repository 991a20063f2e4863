// Splits work over XLA's own thread pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace jaxrec {

// Calls body(item, worker) for each item in [0, items); `worker` is in [0, Workers(pool)) and no
// two calls at a time share it. The caller works too and waits only for items that have been
// started, never for tasks that are still queued: handlers themselves run on such threads, so
// waiting for the queue could wait for oneself. The first exception is thrown again.
inline int Workers(xla::ffi::ThreadPool& pool) {
  const std::int64_t threads = pool.num_threads();
  return static_cast<int>(threads < 1 ? 1 : threads);
}

template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, std::int64_t items, const Body& body) {
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::atomic<int> helpers{0};
    std::int64_t items = 0;
    const Body* body = nullptr;
    std::mutex mutex;
    std::condition_variable idle;
    int active = 0;
    bool closed = false;
    std::exception_ptr error;

    void Work(int worker) {
      try {
        for (std::int64_t i = next++; i < items; i = next++) (*body)(i, worker);
      } catch (...) {
        next = items;
        std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  const int workers = Workers(pool);
  if (workers == 1 || items <= 1) {
    for (std::int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  auto shared = std::make_shared<Shared>();
  shared->items = items;
  shared->body = &body;
  const std::int64_t helpers = items - 1 < workers - 1 ? items - 1 : workers - 1;
  for (std::int64_t i = 0; i < helpers; ++i) {
    pool.Schedule([shared] {
      {
        std::lock_guard<std::mutex> lock(shared->mutex);
        if (shared->closed) return;
        ++shared->active;
      }
      shared->Work(1 + shared->helpers++);
      std::lock_guard<std::mutex> lock(shared->mutex);
      if (--shared->active == 0) shared->idle.notify_all();
    });
  }
  shared->Work(0);
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->closed = true;
  shared->idle.wait(lock, [&] { return shared->active == 0; });
  if (shared->error) std::rethrow_exception(shared->error);
}

}  // namespace jaxrec
