// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Numbers what is alike in the modules of a process.

#ifndef TVM_DISTIR_FFI_NUMBERS_H_
#define TVM_DISTIR_FFI_NUMBERS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/structural_equal.h>
#include <tvm/ffi/extra/structural_hash.h>
#include <tvm/ffi/object.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ffi/nodes.h"

namespace tvm_distir {

struct HashInts {
  size_t operator()(const Ints& values) const {
    uint64_t hash = values.size();
    for (const int64_t value : values) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// Numbers of nodes by their address, in one array: a look-up touches one line of the cache, where a
// map of lists touches three.
class NodeNumbers {
 public:
  // The number of a node, nullptr where it has none.
  const int64_t* Find(const Object* node) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[At(node)];
    return slot.node == nullptr ? nullptr : &slot.number;
  }

  // Gives a node that has none a number.
  void Add(const Object* node, int64_t number) {
    Reserve(++count_);
    slots_[At(node)] = {node, number};
  }

  // Makes room for so many nodes in all.
  void Reserve(size_t count) {
    if (2 * count <= slots_.size()) return;
    size_t size = std::max(slots_.size(), kLeast);
    while (size < 2 * count) size *= 2;
    std::vector<Slot> before(size);
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.node != nullptr) slots_[At(slot.node)] = slot;
    }
  }

  void Clear() {
    slots_.clear();
    count_ = 0;
  }

 private:
  struct Slot {
    const Object* node = nullptr;
    int64_t number = 0;
  };

  static constexpr size_t kLeast = 1024;

  // Where a node stands, or would.
  size_t At(const Object* node) const {
    const uint64_t hash = reinterpret_cast<uint64_t>(node) * 0x9E3779B97F4A7C15u;
    size_t at = (hash >> 32) & (slots_.size() - 1);
    while (slots_[at].node != nullptr && slots_[at].node != node) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  std::vector<Slot> slots_;  // a power of two, at least half of them empty
  size_t count_ = 0;
};

// Begins the description of a type, or of a call among plain tensors; those of bindings begin with
// their kind.
enum DescribedKind : int64_t { kTupleType = -2, kPlacedType = -3, kPlainCall = -4 };

// Numbers of what is alike, the same in all modules of a process, so that what was learnt of one
// module serves the next. A number is never given twice: what is forgotten gets a new one.
class Numbers {
 public:
  // Forgets nodes, or all, where many have piled up; not while a module is read.
  void Trim() {
    if (kept_.size() > kMostNodes) {  // what they are like is known still
      by_node_.Clear();
      kept_.clear();
    }
    if (by_hash_.size() + alike_.size() > kMost) {
      by_node_.Clear();
      kept_.clear();
      by_hash_.clear();
      alike_.clear();
    }
  }

  // Two values have the same number exactly when they are structurally equal.
  int64_t Of(const Any& value) {
    const Object* node = Node(value);
    if (node == nullptr) return Compared(value);
    if (const int64_t* seen = by_node_.Find(node)) return *seen;
    const int64_t number = OfNode(value, node);
    by_node_.Add(node, number);
    kept_.push_back(value);  // so that no other node takes its place
    return number;
  }

  int64_t Alike(const Ints& key) {
    const auto known = alike_.find(key);
    if (known != alike_.end()) return known->second;
    alike_.emplace(key, next_);
    return next_++;
  }

  // Makes room for so many nodes more; a growing table doubles, so that many small modules do not
  // move it each time.
  void Reserve(size_t more) {
    const size_t needed = kept_.size() + more;
    if (needed <= kept_.capacity()) return;
    kept_.reserve(std::max(needed, 2 * kept_.capacity()));
    by_node_.Reserve(kept_.capacity());
  }

  int64_t Next() { return next_++; }

 private:
  static constexpr size_t kMost = size_t{1} << 16, kMostNodes = size_t{1} << 14;

  // Types are told apart by their parts, most of which types share.
  int64_t OfNode(const Any& value, const Object* node) {
    const int32_t type = node->type_index();
    if (type == tuple_type_) {
      Ints key{kTupleType};
      for (const Any& field : tuple_fields_(node).cast<tvm::ffi::Array<Any>>()) {
        key.push_back(Of(field));
      }
      return Alike(key);
    }
    if (type == placed_type_) {
      return Alike({kPlacedType, Of(tensor_(node)), Of(mesh_(node)), Of(placement_(node))});
    }
    return Compared(value);
  }

  int64_t Compared(const Any& value) {
    auto& bucket = by_hash_[tvm::ffi::StructuralHash::Hash(value)];
    for (const auto& [known, number] : bucket) {
      if (tvm::ffi::StructuralEqual::Equal(known, value)) return number;
    }
    bucket.emplace_back(value, next_);
    return next_++;
  }

  FieldGetter tuple_fields_{"ir.TupleType", "fields"};
  FieldGetter tensor_{"relax.DTensorType", "tensor_ty"};
  FieldGetter mesh_{"relax.DTensorType", "device_mesh"};
  FieldGetter placement_{"relax.DTensorType", "placement"};
  int32_t tuple_type_ = TypeIndex("ir.TupleType"), placed_type_ = TypeIndex("relax.DTensorType");
  NodeNumbers by_node_;
  std::unordered_map<uint64_t, std::vector<std::pair<Any, int64_t>>> by_hash_;
  std::vector<Any> kept_;
  std::unordered_map<Ints, int64_t, HashInts> alike_;
  int64_t next_ = 0;
};

// The numbers of this process, held by one sweep at a time: calls from Python let other threads run.
class HeldNumbers {
 public:
  HeldNumbers() : lock_(mutex_), numbers(Only()) { numbers.Trim(); }

 private:
  static Numbers& Only() {
    static Numbers& only = *new Numbers;  // never destroyed: TVM may be gone by then
    return only;
  }

  static inline std::mutex mutex_;
  const std::lock_guard<std::mutex> lock_;

 public:
  Numbers& numbers;
};

}  // namespace tvm_distir

#endif  // TVM_DISTIR_FFI_NUMBERS_H_
