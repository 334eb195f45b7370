// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of one run meet: threads of one process, or processes with shared memory.
//
// A collective is a rendezvous of its group, to which every rank brings what it wants (a Request) in a
// Slot of its own; a rank that gives up waiting takes its arrival back, so either all ranks of the
// group pass the rendezvous or none does. Slots exist twice and are used in turn: a fast rank may fill
// its next slot while others still read, and before it fills the one after that, all have come to
// the next rendezvous and so have left the last. What follows a rendezvous: ccl_exchange.h.
//
// All that ranks share lies in an Arena and holds words, plain structs and offsets only.

#ifndef TVM_DISTIR_PASSES_FABRIC_H_
#define TVM_DISTIR_PASSES_FABRIC_H_

#include <dlpack/dlpack.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ccl/arena.h"
#include "ccl/rendezvous.h"
#include "ffi/refuse.h"

namespace tvm_distir {

using Ranks = std::vector<int64_t>;
using Text = std::function<std::string()>;

constexpr int kMaxDims = 16;
constexpr int64_t kStagedBytes = 16384;
using Dims = std::array<int64_t, kMaxDims>;

// "rank 1" or "ranks 1, 2".
std::string RanksText(const Ranks& ranks);

// What a rank asks of a collective.
struct Request {
  int64_t kind;
  std::array<int64_t, 2> args;
  DLDataType dtype;
  int64_t ndim;
  Dims shape, out_shape;
  int64_t bytes;  // that others may read
  const char* source;  // both of use among threads only
  char* target;
};

struct Slot {
  Request request;
  alignas(64) char staged[kStagedBytes];
};

// A communicator; a view of what lies in the arena.
class Group {
 public:
  Group() = default;
  Group(Arena* arena, Offset offset);
  // The arena's lock must be held.
  static Group Make(Arena* arena, const Ranks& ranks, Offset next);

  uint32_t size() const { return head_->size; }
  Offset next() const { return head_->next; }
  int64_t rank(size_t member) const { return ranks_[member]; }
  Ranks ranks() const { return Ranks(ranks_, ranks_ + size()); }
  // How often a member has come.
  Word& rounds(size_t member) const { return rounds_[member]; }
  Slot& slot(uint32_t round, size_t member) const { return slots_[(round & 1) * size() + member]; }
  TaskCounter& tasks(uint32_t round) const { return head_->tasks[round & 1]; }
  Rendezvous& rendezvous() const { return head_->rendezvous; }
  std::atomic<Offset>& stages() const { return head_->stages; }
  Offset offset() const { return offset_; }

 private:
  struct Head {
    Offset next;
    uint32_t size;
    Rendezvous rendezvous;
    TaskCounter tasks[2];
    std::atomic<Offset> stages;  // memory for what does not fit into slots; made when first used
  };

  static uint64_t BytesFor(uint64_t size);

  Head* head_ = nullptr;
  int64_t* ranks_ = nullptr;
  Word* rounds_ = nullptr;
  Slot* slots_ = nullptr;
  Offset offset_ = 0;
};

// One kind of collective over one list of groups, with results of one size.
using CountKey = std::tuple<int64_t, Ranks, int64_t, int64_t>;
using Counts = std::map<CountKey, int64_t>;

// From rank to rank, under a tag.
struct Route {
  int64_t tag, source, destination;
};

struct Control;    // control.h
struct RankState;
struct MessageQueue;  // messages.cc

class Fabric {
 public:
  Fabric(const Ranks& ranks, double timeout_s, bool shared);
  explicit Fabric(int descriptor);
  int descriptor() const { return arena_->descriptor(); }
  // Whether ranks may read and write each other's tensors where they lie.
  bool direct() const { return !arena_->shared(); }
  Arena* arena() const { return arena_.get(); }

  Group FindGroup(const Ranks& ranks);
  // Comes to a group's next rendezvous, the slot of that round being filled. Returns when all have;
  // throws when that will not happen.
  void Meet(const Group& group, size_t member, const Text& what);
  // Zeroed memory of a group, made with `bytes` when a member first asks.
  char* Stages(const Group& group, uint64_t bytes);

  // Messages (messages.cc): a copy of label and data waits for the receiver, the sender for nobody.
  void Post(const Route& route, const std::string& label, const char* data, uint64_t bytes);
  // Waits for the next message; returns its label and the bytes of its data.
  std::pair<std::string, uint64_t> Await(const Route& route, const std::string& what);
  // Takes the message that was awaited.
  void Take(const Route& route, char* data, uint64_t bytes);

  // Records the failure unless there is one already, wakes everybody; returns the first's rank.
  int64_t Fail(int64_t rank, const Fault& fault);
  void Finish(int64_t rank);
  // Grows while ranks come to rendezvous or post messages.
  int64_t Progress() const;
  // Nothing without a failure.
  std::optional<std::pair<int64_t, Fault>> failure();

  void Count(int64_t rank, Counts counts);
  Counts CountsOf(int64_t rank);

 private:
  // A rank that waits until (*word & mask) is no longer `seen`: for the members of a group who have
  // not come to `round`, or without a group for `peer`.
  struct Wait {
    Word* word;
    uint32_t mask, seen;
    Text what;
    const Group* group;
    uint32_t round;
    int64_t peer;
    bool over() const { return (word->load(std::memory_order_acquire) & mask) != seen; }
  };

  // Returns when the wait is over; throws, after `give_up` has agreed, when it cannot be.
  void WaitFor(int64_t rank, const Wait& wait, const std::function<bool()>& give_up);
  // The lock must be held for these.
  void List(RankState* state, const Wait& wait);
  bool WaitsInVain(const RankState& state) const;
  std::string WaitText(const RankState& state) const;
  // Why nobody can go on; nothing while somebody can.
  std::optional<Fault> Standstill() const;
  MessageQueue* QueueOf(const Route& route);

  Ranks MissingRanks(const Group& group, uint32_t round) const;
  RankState* StateOf(int64_t rank) const;
  void WakeEverybody();

  const std::unique_ptr<Arena> arena_;
  Control* control_;
  std::mutex counts_lock_;
  std::map<int64_t, Counts> counts_;
};

// The calling thread's part in a run.
struct Membership {
  Group group;
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
