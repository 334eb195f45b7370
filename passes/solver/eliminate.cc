// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/eliminate.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace tvm_distir {
namespace {

// The order in which variables go, by which of them share tables alone.
class Order {
 public:
  explicit Order(const Problem& problem) : problem_(problem), near_(problem.domains.size()) {
    for (const Factor& factor : problem.factors) {
      for (const int64_t v : factor.scope) {
        for (const int64_t u : factor.scope) {
          if (u != v) near_[v].push_back(u);
        }
      }
    }
    for (Ints& near : near_) {
      std::sort(near.begin(), near.end());
      near.erase(std::unique(near.begin(), near.end()), near.end());
    }
  }

  std::vector<Planned> Run() {
    const int64_t count = static_cast<int64_t>(problem_.domains.size());
    std::vector<Planned> order;
    order.reserve(count);
    Ints queued(count, 0);
    using Entry = std::pair<int64_t, int64_t>;  // size of the bucket, variable
    std::vector<Entry> first;
    first.reserve(count);
    for (int64_t v = 0; v < count; ++v) {
      if (!problem_.keep[v]) first.emplace_back(queued[v] = BucketSize(v), v);
    }
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap(
        std::greater<Entry>(), std::move(first));
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
      for (const int64_t u : near_[v]) {
        if (problem_.keep[u]) continue;
        const int64_t smaller = BucketSize(u);
        if (smaller < queued[u]) heap.emplace(queued[u] = smaller, u);
      }
      order.push_back({v, std::move(near_[v])});
    }
    return order;
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

  // Makes neighbours of each other those that v has.
  void Remove(int64_t v) {
    const Ints& mine = near_[v];
    for (const int64_t u : mine) {
      Ints& theirs = near_[u];
      joined_.clear();
      std::set_union(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                     std::back_inserter(joined_));
      theirs.clear();
      for (const int64_t w : joined_) {
        if (w != u && w != v) theirs.push_back(w);
      }
    }
  }

  const Problem& problem_;
  std::vector<Ints> near_;
  Ints joined_;
};

// One elimination: joins the tables of each variable that goes.
class Eliminator {
 public:
  Eliminator(Tables* tables, Problem problem)
      : tables_(tables),
        problem_(std::move(problem)),
        factors_(std::move(problem_.factors)),
        alive_(factors_.size(), true),
        factors_of_(problem_.domains.size()) {
    for (size_t f = 0; f < factors_.size(); ++f) {
      for (const int64_t v : factors_[f].scope) factors_of_[v].push_back(f);
    }
  }

  Elimination Run(std::vector<Planned> order) {
    done_.steps.reserve(order.size());
    for (Planned& next : order) Remove(next.variable, std::move(next.neighbours));
    for (size_t f = 0; f < factors_.size(); ++f) {
      if (alive_[f]) done_.left.push_back(std::move(factors_[f]));
    }
    return std::move(done_);
  }

 private:
  void Remove(int64_t v, Ints neighbours) {
    std::vector<size_t> group;
    for (const size_t f : factors_of_[v]) {
      if (alive_[f]) group.push_back(f);
    }
    std::sort(group.begin(), group.end(), [this](size_t a, size_t b) {
      return factors_[a].scope < factors_[b].scope;
    });
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
    shape.reserve(neighbours.size());
    for (const int64_t u : neighbours) shape.push_back(problem_.domains[u]);
    const Join& join = tables_->JoinBucket(key, shape, problem_.domains[v]);
    done_.constant += join.rest.low;
    if (neighbours.empty()) {
      if (tables_->at(join.rest.number).entries[0] >= kInfinite) done_.feasible = false;
    } else {
      for (const int64_t u : neighbours) Forget(u);
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
    for (const int64_t u : scope) factors_of_[u].push_back(factors_.size());
    factors_.push_back({number, scope});
    alive_.push_back(true);
  }

  Tables* tables_;
  Problem problem_;
  std::vector<Factor> factors_;
  std::vector<bool> alive_;
  std::vector<std::vector<size_t>> factors_of_;
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

std::vector<Planned> OrderOf(const Problem& problem) { return Order(problem).Run(); }

Elimination Eliminate(Tables* tables, Problem problem, std::vector<Planned> order) {
  return Eliminator(tables, std::move(problem)).Run(std::move(order));
}

}  // namespace tvm_distir
