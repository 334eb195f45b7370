// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The simulator's event loop: when does each task start and end?
//
// A task waits for the tasks it depends on and, when it is on a stream, for the task issued
// before it on the same stream (tasks are numbered in order of issue). The members of a group (a
// collective) start together when all of them could start, and end together after the longest of
// their durations. Everything is integer, so the result does not depend on the order of visits.
//
// A group is one node of a graph whose edges are these waits; the nodes are visited in
// topological order, in time linear in tasks and dependencies. What is on a cycle, or waits for
// one, never starts.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ffi/array.h"

namespace tvm_distir {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kNone = -1;
constexpr int64_t kOverflow = -1;

// Lists of int64, one per node, in one block: Count every entry, Allocate, then Add every entry.
class Lists {
 public:
  explicit Lists(int64_t count) : begin_(count + 1, 0) {}
  void Count(int64_t list) { ++begin_[list + 1]; }
  void Allocate() {
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    entries_.resize(begin_.back());
    fill_.assign(begin_.begin(), begin_.end() - 1);
  }
  void Add(int64_t list, int64_t entry) { entries_[fill_[list]++] = entry; }
  const int64_t* begin(int64_t list) const { return entries_.data() + begin_[list]; }
  const int64_t* end(int64_t list) const { return entries_.data() + begin_[list + 1]; }

 private:
  std::vector<int64_t> begin_, fill_, entries_;
};

struct Tasks {
  Int64View duration, stream, dep_begin, dep, group;
  int64_t stream_count, group_count;

  int64_t size() const { return duration.size(); }

  void Check() const {
    const int64_t count = size();
    stream.CheckSize(count, "stream");
    group.CheckSize(count, "group");
    dep_begin.CheckSize(count + 1, "dep_begin");
    duration.CheckRange(0, std::numeric_limits<int64_t>::max(), "duration");
    stream.CheckRange(kNone, stream_count, "stream");
    group.CheckRange(kNone, group_count, "group");
    dep.CheckRange(0, count, "dep");
    dep_begin.CheckRange(0, dep.size() + 1, "dep_begin");
    for (int64_t i = 0; i < count; ++i) {
      if (dep_begin[i] > dep_begin[i + 1]) {
        TVM_FFI_THROW(ValueError) << "dep_begin decreases at " << i;
      }
    }
    if (dep_begin[0] != 0 || dep_begin[count] != dep.size()) {
      TVM_FFI_THROW(ValueError) << "dep_begin must go from 0 to " << dep.size();
    }
  }
};

// Number of tasks that could be scheduled, or kOverflow when an end does not fit in an int64.
int64_t Run(const Tasks& tasks, const Int64View& start, const Int64View& end) {
  const int64_t task_count = tasks.size();

  // Nodes: first the groups, then the tasks of no group.
  std::vector<int64_t> node(task_count);
  int64_t node_count = tasks.group_count;
  for (int64_t t = 0; t < task_count; ++t) {
    node[t] = tasks.group[t] == kNone ? node_count++ : tasks.group[t];
  }

  std::vector<int64_t> duration(node_count, 0);
  Lists members(node_count), followers(node_count);
  for (int64_t t = 0; t < task_count; ++t) {
    duration[node[t]] = std::max(duration[node[t]], tasks.duration[t]);
    members.Count(node[t]);
  }
  members.Allocate();
  for (int64_t t = 0; t < task_count; ++t) members.Add(node[t], t);

  std::vector<int64_t> waits(node_count, 0);
  auto for_each_wait = [&](auto visit) {
    std::vector<int64_t> last(tasks.stream_count, kNone);
    for (int64_t t = 0; t < task_count; ++t) {
      for (int64_t d = tasks.dep_begin[t]; d < tasks.dep_begin[t + 1]; ++d) {
        visit(node[tasks.dep[d]], node[t]);
      }
      if (tasks.stream[t] != kNone) {
        int64_t& before = last[tasks.stream[t]];
        if (before != kNone) visit(node[before], node[t]);
        before = t;
      }
    }
  };
  for_each_wait([&](int64_t from, int64_t to) {
    followers.Count(from);
    ++waits[to];
  });
  followers.Allocate();
  for_each_wait([&](int64_t from, int64_t to) { followers.Add(from, to); });

  std::vector<int64_t> ready_at(node_count, 0), ready;
  ready.reserve(node_count);
  for (int64_t n = 0; n < node_count; ++n) {
    if (waits[n] == 0) ready.push_back(n);
  }
  for (int64_t t = 0; t < task_count; ++t) start[t] = end[t] = kNone;
  int64_t done = 0;
  for (size_t head = 0; head < ready.size(); ++head) {
    const int64_t n = ready[head];
    int64_t finish = 0;
    if (__builtin_add_overflow(ready_at[n], duration[n], &finish)) return kOverflow;
    for (const int64_t* t = members.begin(n); t != members.end(n); ++t, ++done) {
      start[*t] = ready_at[n];
      end[*t] = finish;
    }
    for (const int64_t* f = followers.begin(n); f != followers.end(n); ++f) {
      ready_at[*f] = std::max(ready_at[*f], finish);
      if (--waits[*f] == 0) ready.push_back(*f);
    }
  }
  return done;
}

int64_t Schedule(TensorView duration, TensorView stream, int64_t stream_count,
                 TensorView dep_begin, TensorView dep, TensorView group, int64_t group_count,
                 TensorView start_out, TensorView end_out) {
  if (stream_count < 0 || group_count < 0) {
    TVM_FFI_THROW(ValueError) << "stream_count and group_count must not be negative";
  }
  const Tasks tasks{Int64View(duration, "duration"),
                    Int64View(stream, "stream"),
                    Int64View(dep_begin, "dep_begin"),
                    Int64View(dep, "dep"),
                    Int64View(group, "group"),
                    stream_count,
                    group_count};
  const Int64View start(start_out, "start_out"), end(end_out, "end_out");
  tasks.Check();
  start.CheckSize(tasks.size(), "start_out");
  end.CheckSize(tasks.size(), "end_out");
  return Run(tasks, start, end);
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(schedule, tvm_distir::Schedule);
