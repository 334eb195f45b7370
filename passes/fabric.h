// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of one run meet.
//
// A collective is a meeting of its group, to which every rank brings what it wants (a Request) in a
// Slot of its own; a rank that gives up waiting takes its arrival back, so either all
// ranks of the group pass the meeting or none does. Only after it may a rank touch the memory of
// others, and nothing can fail any more: the work is cut into tasks, which the ranks that are awake
// take one by one, and no rank goes on before all tasks are done. Requests of few bytes carry their
// data in the slot, and each rank works for itself, waiting for nobody. Slots and task counters
// exist twice and are used in turn, as a fast rank may fill its next slot while others still read.
//
// Ranks exchange words, plain structs and bytes only, so slots in shared memory, with all data
// staged, would serve processes.

#ifndef TVM_DISTIR_PASSES_FABRIC_H_
#define TVM_DISTIR_PASSES_FABRIC_H_

#include <dlpack/dlpack.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "wait_word.h"

namespace tvm_distir {

using Ranks = std::vector<int64_t>;
using Text = std::function<std::string()>;

constexpr int kMaxDims = 16;
constexpr int64_t kStagedBytes = 16384;

// Throws the RuntimeError_ of tvm_distir.errors.
[[noreturn]] void Refuse(const std::string& code, const std::string& place, const std::string& what,
                         const std::string& remedy);

// "rank 1" or "ranks 1, 2".
std::string RanksText(const Ranks& ranks);

// What a rank asks of a collective.
struct Request {
  int64_t kind;
  std::array<int64_t, 2> args;
  DLDataType dtype;
  int64_t ndim;
  std::array<int64_t, kMaxDims> shape;
  const char* source;
  char* target;
};

struct Slot {
  Request request;
  alignas(64) char staged[kStagedBytes];
};

// A word that counts arrivals (low bits) and full meetings (high bits).
class Meeting {
 public:
  static constexpr uint32_t kArrivals = 0xfff;

  // Arrives. True when that made the meeting full; else `round` is what to wait with.
  bool Arrive(uint32_t size, uint32_t* round);
  // Takes the arrival back. False when the meeting has become full meanwhile.
  bool Retract(uint32_t round);
  bool Full(uint32_t round) const {
    return (word_.load(std::memory_order_acquire) & ~kArrivals) != round;
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
  void WaitForAll(uint32_t count);

 private:
  Word claimed_{0}, done_{0};
};

struct Group {
  explicit Group(Ranks members)
      : ranks(std::move(members)), slots(2 * ranks.size()), rounds(ranks.size()) {}

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  Slot& slot(uint32_t round, size_t member) { return slots[(round & 1) * ranks.size() + member]; }

  const Ranks ranks;
  std::vector<Slot> slots;
  std::vector<Word> rounds;  // collectives each member has come to
  Meeting begin;
  TaskCounter tasks[2];
};

// One kind of collective over one list of groups, with results of one size.
using CountKey = std::tuple<int64_t, Ranks, int64_t, int64_t>;
using Counts = std::map<CountKey, int64_t>;

class Fabric {
 public:
  Fabric(Ranks ranks, double timeout_s);

  Group* FindGroup(const Ranks& ranks);
  // Comes to a group's next collective, the slot of that round being filled. Returns when all have;
  // throws when that will not happen.
  void Meet(Group* group, size_t member, const Text& what);

  // Letters from rank to rank; the fabric only counts them.
  using Route = std::tuple<int64_t, int64_t, int64_t>;  // tag, source, destination
  void Post(const Route& route);
  void Take(const Route& route, const std::string& what);

  // Records the failure unless there is one already, wakes everybody; returns the first's rank.
  int64_t Fail(int64_t rank, const std::string& message);
  void Finish(int64_t rank);
  // (-1, "") without a failure.
  std::pair<int64_t, std::string> failure();

  void Count(int64_t rank, Counts counts);
  Counts CountsOf(int64_t rank);

 private:
  struct Box {
    Word posted{0};
    uint32_t taken = 0;
  };
  // A rank that waits until (*word & mask) is no longer `seen`.
  struct Wait {
    Word* word;
    uint32_t mask, seen;
    Text words;
    bool over() const { return (word->load(std::memory_order_acquire) & mask) != seen; }
  };

  // Returns when the wait is over; throws, after `give_up` has agreed, when it cannot be.
  void WaitFor(int64_t rank, const Wait& wait, const std::function<bool()>& give_up);
  // Why nobody can go on; empty while somebody can. The lock must be held.
  std::string StandstillText() const;
  Box* BoxOf(const Route& route);

  const Ranks ranks_;
  const double timeout_s_;
  std::atomic<bool> failed_{false};
  std::mutex lock_;
  std::map<Ranks, std::unique_ptr<Group>> groups_;
  std::map<Route, std::unique_ptr<Box>> boxes_;
  std::map<int64_t, const Wait*> waits_;
  std::set<int64_t> done_;
  std::map<int64_t, Counts> counts_;
  int64_t failed_rank_ = -1;
  std::string message_;
};

// The calling thread's part in a run.
struct Membership {
  Group* group;
  size_t position;
};
struct Worker {
  std::shared_ptr<Fabric> fabric;
  int64_t rank = -1;
  std::map<std::pair<Ranks, int64_t>, Membership> memberships;
  Counts counts;
};

// The calling thread's worker; nullptr outside of a run.
Worker* CurrentWorker();

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_FABRIC_H_
