// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>

#include "ccl/exchange.h"

namespace tvm_distir {
namespace {

bool Agree(const Request& a, const Request& b) {
  if (a.kind != b.kind || a.args != b.args || a.ndim != b.ndim || !SameType(a.dtype, b.dtype)) {
    return false;
  }
  return SameShape(a, a.shape, b.shape);
}

}  // namespace

Gathering::Gathering(Worker* worker, const Membership& place, const Request& request)
    : worker_(worker),
      group_(place.group),
      position_(static_cast<int64_t>(place.position)),
      round_(group_.rounds(place.position).load(std::memory_order_relaxed) + 1),
      first_round_(round_) {
  const size_t count = group_.size();
  Slot& mine = group_.slot(round_, place.position);
  mine.request = request;
  if (request.bytes > 0 && request.bytes <= kStagedBytes) {
    std::memcpy(mine.staged, request.source, request.bytes);
  }
  requests_.reserve(count);
  sources_.reserve(count);
  worker->fabric->Meet(group_, place.position, [&request] { return CallText(request); });
  // All have left the collective before this one, so its counter is free.
  if (position_ == 0) group_.tasks(round_ + 1).Reset();
  for (size_t i = 0; i < count; ++i) {
    Slot& slot = group_.slot(round_, i);
    requests_.push_back(slot.request);
    staged_ = staged_ && slot.request.bytes <= kStagedBytes;
  }
  Compare();
  for (size_t i = 0; i < count; ++i) {
    sources_.push_back(staged_ ? group_.slot(round_, i).staged : requests_[i].source);
  }
}

// All ranks see the same requests, so all throw or none does.
void Gathering::Compare() const {
  const Request& first = requests_[0];
  for (int64_t i = 1; i < size(); ++i) {
    if (Agree(first, requests_[i])) continue;
    const std::string ranks = RanksText(group_.ranks());
    Refuse("DIST0611", "group [" + ranks.substr(ranks.find(' ') + 1) + "]",
           "rank " + std::to_string(rank(i)) + " called " + RequestText(requests_[i]) +
               " while rank " + std::to_string(rank(0)) + " called " + RequestText(first),
           "Make all ranks of a group call the same collectives in the same order.");
  }
}

void Gathering::Share(int64_t tasks, const std::function<void(int64_t)>& work) const {
  const uint32_t count = static_cast<uint32_t>(tasks);
  TaskCounter& counter = group_.tasks(first_round_);
  for (uint32_t task; (task = counter.Claim()) < count;) {
    work(task);
    counter.Done(count);
  }
  counter.WaitForAll(count);
}

// A part of a chunk, rounded up to whole lines.
int64_t Gathering::results_bytes() const {
  return (chunk_bytes() / size() + 2 * kLine) / kLine * kLine;
}

char* Gathering::Stages() const {
  const int64_t bytes = 2 * size() * (chunk_bytes() + results_bytes());
  return worker_->fabric->Stages(group_, static_cast<uint64_t>(bytes));
}

char* Gathering::StageOf(uint32_t round, int64_t member) const {
  return Stages() + ((round & 1) * size() + member) * chunk_bytes();
}

char* Gathering::ResultsOf(uint32_t round, int64_t member) const {
  return Stages() + 2 * size() * chunk_bytes() +
         ((round & 1) * size() + member) * results_bytes();
}

void Gathering::MeetAgain() {
  worker_->fabric->Meet(group_, static_cast<size_t>(position_),
                        [this] { return CallText(mine()); });
  ++round_;
}

}  // namespace tvm_distir
