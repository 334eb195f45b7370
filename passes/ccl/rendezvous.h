// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Words with which ranks wait for each other; they may lie in shared memory.

#ifndef TVM_DISTIR_PASSES_RENDEZVOUS_H_
#define TVM_DISTIR_PASSES_RENDEZVOUS_H_

#include <thread>

#include "ccl/wait_word.h"

namespace tvm_distir {

constexpr int64_t kFirstSliceUs = 2000;
constexpr int64_t kSliceUs = 50000;

// Looks again a short while before a rank sleeps: first alone, then letting other threads run, as
// there may be fewer cores than ranks. Only a few times: beside other work, whoever yields waits
// until that has used up its time. True as soon as `over()` holds.
template <typename Over>
bool SpinUntil(const Over& over) {
  constexpr int kSpins = 100, kYields = 4;
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (over()) return true;
    if (i >= kSpins) {
      std::this_thread::yield();
    } else {
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
  }
  return false;
}

// A word that counts arrivals (low bits) and full rendezvous (high bits).
class Rendezvous {
 public:
  static constexpr uint32_t kArrivals = 0xfff;

  // Arrives. True when that made the rendezvous full; else `round` is what to wait with.
  bool Arrive(uint32_t size, uint32_t* round) {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      *round = seen & ~kArrivals;
      const bool full = (seen & kArrivals) + 1 == size;
      const uint32_t next = full ? *round + kArrivals + 1 : seen + 1;
      if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) {
        if (full && size > 1) WakeAll(&word_);
        return full;
      }
    }
  }

  // Takes the arrival back. False when the rendezvous has become full meanwhile.
  bool Retract(uint32_t round) {
    uint32_t seen = word_.load(std::memory_order_acquire);
    while ((seen & ~kArrivals) == round) {
      if (word_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return true;
      }
    }
    return false;
  }

  Word* word() { return &word_; }

 private:
  Word word_{0};
};

// Tasks of one collective, numbered from 0.
class TaskCounter {
 public:
  void Reset() {
    claimed_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }
  // The next task nobody has; at least `count` when there is none.
  uint32_t Claim() { return claimed_.fetch_add(1, std::memory_order_relaxed); }
  void Done(uint32_t count) {
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) WakeAll(&done_);
  }
  // Waits however long it takes: whoever claimed a task is at work.
  void WaitForAll(uint32_t count) {
    if (SpinUntil([&] { return done_.load(std::memory_order_acquire) == count; })) return;
    for (;;) {
      const uint32_t done = done_.load(std::memory_order_acquire);
      if (done == count) return;
      SleepWhile(&done_, done, kSliceUs);
    }
  }

 private:
  Word claimed_{0}, done_{0};
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_RENDEZVOUS_H_
