// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "ffi/refuse.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace tvm_distir {
namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 30;
constexpr uint64_t kLeastBytes = uint64_t{256} << 20;
constexpr uint64_t kAlignment = 64;

uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void RefuseMemory(const std::string& what, int error) {
  Refuse("DIST0616", "", what + (error ? std::string(": ") + std::strerror(error) : ""),
         "Give the process more memory, or use fewer ranks or the engine threads.");
}

char* Map(uint64_t bytes, int descriptor) {
  const int kind = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, descriptor, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
}

int NamelessFile() {
#if defined(__linux__)
  const int descriptor = memfd_create("tvm_distir", MFD_CLOEXEC);
  if (descriptor < 0) RefuseMemory("no shared memory can be allocated", errno);
  return descriptor;
#else
  RefuseMemory("anonymous shared memory is available on Linux only", 0);
#endif
}

int ClassOf(uint64_t bytes) {
  int index = 6;  // the smallest blocks have 64 bytes
  while ((uint64_t{1} << index) < bytes) ++index;
  return index;
}

}  // namespace

std::unique_ptr<Arena> Arena::Make(bool shared) {
  const int descriptor = shared ? NamelessFile() : -1;
  for (uint64_t bytes = kMostBytes; bytes >= kLeastBytes; bytes /= 4) {
    if (shared && ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) continue;
    if (char* base = Map(bytes, descriptor)) {
      std::unique_ptr<Arena> arena(new Arena(base, bytes, descriptor));
      arena->Begin(shared);
      return arena;
    }
  }
  const int error = errno;
  if (shared) close(descriptor);
  RefuseMemory("no address space for " + std::to_string(kLeastBytes >> 20) + " MiB", error);
}

std::unique_ptr<Arena> Arena::Open(int descriptor) {
  const int mine = dup(descriptor);
  const off_t bytes = mine < 0 ? -1 : lseek(mine, 0, SEEK_END);
  char* base = bytes <= 0 ? nullptr : Map(static_cast<uint64_t>(bytes), mine);
  if (!base) {
    const int error = errno;
    if (mine >= 0) close(mine);
    RefuseMemory("shared memory cannot be opened", error);
  }
  return std::unique_ptr<Arena>(new Arena(base, static_cast<uint64_t>(bytes), mine));
}

Arena::~Arena() {
  munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

void Arena::Begin(bool shared) {
  Header* head = header();
  head->bytes = bytes_;
  head->used = RoundUp(sizeof(Header), kAlignment);
  head->shared = shared;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  if (shared) {
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
#if defined(__linux__)
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
#endif
  }
  pthread_mutex_init(&head->lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

Offset Arena::Reserve(uint64_t bytes) {
  Header* head = header();
  const uint64_t size = RoundUp(std::max<uint64_t>(bytes, 1), kAlignment);
  if (size > head->bytes - head->used) {
    RefuseMemory("the ranks' memory of " + std::to_string(head->bytes >> 20) +
                     " MiB has no room for " + std::to_string(bytes) + " bytes more",
                 0);
  }
  const Offset offset = head->used;
  head->used += size;
  return offset;
}

Offset Arena::Take(uint64_t bytes) {
  const int index = ClassOf(bytes);
  Offset& first = header()->free[index];
  if (!first) return Reserve(uint64_t{1} << index);
  const Offset block = first;
  first = *at<Offset>(block);
  return block;
}

void Arena::Give(Offset offset, uint64_t bytes) {
  Offset& first = header()->free[ClassOf(bytes)];
  *at<Offset>(offset) = first;
  first = offset;
}

ArenaLock::ArenaLock(const Arena& arena) : lock_(&arena.header()->lock) {
  const int error = pthread_mutex_lock(lock_);
#if defined(__linux__)
  if (error == EOWNERDEAD) {
    pthread_mutex_consistent(lock_);
    return;
  }
#endif
  if (error) RefuseMemory("the ranks' lock is broken", error);
}

ArenaLock::~ArenaLock() { pthread_mutex_unlock(lock_); }

}  // namespace tvm_distir
