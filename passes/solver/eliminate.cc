// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/eliminate.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <utility>

namespace tvm_distir {
namespace {

void InsertSorted(Ints* values, int64_t value) {
  const auto at = std::lower_bound(values->begin(), values->end(), value);
  if (at == values->end() || *at != value) values->insert(at, value);
}

void EraseSorted(Ints* values, int64_t value) {
  const auto at = std::lower_bound(values->begin(), values->end(), value);
  if (at != values->end() && *at == value) values->erase(at);
}

// One elimination: factors and neighbours are kept up to date as variables go.
class Eliminator {
 public:
  Eliminator(Tables* tables, Problem problem)
      : tables_(tables),
        problem_(std::move(problem)),
        factors_(std::move(problem_.factors)),
        alive_(factors_.size(), true),
        factors_of_(problem_.domains.size()),
        near_(problem_.domains.size()) {
    for (size_t f = 0; f < factors_.size(); ++f) {
      for (const int64_t v : factors_[f].scope) {
        factors_of_[v].push_back(f);
        for (const int64_t u : factors_[f].scope) {
          if (u != v) InsertSorted(&near_[v], u);
        }
      }
    }
  }

  Elimination Run() {
    const int64_t count = static_cast<int64_t>(problem_.domains.size());
    Ints queued(count, 0);
    using Entry = std::pair<int64_t, int64_t>;  // size of the bucket, variable
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap;
    for (int64_t v = 0; v < count; ++v) {
      if (!problem_.keep[v]) heap.emplace(queued[v] = BucketSize(v), v);
    }
    std::vector<bool> gone(count, false);
    while (!heap.empty()) {
      const auto [size, v] = heap.top();
      heap.pop();
      const int64_t neighbours = static_cast<int64_t>(near_[v].size());
      const bool many = problem_.most_neighbours >= 0 && neighbours > problem_.most_neighbours;
      if (gone[v] || many) continue;
      const int64_t now = BucketSize(v);
      if (now > size) {
        heap.emplace(queued[v] = now, v);
        continue;
      }
      if (now > problem_.limit) break;
      gone[v] = true;
      Remove(v);
      for (const int64_t u : done_.steps.back().neighbours) {
        if (problem_.keep[u]) continue;
        const int64_t smaller = BucketSize(u);
        if (smaller < queued[u]) heap.emplace(queued[u] = smaller, u);
      }
    }
    for (size_t f = 0; f < factors_.size(); ++f) {
      if (alive_[f]) done_.left.push_back(std::move(factors_[f]));
    }
    return std::move(done_);
  }

 private:
  // Entries of the table that is joined when v goes; the largest int64 when they are too many to count.
  int64_t BucketSize(int64_t v) const {
    int64_t size = problem_.domains[v];
    for (const int64_t u : near_[v]) {
      if (__builtin_mul_overflow(size, problem_.domains[u], &size)) {
        return std::numeric_limits<int64_t>::max();
      }
    }
    return size;
  }

  void Remove(int64_t v) {
    std::vector<size_t> group;
    for (const size_t f : factors_of_[v]) {
      if (alive_[f]) group.push_back(f);
    }
    std::sort(group.begin(), group.end(), [this](size_t a, size_t b) {
      return factors_[a].scope < factors_[b].scope;
    });
    Ints neighbours = std::move(near_[v]);
    BucketKey key;
    key.reserve(3 * group.size());
    for (const size_t f : group) {
      key.push_back(factors_[f].table);
      for (const int64_t u : factors_[f].scope) {
        const auto at = std::lower_bound(neighbours.begin(), neighbours.end(), u);
        key.push_back(u == v ? -1 : at - neighbours.begin());
      }
      alive_[f] = false;
    }
    Ints shape;
    for (const int64_t u : neighbours) shape.push_back(problem_.domains[u]);
    const Join& join = tables_->JoinBucket(key, shape, problem_.domains[v]);
    done_.constant += join.rest.low;
    for (const int64_t u : neighbours) {
      Forget(u);
      EraseSorted(&near_[u], v);
    }
    if (neighbours.empty()) {
      if (tables_->at(join.rest.number).entries[0] >= kInfinite) done_.feasible = false;
    } else {
      Put(neighbours, join.rest.number);
    }
    done_.steps.push_back({v, std::move(neighbours), &join});
  }

  // Drops the factors that are gone from the list of u.
  void Forget(int64_t u) {
    auto& list = factors_of_[u];
    list.erase(std::remove_if(list.begin(), list.end(), [this](size_t f) { return !alive_[f]; }),
               list.end());
  }

  void Put(const Ints& scope, int64_t number) {
    for (const size_t f : factors_of_[scope[0]]) {
      if (factors_[f].scope == scope) {
        const Interned sum = tables_->Add(factors_[f].table, number);
        factors_[f].table = sum.number;
        done_.constant += sum.low;
        return;
      }
    }
    for (const int64_t u : scope) {
      factors_of_[u].push_back(factors_.size());
      for (const int64_t w : scope) {
        if (u != w) InsertSorted(&near_[u], w);
      }
    }
    factors_.push_back({number, scope});
    alive_.push_back(true);
  }

  Tables* tables_;
  Problem problem_;
  std::vector<Factor> factors_;
  std::vector<bool> alive_;
  std::vector<std::vector<size_t>> factors_of_;
  std::vector<Ints> near_;
  Elimination done_;
};

}  // namespace

void Elimination::Decode(int64_t* values) const {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    int64_t at = 0;
    for (size_t i = 0; i < step->neighbours.size(); ++i) {
      at += values[step->neighbours[i]] * step->join->strides[i];
    }
    values[step->variable] = step->join->best[at];
  }
}

// The order is that of the Eliminator, but for variables that it would not eliminate.
int64_t Width(const Problem& problem, int64_t limit) {
  const size_t count = problem.domains.size();
  std::vector<Ints> near(count);
  for (const Factor& factor : problem.factors) {
    for (const int64_t v : factor.scope) {
      for (const int64_t u : factor.scope) {
        if (u != v) InsertSorted(&near[v], u);
      }
    }
  }
  const auto bucket = [&](int64_t v) {
    int64_t size = problem.domains[v];
    for (const int64_t u : near[v]) {
      if (__builtin_mul_overflow(size, problem.domains[u], &size)) {
        return std::numeric_limits<int64_t>::max();
      }
    }
    return size;
  };
  std::set<std::pair<int64_t, int64_t>> waiting;  // size of the bucket, variable
  Ints sizes(count);
  for (size_t v = 0; v < count; ++v) waiting.emplace(sizes[v] = bucket(v), v);
  int64_t largest = 0;
  while (!waiting.empty()) {
    const auto [size, v] = *waiting.begin();
    waiting.erase(waiting.begin());
    largest = std::max(largest, size);
    if (largest > limit || largest == std::numeric_limits<int64_t>::max()) break;
    for (const int64_t u : near[v]) {
      EraseSorted(&near[u], v);
      for (const int64_t w : near[v]) {
        if (w != u) InsertSorted(&near[u], w);
      }
    }
    for (const int64_t u : near[v]) {
      waiting.erase({sizes[u], u});
      waiting.emplace(sizes[u] = bucket(u), u);
    }
  }
  return largest;
}

Elimination Eliminate(Tables* tables, Problem problem) {
  return Eliminator(tables, std::move(problem)).Run();
}

}  // namespace tvm_distir
