// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Memory in which the ranks of one run meet: of one process, or shared by several.
//
// Shared memory has no name (a memfd): it goes to other processes as an open file and is gone with
// the last of them, whatever ends them. It is reserved large and takes only the pages touched.

#ifndef TVM_DISTIR_PASSES_ARENA_H_
#define TVM_DISTIR_PASSES_ARENA_H_

#include <pthread.h>

#include <cstdint>
#include <memory>

namespace tvm_distir {

// A place in an arena, from its start: processes map it at different addresses. 0 is none.
using Offset = uint64_t;

class Arena {
 public:
  // For the threads of this process, or with `shared` for several processes.
  static std::unique_ptr<Arena> Make(bool shared);
  // The arena that another process made; the caller keeps `descriptor`.
  static std::unique_ptr<Arena> Open(int descriptor);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The open file to hand to other processes; -1 when there is none.
  int descriptor() const { return descriptor_; }
  bool shared() const { return header()->shared != 0; }

  template <typename T>
  T* at(Offset offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  Offset offset(const void* address) const {
    return static_cast<Offset>(static_cast<const char*>(address) - base_);
  }

  // Zeroed memory that is never given back; the lock must be held. Throws DIST0616 when there is
  // none left.
  Offset Reserve(uint64_t bytes);
  // Memory with anything in it, and its return; the lock must be held for both.
  Offset Take(uint64_t bytes);
  void Give(Offset offset, uint64_t bytes);

  // Where whoever made the arena keeps what others look for first.
  Offset root() const { return header()->root; }
  void set_root(Offset root) { header()->root = root; }

 private:
  friend class ArenaLock;
  static constexpr int kClasses = 64;
  struct Header {
    uint64_t bytes, used;
    uint32_t shared;
    Offset root;
    Offset free[kClasses];  // first free block of 2^i bytes; its first word names the next
    pthread_mutex_t lock;
  };

  Arena(char* base, uint64_t bytes, int descriptor)
      : base_(base), bytes_(bytes), descriptor_(descriptor) {}
  Header* header() const { return reinterpret_cast<Header*>(base_); }
  void Begin(bool shared);

  char* const base_;
  const uint64_t bytes_;
  const int descriptor_;
};

// Holds an arena's lock. A process that ends while it holds the lock leaves it free: lists change by
// one store each, so they are whole.
class ArenaLock {
 public:
  explicit ArenaLock(const Arena& arena);
  ~ArenaLock();
  ArenaLock(const ArenaLock&) = delete;
  ArenaLock& operator=(const ArenaLock&) = delete;

 private:
  pthread_mutex_t* const lock_;
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_ARENA_H_
