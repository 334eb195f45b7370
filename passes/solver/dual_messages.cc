// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Messages of one problem's bounds as a start for those of another one.

#include <algorithm>
#include <limits>

#include "solver/dual.h"

namespace tvm_distir {
namespace {

// Messages that promise less than this are of no use, and their sum could not be written.
constexpr int64_t kLeastSum = -(int64_t{1} << 61);

}  // namespace

void Dual::Resume(const Ints& messages) {
  const int64_t up = std::max<int64_t>(0, shift_ - messages[0]);
  const int64_t down = std::max<int64_t>(0, messages[0] - shift_);
  size_t at = 1;
  const auto take = [&](Ints* values) {
    for (int64_t& value : *values) {
      const int64_t given = std::max<int64_t>(messages[at++], 0) >> down;
      value = std::min(given, cap_ << shift_ >> up) << up;  // at most the largest entry, as any
    }
  };
  for (Edge& edge : edges_) {
    take(&edge.to_first);
    take(&edge.to_second);
    edge.rest = std::numeric_limits<int64_t>::max();
    const int64_t* cost = edge.costs.data();
    for (const int64_t first : edge.to_first) {
      for (const int64_t second : edge.to_second) {
        edge.rest = std::min(edge.rest, *cost++ - first - second);
      }
    }
  }
  for (Node& node : nodes_) Gather(&node);
  if (Sum() >= kLeastSum) return;
  for (Edge& edge : edges_) {
    std::fill(edge.to_first.begin(), edge.to_first.end(), 0);
    std::fill(edge.to_second.begin(), edge.to_second.end(), 0);
    edge.rest = 0;  // tables have no negative entries
  }
  for (Node& node : nodes_) Gather(&node);
}

__int128 Dual::Sum() const {
  __int128 total = 0;
  for (const Node& node : nodes_) total += node.low;
  for (const Edge& edge : edges_) total += edge.rest;
  return total;
}

Ints Dual::Messages() const {
  Ints found{shift_};
  for (const Edge& edge : edges_) {
    for (const bool first : {true, false}) {
      Ints all = first ? edge.all_first : edge.all_second;
      Spread(first ? edge.to_first : edge.to_second,
             nodes_[first ? edge.first : edge.second].states, &all);
      found.insert(found.end(), all.begin(), all.end());
    }
  }
  return found;
}

}  // namespace tvm_distir
