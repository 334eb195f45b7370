// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What those need that walk over IR nodes.

#ifndef TVM_DISTIR_FFI_NODES_H_
#define TVM_DISTIR_FFI_NODES_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tvm_distir {

using tvm::ffi::Any;
using tvm::ffi::Object;

using Ints = std::vector<int64_t>;

// Keys of the nodes that TVM 0.27 moved to its common IR, and those that 0.26 has for them.
struct MovedKey {
  std::string_view key, former;
};
inline constexpr MovedKey kMovedKeys[] = {
    {"ir.GenericConst", "relax.expr.Constant"},
    {"ir.StringImm", "relax.expr.StringImm"},
    {"ir.Tuple", "relax.expr.Tuple"},
    {"ir.TupleGetItem", "relax.expr.TupleGetItem"},
};

// Whether this process has a node type of a key.
inline bool HasKey(std::string_view key) {
  const TVMFFIByteArray name = {key.data(), key.size()};
  int32_t index = 0;
  if (TVMFFITypeKeyToIndex(&name, &index) == 0) return true;
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (error != nullptr) TVMFFIObjectDecRef(error);
  return false;
}

// The key that the TVM in use has for a node.
inline std::string_view UsedKey(std::string_view key) {
  for (const MovedKey& moved : kMovedKeys) {
    if (moved.key == key && !HasKey(key)) return moved.former;
  }
  return key;
}

// Number of the node type of a key, in this process.
inline int32_t TypeIndex(std::string_view key) {
  const std::string_view used = UsedKey(key);
  const TVMFFIByteArray name = {used.data(), used.size()};
  int32_t index = 0;
  TVM_FFI_CHECK_SAFE_CALL(TVMFFITypeKeyToIndex(&name, &index));
  return index;
}

// Getter of a field of a node.
struct FieldGetter : tvm::ffi::reflection::FieldGetter {
  FieldGetter(std::string_view key, const char* field)
      : tvm::ffi::reflection::FieldGetter(UsedKey(key), field) {}
};

// Numbers as Python reads them quickest: `numbers_of` in tvm_distir/core/rewriting/native/function_index.py.
inline tvm::ffi::Bytes AsBytes(const Ints& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}

// The node that a value holds; null for a number, a text and None.
inline const Object* Node(const Any& value) { return value.as<Object>(); }

}  // namespace tvm_distir

#endif  // TVM_DISTIR_FFI_NODES_H_
