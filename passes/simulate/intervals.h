// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Intervals of time: lists of start and end.

#ifndef TVM_DISTIR_PASSES_SIMULATE_INTERVALS_H_
#define TVM_DISTIR_PASSES_SIMULATE_INTERVALS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {

using Interval = std::pair<int64_t, int64_t>;
using Intervals = std::vector<Interval>;

inline void Add(Intervals* to, int64_t start, int64_t end) {
  if (end <= start) return;
  if (!to->empty() && to->back().second == start) {
    to->back().second = end;
  } else {
    to->emplace_back(start, end);
  }
}

// Sorted and disjoint.
inline Intervals Union(Intervals all) {
  if (!std::is_sorted(all.begin(), all.end())) std::sort(all.begin(), all.end());
  Intervals out;
  for (const Interval& one : all) {
    if (!out.empty() && one.first <= out.back().second) {
      out.back().second = std::max(out.back().second, one.second);
    } else {
      out.push_back(one);
    }
  }
  return out;
}

inline int64_t Length(const Intervals& of) {
  int64_t sum = 0;
  for (const Interval& one : of) sum += one.second - one.first;
  return sum;
}

// What both of two unions have.
inline Intervals Common(const Intervals& a, const Intervals& b) {
  Intervals out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t start = std::max(a[i].first, b[j].first);
    const int64_t end = std::min(a[i].second, b[j].second);
    if (end > start) out.emplace_back(start, end);
    ++(a[i].second < b[j].second ? i : j);
  }
  return out;
}

inline Intervals Pairs(const Ints& flat) {
  Intervals out;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i + 1] > flat[i]) out.emplace_back(flat[i], flat[i + 1]);
  }
  return out;
}

// A union that knows how much of it lies before any time.
class Measured {
 public:
  explicit Measured(Intervals of) : of_(std::move(of)), before_(1, 0) {
    for (const Interval& one : of_) before_.push_back(before_.back() + one.second - one.first);
  }

  int64_t Before(int64_t time) const {
    const auto next = std::upper_bound(of_.begin(), of_.end(), Interval(time, kLatest));
    const size_t count = next - of_.begin();
    if (count == 0) return 0;
    return before_[count] - std::max<int64_t>(of_[count - 1].second - time, 0);
  }

  int64_t Within(int64_t start, int64_t end) const { return Before(end) - Before(start); }

  // Appends what lies within, later by a shift.
  void Cut(int64_t start, int64_t end, int64_t shift, Intervals* to) const {
    auto next = std::upper_bound(of_.begin(), of_.end(), Interval(start, kLatest));
    if (next != of_.begin()) --next;
    for (; next != of_.end() && next->first < end; ++next) {
      Add(to, std::max(next->first, start) + shift, std::min(next->second, end) + shift);
    }
  }

 private:
  Intervals of_;
  Ints before_;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_INTERVALS_H_
