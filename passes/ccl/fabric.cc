// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/fabric.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>

#include "ccl/control.h"
#include "ffi/refuse.h"

namespace tvm_distir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLine = 64;

uint64_t Lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

void CopyText(char* target, size_t size, const std::string& text) {
  size_t count = std::min(size - 1, text.size());
  if (count < text.size()) {  // not in the middle of a character of UTF-8
    while (count && (static_cast<unsigned char>(text[count]) & 0xC0) == 0x80) --count;
  }
  std::memcpy(target, text.data(), count);
  target[count] = 0;
}

}  // namespace

std::string RanksText(const Ranks& ranks) {
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < ranks.size(); ++i) text << (i ? ", " : "") << ranks[i];
  return text.str();
}

// ---- groups -------------------------------------------------------------------------------------

uint64_t Group::BytesFor(uint64_t size) {
  return Lines(sizeof(Head)) + Lines(size * sizeof(int64_t)) + Lines(size * sizeof(Word)) +
         2 * size * sizeof(Slot);
}

Group::Group(Arena* arena, Offset offset) : head_(arena->at<Head>(offset)), offset_(offset) {
  const uint64_t count = head_->size;
  Offset at = offset + Lines(sizeof(Head));
  ranks_ = arena->at<int64_t>(at);
  rounds_ = arena->at<Word>(at += Lines(count * sizeof(int64_t)));
  slots_ = arena->at<Slot>(at + Lines(count * sizeof(Word)));
}

Group Group::Make(Arena* arena, const Ranks& ranks, Offset next) {
  const Offset offset = arena->Reserve(BytesFor(ranks.size()));
  Head* head = new (arena->at<Head>(offset)) Head();
  head->next = next;
  head->size = static_cast<uint32_t>(ranks.size());
  const Group group(arena, offset);
  std::copy(ranks.begin(), ranks.end(), group.ranks_);
  return group;
}

Group Fabric::FindGroup(const Ranks& ranks) {
  const ArenaLock lock(*arena_);
  for (Offset at = control_->groups; at;) {
    const Group group(arena_.get(), at);
    if (group.ranks() == ranks) return group;
    at = group.next();
  }
  const Group made = Group::Make(arena_.get(), ranks, control_->groups);
  control_->groups = made.offset();
  return made;
}

char* Fabric::Stages(const Group& group, uint64_t bytes) {
  Offset at = group.stages().load(std::memory_order_acquire);
  if (!at) {
    const ArenaLock lock(*arena_);
    at = group.stages().load(std::memory_order_acquire);
    if (!at) {
      at = arena_->Reserve(bytes);
      group.stages().store(at, std::memory_order_release);
    }
  }
  return arena_->at<char>(at);
}

// ---- a run --------------------------------------------------------------------------------------

Fabric::Fabric(const Ranks& ranks, double timeout_s, bool shared) : arena_(Arena::Make(shared)) {
  const ArenaLock lock(*arena_);
  const Offset at = arena_->Reserve(sizeof(Control));
  control_ = new (arena_->at<Control>(at)) Control();
  control_->timeout_s = timeout_s;
  control_->failed_rank = kNobody;
  control_->rank_count = static_cast<int64_t>(ranks.size());
  control_->ranks = arena_->Reserve(ranks.size() * sizeof(RankState));
  control_->queues = arena_->Reserve(kQueueLists * sizeof(Offset));
  for (size_t i = 0; i < ranks.size(); ++i) {
    arena_->at<RankState>(control_->ranks)[i].rank = ranks[i];
  }
  arena_->set_root(at);
}

Fabric::Fabric(int descriptor)
    : arena_(Arena::Open(descriptor)), control_(arena_->at<Control>(arena_->root())) {}

RankState* Fabric::StateOf(int64_t rank) const {
  RankState* states = arena_->at<RankState>(control_->ranks);
  for (int64_t i = 0; i < control_->rank_count; ++i) {
    if (states[i].rank == rank) return states + i;
  }
  Refuse("DIST0611", "", "rank " + std::to_string(rank) + " is not part of the run",
         "Run the function on the devices of its mesh.");
}

void Fabric::Meet(const Group& group, size_t member, const Text& what) {
  const uint32_t mine = group.rounds(member).fetch_add(1, std::memory_order_relaxed) + 1;
  uint32_t round = 0;
  if (group.rendezvous().Arrive(group.size(), &round)) return;
  const Wait wait{group.rendezvous().word(), ~Rendezvous::kArrivals, round, what, &group, mine, kNobody};
  WaitFor(group.rank(member), wait, [&] {
    if (!group.rendezvous().Retract(round)) return false;
    group.rounds(member).fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
}

Ranks Fabric::MissingRanks(const Group& group, uint32_t round) const {
  Ranks missing;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group.rounds(i).load(std::memory_order_relaxed) != round) missing.push_back(group.rank(i));
  }
  return missing;
}

void Fabric::WaitFor(int64_t rank, const Wait& wait, const std::function<bool()>& give_up) {
  if (SpinUntil([&] { return wait.over(); })) return;
  const Clock::time_point start = Clock::now();
  const auto waited_s = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  RankState* state = StateOf(rank);
  int64_t slice_us = kFirstSliceUs;
  std::optional<Fault> cause;
  while (!wait.over()) {
    if (control_->failed.load(std::memory_order_acquire)) break;
    const double left_s = control_->timeout_s - waited_s();
    if (left_s <= 0) {
      const Ranks missing = wait.group ? MissingRanks(*wait.group, wait.round) : Ranks{wait.peer};
      std::ostringstream text;
      text << "rank " << rank << " waited " << control_->timeout_s << " s in " << wait.what()
           << " for " << RanksText(missing);
      cause = Fault{"EngineError", "DIST0613", "rank " + std::to_string(rank), text.str(),
                    "Raise the engine's timeout_s if it is only slow."};
      break;
    }
    if (slice_us == kSliceUs) {  // not the first time: others may wait in vain, too
      const ArenaLock lock(*arena_);
      if (!state->waits) List(state, wait);
      cause = Standstill();
      if (cause) break;
    }
    const uint32_t seen = wait.word->load(std::memory_order_acquire);
    if ((seen & wait.mask) == wait.seen) {
      SleepWhile(wait.word, seen, std::min(slice_us, static_cast<int64_t>(left_s * 1e6) + 1));
    }
    // Arrivals of others end the sleep early: the first slice is over when its time is.
    if (waited_s() * 1e6 >= kFirstSliceUs) slice_us = kSliceUs;
  }
  if (state->waits) {
    const ArenaLock lock(*arena_);
    state->waits = 0;
  }
  if (wait.over() || !give_up()) return;
  if (cause && Fail(rank, *cause) == rank) Raise(*cause);
  const auto [first, fault] = failure().value_or(std::pair(kNobody, Fault{}));
  const std::string who = first < 0 ? "the run" : "rank " + std::to_string(first);
  Refuse("DIST0612", "rank " + std::to_string(rank),
         "stopped because " + who + " failed: " + fault.Text(), "See the first failure.");
}

// ---- standstill ---------------------------------------------------------------------------------

void Fabric::List(RankState* state, const Wait& wait) {
  state->word = arena_->offset(wait.word);
  state->mask = wait.mask;
  state->seen = wait.seen;
  state->group = wait.group ? wait.group->offset() : 0;
  state->round = wait.round;
  state->peer = wait.peer;
  CopyText(state->what, sizeof(state->what), wait.what());
  state->waits = 1;
}

bool Fabric::WaitsInVain(const RankState& state) const {
  const Word* word = arena_->at<Word>(state.word);
  return (word->load(std::memory_order_acquire) & state.mask) == state.seen;
}

std::string Fabric::WaitText(const RankState& state) const {
  const Ranks missing = state.group ? MissingRanks(Group(arena_.get(), state.group), state.round)
                                    : Ranks{state.peer};
  return "rank " + std::to_string(state.rank) + " waits in " + state.what + " for " +
         RanksText(missing);
}

std::optional<Fault> Fabric::Standstill() const {
  const RankState* begin = arena_->at<RankState>(control_->ranks);
  const RankState* end = begin + control_->rank_count;
  std::string text;
  Ranks done;
  for (const RankState* state = begin; state != end; ++state) {
    if (state->done) {
      done.push_back(state->rank);
    } else if (!state->waits || !WaitsInVain(*state)) {
      return std::nullopt;
    }
  }
  for (const RankState* state = begin; state != end; ++state) {
    if (!state->done) text += (text.empty() ? "" : "; ") + WaitText(*state);
  }
  if (!done.empty()) text += "; ended: " + RanksText(done);
  return Fault{"EngineError", "DIST0610", "ranks", text,
               "Every rank of a group must call its collectives, each send needs a receive."};
}

// ---- failures, ends and counts ------------------------------------------------------------------

int64_t Fabric::Fail(int64_t rank, const Fault& fault) {
  {
    const ArenaLock lock(*arena_);
    if (control_->failed.load(std::memory_order_relaxed)) return control_->failed_rank;
    control_->failed_rank = rank;
    FaultRecord& record = control_->fault;
    CopyText(record.error_class, sizeof(record.error_class), fault.error_class);
    CopyText(record.code, sizeof(record.code), fault.code);
    CopyText(record.location, sizeof(record.location), fault.location);
    CopyText(record.what, sizeof(record.what), fault.what);
    CopyText(record.remedy, sizeof(record.remedy), fault.remedy);
    control_->failed.store(1, std::memory_order_release);
  }
  WakeEverybody();
  return rank;
}

void Fabric::WakeEverybody() {
  const ArenaLock lock(*arena_);
  for (Offset at = control_->groups; at;) {
    const Group group(arena_.get(), at);
    WakeAll(group.rendezvous().word());
    at = group.next();
  }
  // Ranks that wait for messages look by themselves after a slice.
}

void Fabric::Finish(int64_t rank) {
  RankState* state = StateOf(rank);
  const ArenaLock lock(*arena_);
  state->done = 1;
}

int64_t Fabric::Progress() const {
  const ArenaLock lock(*arena_);
  int64_t sum = control_->messages;
  for (Offset at = control_->groups; at;) {
    const Group group(arena_.get(), at);
    for (size_t i = 0; i < group.size(); ++i) {
      sum += group.rounds(i).load(std::memory_order_relaxed);
    }
    at = group.next();
  }
  return sum;
}

std::optional<std::pair<int64_t, Fault>> Fabric::failure() {
  const ArenaLock lock(*arena_);
  if (!control_->failed.load(std::memory_order_relaxed)) return std::nullopt;
  const FaultRecord& record = control_->fault;
  return std::pair(control_->failed_rank, Fault{record.error_class, record.code, record.location,
                                                record.what, record.remedy});
}

void Fabric::Count(int64_t rank, Counts counts) {
  const std::lock_guard<std::mutex> guard(counts_lock_);
  counts_[rank] = std::move(counts);
}

Counts Fabric::CountsOf(int64_t rank) {
  const std::lock_guard<std::mutex> guard(counts_lock_);
  return counts_[rank];
}

}  // namespace tvm_distir
