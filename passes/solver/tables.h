// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Integer cost tables, each kept once.
//
// A table over variables of sizes `shape` loses its minimum and is interned: tables that differ by
// a constant have one number. Joins of tables are memoised on these numbers, so that a repeated
// part of a problem costs look-ups only.

#ifndef TVM_DISTIR_PASSES_TABLES_H_
#define TVM_DISTIR_PASSES_TABLES_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tvm_distir {

using Ints = std::vector<int64_t>;

// Cost of what may not be. Sums saturate at it; two of it still fit in an int64.
constexpr int64_t kInfinite = int64_t{1} << 60;

struct HashInts {
  size_t operator()(const Ints& values) const noexcept {
    uint64_t hash = 0x9e3779b97f4a7c15u ^ values.size();
    for (const int64_t value : values) {
      hash ^= static_cast<uint64_t>(value);
      hash *= 0xff51afd7ed558ccdu;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

struct Table {
  Ints shape;
  Ints entries;  // row-major
};

// A table number and the minimum that was taken out of it.
struct Interned {
  int64_t number;
  int64_t low;
};

// The tables of one bucket summed and minimised over its variable.
struct Join {
  Interned rest;                     // over the neighbours
  std::vector<int32_t> best;         // value of the variable, per assignment of the neighbours
  Ints strides;                      // of `best`
};

// One table of a bucket: its number, and where each of its variables stands among the
// neighbours (-1 for the variable that goes).
using BucketKey = Ints;

class Tables {
 public:
  // A table without a finite entry keeps its entries.
  Interned Intern(Ints shape, Ints entries);
  // The interned sum of two tables over the same variables.
  Interned Add(int64_t first, int64_t second);
  // Tables of a bucket: `key` holds, per table, its number and one position per dim.
  const Join& JoinBucket(const BucketKey& key, const Ints& shape, int64_t size);

  const Table& at(int64_t number) const { return *tables_[number]; }
  int64_t count() const { return static_cast<int64_t>(tables_.size()); }
  int64_t joins() const { return static_cast<int64_t>(joins_.size()); }
  // Numbers held by all tables and joins.
  int64_t entries() const { return entries_; }
  bool Contains(int64_t number) const { return number >= 0 && number < count(); }

 private:
  int64_t entries_ = 0;
  std::vector<std::unique_ptr<Table>> tables_;
  std::unordered_map<Ints, int64_t, HashInts> numbers_;
  std::unordered_map<Ints, Interned, HashInts> sums_;
  std::unordered_map<Ints, std::unique_ptr<Join>, HashInts> joins_;
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_TABLES_H_
