// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/tables.h"

#include <algorithm>
#include <utility>

namespace tvm_distir {
namespace {

// Adds a table to `total` (row-major over `shape`); dim d of the table is dim at[d] of the total.
void AddTable(const Table& table, const int64_t* at, const Ints& shape, Ints* total) {
  const size_t rank = shape.size();
  Ints step(rank, 0);
  int64_t stride = 1;
  for (size_t d = table.shape.size(); d-- > 0;) {
    step[at[d]] += stride;
    stride *= table.shape[d];
  }
  Ints index(rank, 0);
  int64_t from = 0;
  for (int64_t& entry : *total) {
    entry = std::min(entry + table.entries[from], kInfinite);
    for (size_t d = rank; d-- > 0;) {
      from += step[d];
      if (++index[d] < shape[d]) break;
      from -= step[d] * shape[d];
      index[d] = 0;
    }
  }
}

}  // namespace

Interned Tables::Intern(Ints shape, Ints entries) {
  int64_t low = entries.empty() ? 0 : *std::min_element(entries.begin(), entries.end());
  if (low >= kInfinite) low = 0;
  for (int64_t& entry : entries) entry = entry >= kInfinite ? kInfinite : entry - low;
  Ints key = shape;
  key.push_back(-1);
  key.insert(key.end(), entries.begin(), entries.end());
  const auto [found, is_new] = numbers_.try_emplace(std::move(key), count());
  if (is_new) {
    entries_ += static_cast<int64_t>(entries.size());
    tables_.push_back(std::make_unique<Table>(Table{std::move(shape), std::move(entries)}));
  }
  return {found->second, low};
}

Interned Tables::Add(int64_t first, int64_t second) {
  const auto [found, is_new] = sums_.try_emplace(Ints{first, second});
  if (is_new) {
    Ints sum = at(first).entries;
    const Ints& more = at(second).entries;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = std::min(sum[i] + more[i], kInfinite);
    found->second = Intern(at(first).shape, std::move(sum));
  }
  return found->second;
}

const Join& Tables::JoinBucket(const BucketKey& key, const Ints& shape, int64_t size) {
  const auto [found, is_new] = joins_.try_emplace(key);
  if (!is_new) return *found->second;
  Ints full = shape;
  full.push_back(size);
  const int64_t last = static_cast<int64_t>(shape.size());
  int64_t rest = 1;
  for (const int64_t n : shape) rest *= n;
  Ints total(rest * size, 0);
  for (size_t i = 0; i < key.size();) {
    const Table& table = at(key[i++]);
    Ints where;
    for (size_t d = 0; d < table.shape.size(); ++d, ++i) {
      where.push_back(key[i] < 0 ? last : key[i]);
    }
    AddTable(table, where.data(), full, &total);
  }
  auto join = std::make_unique<Join>();
  Ints least(rest);
  join->best.resize(rest);
  entries_ += rest;
  for (int64_t i = 0; i < rest; ++i) {
    // the first minimum: alternatives are listed by preference
    const auto row = total.begin() + i * size;
    const auto best = std::min_element(row, row + size);
    least[i] = *best;
    join->best[i] = static_cast<int32_t>(best - row);
  }
  join->strides.resize(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) join->strides[d] = stride;
  join->rest = Intern(shape, std::move(least));
  found->second = std::move(join);
  return *found->second;
}

}  // namespace tvm_distir
