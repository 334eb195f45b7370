// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Sleeping until a 32-bit word changes.

#ifndef TVM_DISTIR_PASSES_WAIT_WORD_H_
#define TVM_DISTIR_PASSES_WAIT_WORD_H_

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <chrono>
#include <thread>
#endif

namespace tvm_distir {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free,
              "the kernel compares the word itself");

// Sleeps for at most `slice_us`, less when the word is not `seen` or when somebody wakes it. May
// return early without a reason: callers check again.
inline void SleepWhile(Word* word, uint32_t seen, int64_t slice_us) {
#if defined(__linux__)
  const timespec slice{slice_us / 1000000, (slice_us % 1000000) * 1000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &slice, nullptr, 0);
#else
  if (word->load(std::memory_order_acquire) == seen) {
    std::this_thread::sleep_for(std::chrono::microseconds(slice_us < 100 ? slice_us : 100));
  }
#endif
}

inline void WakeAll(Word* word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#else
  static_cast<void>(word);
#endif
}

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_WAIT_WORD_H_
