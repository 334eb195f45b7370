// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "fabric.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

namespace tvm_distir {
namespace {

namespace ffi = tvm::ffi;
using Clock = std::chrono::steady_clock;

constexpr int kSpins = 100;
constexpr int kYields = 40;
constexpr int64_t kFirstSliceUs = 2000;
constexpr int64_t kSliceUs = 50000;

// Looks again a short while before a rank sleeps: first alone, then letting other threads run, as
// there may be fewer cores than ranks. True as soon as `over()` holds.
template <typename Over>
bool SpinUntil(const Over& over) {
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

}  // namespace

void Refuse(const std::string& code, const std::string& place, const std::string& what,
            const std::string& remedy) {
  const std::string head = place.empty() ? code : code + " " + place;
  throw ffi::Error("tvm_distir.RuntimeError_", head + ": " + what + " [" + remedy + "]", "");
}

std::string RanksText(const Ranks& ranks) {
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < ranks.size(); ++i) text << (i ? ", " : "") << ranks[i];
  return text.str();
}

bool Meeting::Arrive(uint32_t size, uint32_t* round) {
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

bool Meeting::Retract(uint32_t round) {
  uint32_t seen = word_.load(std::memory_order_acquire);
  while ((seen & ~kArrivals) == round) {
    if (word_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

void TaskCounter::WaitForAll(uint32_t count) {
  if (SpinUntil([&] { return done_.load(std::memory_order_acquire) == count; })) return;
  for (;;) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == count) return;
    SleepWhile(&done_, done, kSliceUs);
  }
}

Fabric::Fabric(Ranks ranks, double timeout_s) : ranks_(std::move(ranks)), timeout_s_(timeout_s) {}

Group* Fabric::FindGroup(const Ranks& ranks) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::unique_ptr<Group>& group = groups_[ranks];
  if (!group) group = std::make_unique<Group>(ranks);
  return group.get();
}

Fabric::Box* Fabric::BoxOf(const Route& route) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::unique_ptr<Box>& box = boxes_[route];
  if (!box) box = std::make_unique<Box>();
  return box.get();
}

void Fabric::Meet(Group* group, size_t member, const Text& what) {
  group->rounds[member].fetch_add(1, std::memory_order_relaxed);
  const uint32_t mine = group->rounds[member].load(std::memory_order_relaxed);
  uint32_t round = 0;
  if (group->begin.Arrive(group->size(), &round)) return;
  const Text words = [&] {
    Ranks missing;
    for (size_t i = 0; i < group->size(); ++i) {
      if (group->rounds[i].load(std::memory_order_relaxed) != mine) {
        missing.push_back(group->ranks[i]);
      }
    }
    return what() + " for " + RanksText(missing);
  };
  WaitFor(group->ranks[member], {group->begin.word(), ~Meeting::kArrivals, round, words}, [&] {
    if (!group->begin.Retract(round)) return false;
    group->rounds[member].fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
}

void Fabric::Post(const Route& route) {
  Box* box = BoxOf(route);
  box->posted.fetch_add(1, std::memory_order_release);
  WakeAll(&box->posted);
}

void Fabric::Take(const Route& route, const std::string& what) {
  Box* box = BoxOf(route);
  const auto words = [&] { return what + " for " + RanksText({std::get<1>(route)}); };
  WaitFor(std::get<2>(route), {&box->posted, ~0u, box->taken, words}, [] { return true; });
  ++box->taken;
}

void Fabric::WaitFor(int64_t rank, const Wait& wait, const std::function<bool()>& give_up) {
  if (SpinUntil([&] { return wait.over(); })) return;
  const Clock::time_point start = Clock::now();
  const auto waited_s = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  int64_t slice_us = kFirstSliceUs;
  bool listed = false;
  std::string cause;
  while (!wait.over()) {
    if (failed_.load(std::memory_order_acquire)) break;
    const double left_s = timeout_s_ - waited_s();
    if (left_s <= 0) {
      std::ostringstream text;
      text << "DIST0613 rank " << rank << ": rank " << rank << " waited " << timeout_s_ << " s in "
           << wait.words() << " [Raise the engine's timeout_s if it is only slow.]";
      cause = text.str();
      break;
    }
    if (slice_us == kSliceUs) {  // not the first time: others may wait in vain, too
      const std::lock_guard<std::mutex> guard(lock_);
      waits_[rank] = &wait;
      listed = true;
      cause = StandstillText();
      if (!cause.empty()) break;
    }
    const uint32_t seen = wait.word->load(std::memory_order_acquire);
    if ((seen & wait.mask) == wait.seen) {
      SleepWhile(wait.word, seen, std::min(slice_us, static_cast<int64_t>(left_s * 1e6) + 1));
    }
    // Arrivals of others end the sleep early: the first slice is over when its time is.
    if (waited_s() * 1e6 >= kFirstSliceUs) slice_us = kSliceUs;
  }
  if (listed) {
    const std::lock_guard<std::mutex> guard(lock_);
    waits_.erase(rank);
  }
  if (wait.over() || !give_up()) return;
  if (!cause.empty() && Fail(rank, cause) == rank) {
    throw ffi::Error("tvm_distir.RuntimeError_", cause, "");
  }
  const auto [first, message] = failure();
  Refuse("DIST0612", "rank " + std::to_string(rank),
         "stopped because rank " + std::to_string(first) + " failed: " + message,
         "See the first failure.");
}

std::string Fabric::StandstillText() const {
  if (done_.size() + waits_.size() < ranks_.size()) return "";
  for (const auto& entry : waits_) {
    if (entry.second->over()) return "";
  }
  std::string text = "DIST0610 ranks: ";
  for (const auto& [rank, wait] : waits_) {
    if (rank != waits_.begin()->first) text += "; ";
    text += "rank " + std::to_string(rank) + " waits in " + wait->words();
  }
  if (!done_.empty()) text += "; ended: " + RanksText(Ranks(done_.begin(), done_.end()));
  return text +
         " [Every rank of a group must call its collectives, each send needs a receive.]";
}

int64_t Fabric::Fail(int64_t rank, const std::string& message) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (failed_rank_ < 0) {
    failed_rank_ = rank;
    message_ = message;
    failed_.store(true, std::memory_order_release);
    for (const auto& entry : groups_) WakeAll(entry.second->begin.word());
    for (const auto& entry : boxes_) WakeAll(&entry.second->posted);
  }
  return failed_rank_;
}

void Fabric::Finish(int64_t rank) {
  const std::lock_guard<std::mutex> guard(lock_);
  done_.insert(rank);
}

std::pair<int64_t, std::string> Fabric::failure() {
  const std::lock_guard<std::mutex> guard(lock_);
  return {failed_rank_, message_};
}

void Fabric::Count(int64_t rank, Counts counts) {
  const std::lock_guard<std::mutex> guard(lock_);
  counts_[rank] = std::move(counts);
}

Counts Fabric::CountsOf(int64_t rank) {
  const std::lock_guard<std::mutex> guard(lock_);
  return counts_[rank];
}

// ---- what Python calls --------------------------------------------------------------------------

namespace {

thread_local std::unique_ptr<Worker> current_worker;

std::mutex fabrics_lock;
int64_t next_fabric = 0;
std::map<int64_t, std::shared_ptr<Fabric>> fabrics;

std::shared_ptr<Fabric> FabricOf(int64_t handle) {
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  const auto found = fabrics.find(handle);
  if (found == fabrics.end()) {
    TVM_FFI_THROW(ValueError) << "there is no fabric " << handle;
  }
  return found->second;
}

int64_t MakeFabric(ffi::Shape ranks, double timeout_s) {
  auto made = std::make_shared<Fabric>(Ranks(ranks.begin(), ranks.end()), timeout_s);
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  fabrics[next_fabric] = std::move(made);
  return next_fabric++;
}

void DropFabric(int64_t handle) {
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  fabrics.erase(handle);
}

void Enter(int64_t handle, int64_t rank) {
  auto worker = std::make_unique<Worker>();
  worker->fabric = FabricOf(handle);
  worker->rank = rank;
  current_worker = std::move(worker);
}

void Leave() {
  if (!current_worker) return;
  current_worker->fabric->Count(current_worker->rank, std::move(current_worker->counts));
  current_worker.reset();
}

int64_t Fail(int64_t handle, int64_t rank, ffi::String message) {
  return FabricOf(handle)->Fail(rank, message);
}

ffi::Array<ffi::Any> Failure(int64_t handle) {
  const auto [rank, message] = FabricOf(handle)->failure();
  return {rank, ffi::String(message)};
}

void Finish(int64_t handle, int64_t rank) { FabricOf(handle)->Finish(rank); }

void Post(int64_t handle, int64_t tag, int64_t source, int64_t destination) {
  FabricOf(handle)->Post({tag, source, destination});
}

void Take(int64_t handle, int64_t tag, int64_t source, int64_t destination, ffi::String what) {
  FabricOf(handle)->Take({tag, source, destination}, what);
}

// One [kind, groups, group size, bytes of a result, executions] per entry.
ffi::Array<ffi::Any> CountsOf(int64_t handle, int64_t rank) {
  ffi::Array<ffi::Any> all;
  for (const auto& [key, count] : FabricOf(handle)->CountsOf(rank)) {
    const auto& [kind, groups, size, bytes] = key;
    all.push_back(ffi::Array<ffi::Any>{kind, ffi::Shape(groups.begin(), groups.end()), size, bytes,
                                       count});
  }
  return all;
}

}  // namespace

Worker* CurrentWorker() { return current_worker.get(); }

}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_make_fabric, tvm_distir::MakeFabric);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_drop_fabric, tvm_distir::DropFabric);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_enter, tvm_distir::Enter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_leave, tvm_distir::Leave);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_fail, tvm_distir::Fail);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_failure, tvm_distir::Failure);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_finish, tvm_distir::Finish);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_post, tvm_distir::Post);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_take, tvm_distir::Take);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_counts, tvm_distir::CountsOf);
