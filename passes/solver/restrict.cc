// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/restrict.h"

#include <map>
#include <utility>
#include <vector>

namespace tvm_distir {

Restricted Restrict(Tables* tables, const Problem& problem, const std::vector<Ints>& states) {
  Restricted out;
  std::map<Ints, int64_t> merged;
  for (const Factor& factor : problem.factors) {
    const Table& table = tables->at(factor.table);
    const size_t rank = factor.scope.size();
    Ints scope, shape, strides(rank, 1);
    for (size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * table.shape[d];
    for (const int64_t v : factor.scope) {
      if (states[v].size() == 1) continue;
      scope.push_back(v);
      shape.push_back(static_cast<int64_t>(states[v].size()));
    }
    Ints entries;
    std::vector<size_t> index(rank, 0);
    for (bool more = true; more;) {
      int64_t at = 0;
      for (size_t d = 0; d < rank; ++d) at += states[factor.scope[d]][index[d]] * strides[d];
      entries.push_back(table.entries[at]);
      more = false;
      for (size_t d = rank; d-- > 0;) {
        if (++index[d] < states[factor.scope[d]].size()) {
          more = true;
          break;
        }
        index[d] = 0;
      }
    }
    if (scope.empty()) {
      if (entries[0] >= kInfinite) out.feasible = false;
      else out.constant += entries[0];
      continue;
    }
    Interned found = tables->Intern(std::move(shape), std::move(entries));
    out.constant += found.low;
    const auto [place, is_new] = merged.try_emplace(std::move(scope), found.number);
    if (!is_new) {
      found = tables->Add(place->second, found.number);
      out.constant += found.low;
      place->second = found.number;
    }
  }
  for (auto& [scope, number] : merged) out.factors.push_back({number, scope});
  return out;
}

Optimum Optimise(Tables* tables, const Problem& problem, const std::vector<Ints>& states,
                 int64_t limit) {
  Optimum found;
  Problem left;
  for (const Ints& mine : states) left.domains.push_back(static_cast<int64_t>(mine.size()));
  left.keep.assign(states.size(), false);
  for (const Factor& factor : problem.factors) {
    Ints scope;
    for (const int64_t v : factor.scope) {
      if (states[v].size() > 1) scope.push_back(v);
    }
    if (scope.size() > 1) left.factors.push_back({factor.table, std::move(scope)});
  }
  left.limit = limit;
  std::vector<Planned> order = OrderOf(left);
  found.narrow = order.size() == states.size();
  if (!found.narrow) return found;
  Restricted restricted = Restrict(tables, problem, states);
  left.factors = std::move(restricted.factors);
  const Elimination done = Eliminate(tables, std::move(left), std::move(order));
  found.feasible = restricted.feasible && done.feasible;
  found.values.assign(states.size(), 0);
  done.Decode(found.values.data());
  for (size_t v = 0; v < states.size(); ++v) found.values[v] = states[v][found.values[v]];
  return found;
}

}  // namespace tvm_distir
