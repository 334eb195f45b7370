// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/dual.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tvm_distir {
namespace {

constexpr int kSumBits = 61;   // of the costs and messages that meet in one variable
constexpr int64_t kMostShift = 20;

int Bits(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

// Takes the minimum out of values; returns it.
int64_t Normalise(Ints* values) {
  const int64_t low = *std::min_element(values->begin(), values->end());
  for (int64_t& value : *values) value -= low;
  return low;
}

void Add(const Ints& more, Ints* values) {
  for (size_t s = 0; s < values->size(); ++s) (*values)[s] += more[s];
}

Ints Kept(const Ints& values, const std::vector<bool>& out) {
  Ints kept;
  for (size_t s = 0; s < values.size(); ++s) {
    if (!out[s]) kept.push_back(values[s]);
  }
  return kept;
}

}  // namespace

// No labelling of at most `most` has an entry above it: tables have no negative entries.
Dual::Dual(const Tables& tables, const Problem& problem, int64_t most)
    : cap_(most + 1), most_(most) {
  nodes_.resize(problem.domains.size());
  for (size_t v = 0; v < nodes_.size(); ++v) {
    Node& node = nodes_[v];
    for (int64_t s = 0; s < problem.domains[v]; ++s) node.states.push_back(s);
    node.costs.assign(problem.domains[v], 0);
    node.excess = node.part = node.costs;
    node.out.assign(problem.domains[v], false);
  }
  std::vector<const Factor*> pairs;
  for (const Factor& factor : problem.factors) {
    if (factor.scope.size() == 2) {
      pairs.push_back(&factor);
      continue;
    }
    const Ints& entries = tables.at(factor.table).entries;
    Ints& costs = nodes_[factor.scope[0]].costs;
    for (size_t s = 0; s < costs.size(); ++s) costs[s] = std::min(costs[s] + entries[s], cap_);
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const Factor* a, const Factor* b) { return a->scope < b->scope; });
  size_t most_edges = 0;
  for (const Factor* factor : pairs) {
    const int64_t e = static_cast<int64_t>(edges_.size());
    Edge edge{factor->scope[0], factor->scope[1], {}, {}, {}, {}, {}};
    edge.costs = tables.at(factor->table).entries;
    for (int64_t& cost : edge.costs) cost = std::min(cost, cap_);
    edge.to_first.assign(problem.domains[edge.first], 0);
    edge.to_second.assign(problem.domains[edge.second], 0);
    edge.all_first = edge.to_first;
    edge.all_second = edge.to_second;
    nodes_[edge.first].after.push_back(e);
    nodes_[edge.second].before.push_back(e);
    edges_.push_back(std::move(edge));
  }
  for (Node& node : nodes_) {
    node.share = std::max<int64_t>(1, std::max(node.before.size(), node.after.size()));
    most_edges = std::max(most_edges, node.before.size() + node.after.size());
  }
  // A message is at most the largest entry, so that a variable's sum has no more bits than this.
  const int used = Bits(cap_) + Bits(static_cast<int64_t>(most_edges) + 2);
  shift_ = std::min<int64_t>(kMostShift, std::max(0, kSumBits - used));
  for (Node& node : nodes_) {
    for (int64_t& cost : node.costs) cost <<= shift_;
  }
  for (Edge& edge : edges_) {
    for (int64_t& cost : edge.costs) cost <<= shift_;
  }
}

void Dual::Gather(Node* node) {
  node->excess = node->costs;
  for (const int64_t e : node->before) Add(edges_[e].to_second, &node->excess);
  for (const int64_t e : node->after) Add(edges_[e].to_first, &node->excess);
  node->low = Normalise(&node->excess);
  node->part = node->excess;
  if (node->share == 1) return;
  for (int64_t& value : node->part) value /= node->share;
}

// Hands the share of the nearer variable's excess over to the farther one.
//
// What the farther variable gave when the last sweep passed it is not lost: its share of then and
// the change of the message are bounded together (`crossing`) until this sweep gets there.
void Dual::Send(Edge* edge, bool forward) {
  const Node& from = nodes_[forward ? edge->first : edge->second];
  const Node& to = nodes_[forward ? edge->second : edge->first];
  const Ints& back = forward ? edge->to_first : edge->to_second;
  Ints& message = forward ? edge->to_second : edge->to_first;
  const size_t rows = nodes_[edge->first].costs.size(), columns = nodes_[edge->second].costs.size();
  sum_.resize(back.size());
  for (size_t s = 0; s < sum_.size(); ++s) sum_[s] = from.part[s] - back[s];
  old_.swap(message);
  message.assign(old_.size(), std::numeric_limits<int64_t>::max());
  const int64_t* cost = edge->costs.data();
  for (size_t a = 0; a < rows; ++a, cost += columns) {
    if (forward) {
      const int64_t base = sum_[a];
      for (size_t b = 0; b < columns; ++b) message[b] = std::min(message[b], base + cost[b]);
    } else {
      int64_t least = message[a];
      for (size_t b = 0; b < columns; ++b) least = std::min(least, sum_[b] + cost[b]);
      message[a] = least;
    }
  }
  edge->rest = Normalise(&message);
  int64_t crossing = std::numeric_limits<int64_t>::max();
  for (size_t t = 0; t < message.size(); ++t) {
    crossing = std::min(crossing, to.part[t] + message[t] - old_[t]);
  }
  edge->crossing = crossing;
}

// The state of a variable that is cheapest with those picked before it and the messages from the
// others; returns what it adds to the labelling's cost.
int64_t Dual::Label(int64_t variable, bool forward, Ints* picked) {
  const Node& node = nodes_[variable];
  const size_t count = node.costs.size();
  Ints& fixed = fixed_;
  Ints& open = open_;
  fixed = node.costs;
  open.assign(count, 0);
  for (const int64_t e : node.before) {
    const Edge& edge = edges_[e];
    if (forward) {
      const int64_t* row = edge.costs.data() + (*picked)[edge.first] * count;
      for (size_t s = 0; s < count; ++s) fixed[s] += row[s];
    } else {
      Add(edge.to_second, &open);
    }
  }
  for (const int64_t e : node.after) {
    const Edge& edge = edges_[e];
    if (forward) {
      Add(edge.to_first, &open);
    } else {
      const size_t columns = nodes_[edge.second].costs.size();
      const int64_t at = (*picked)[edge.second];
      for (size_t s = 0; s < count; ++s) fixed[s] += edge.costs[s * columns + at];
    }
  }
  size_t best = 0;
  for (size_t s = 1; s < count; ++s) {
    if (fixed[s] + open[s] < fixed[best] + open[best]) best = s;
  }
  (*picked)[variable] = static_cast<int64_t>(best);
  return fixed[best];
}

void Dual::Round() {
  if (Sweep(true)) Sweep(false);
}

// Returns false, half-way, where nothing costs at most what is known or allowed.
bool Dual::Sweep(bool forward) {
  const int64_t count = size();
  auto total = static_cast<int64_t>(Sum());  // a bound that holds at every moment of the sweep
  Ints picked(count, 0);
  int64_t price = 0;
  const int64_t limit = std::min(best_, most_) << shift_;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = forward ? i : count - 1 - i;
    Node& node = nodes_[v];
    const int64_t before = node.low;
    Gather(&node);
    total += node.low - before;
    for (const int64_t e : forward ? node.before : node.after) total -= edges_[e].crossing;
    bound_ = std::max(bound_, total);
    if (total > limit) return false;
    for (size_t s = 0; s < node.excess.size(); ++s) {
      if (total + node.excess[s] > limit) node.out[s] = true;
    }
    price = std::min(price + Label(v, forward, &picked), kInfinite);
    for (const int64_t e : forward ? node.after : node.before) {
      Edge& edge = edges_[e];
      total -= edge.rest;
      Send(&edge, forward);
      total += edge.rest + edge.crossing;
    }
  }
  price >>= shift_;
  if (price <= most_ && price < best_) {
    best_ = price;
    labels_.resize(count);
    for (int64_t v = 0; v < count; ++v) labels_[v] = nodes_[v].states[picked[v]];
  }
  return true;
}

void Dual::Prune() {
  std::vector<bool> changed(nodes_.size(), false);
  for (size_t v = 0; v < nodes_.size(); ++v) {
    const auto& out = nodes_[v].out;
    const int64_t gone = std::count(out.begin(), out.end(), true);
    // all: nothing is better than what is known, which need not be kept here
    changed[v] = gone > 0 && gone < static_cast<int64_t>(out.size());
  }
  for (Edge& edge : edges_) {
    if (!changed[edge.first] && !changed[edge.second]) continue;
    const auto& rows = nodes_[edge.first].out;
    const auto& columns = nodes_[edge.second].out;
    Ints costs;
    for (size_t a = 0; a < rows.size(); ++a) {
      if (changed[edge.first] && rows[a]) continue;
      for (size_t b = 0; b < columns.size(); ++b) {
        if (changed[edge.second] && columns[b]) continue;
        costs.push_back(edge.costs[a * columns.size() + b]);
      }
    }
    edge.costs = std::move(costs);
    if (changed[edge.first]) {
      Spread(edge.to_first, nodes_[edge.first].states, &edge.all_first);
      edge.to_first = Kept(edge.to_first, rows);
    }
    if (changed[edge.second]) {
      Spread(edge.to_second, nodes_[edge.second].states, &edge.all_second);
      edge.to_second = Kept(edge.to_second, columns);
    }
  }
  for (size_t v = 0; v < nodes_.size(); ++v) {
    Node& node = nodes_[v];
    if (changed[v]) {
      node.states = Kept(node.states, node.out);
      node.costs = Kept(node.costs, node.out);
      node.excess = Kept(node.excess, node.out);
      node.part = Kept(node.part, node.out);
    }
    node.out.assign(node.states.size(), false);
  }
}

void Dual::Offer(int64_t cost, Ints labels) {
  if (cost > most_ || cost >= best_) return;
  best_ = cost;
  labels_ = std::move(labels);
}

int64_t Dual::bound() const {
  const int64_t unit = int64_t{1} << shift_;
  return bound_ / unit + (bound_ % unit > 0);
}

}  // namespace tvm_distir
