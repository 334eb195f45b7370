// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Makes many nodes in one call: to ask for each from Python costs several times what it takes.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "ffi/nodes.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Map;
using tvm::ffi::Shape;
using tvm::ffi::String;

// `count` names that stand in one text, a zero behind each.
std::vector<String> Names(const String& said, size_t count) {
  std::vector<String> found;
  found.reserve(count);
  const std::string_view text(said.data(), said.size());
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\0', at);
    if (end == std::string_view::npos) TVM_FFI_THROW(ValueError) << "a name has no end";
    found.emplace_back(text.data() + at, end - at);
  }
  if (found.size() != count) {
    TVM_FFI_THROW(ValueError) << found.size() << " names, " << count << " are needed";
  }
  return found;
}

void CheckBelow(const Shape& numbers, size_t count) {
  for (const int64_t number : numbers) {
    if (number < 0 || number >= static_cast<int64_t>(count)) {
      TVM_FFI_THROW(IndexError) << number << " is not in [0, " << count << ")";
    }
  }
}

// Variables of the names; the i-th is of type `types[which[i]]`.
Array<Any> MakeVariables(const String& said, const Array<Any>& types, const Shape& which) {
  static const Function make = Function::GetGlobalRequired("ir.Var");
  CheckBelow(which, types.size());
  Array<Any> made;
  made.reserve(static_cast<int64_t>(which.size()));
  size_t i = 0;
  for (const String& name : Names(said, which.size())) {
    made.push_back(make(name, types[which[i++]], nullptr));
  }
  return made;
}

// Entries of `dist.io`: `index`, `name`, and all of `described[which[i]]`.
Array<Any> MakePorts(const String& said, const Shape& index,
                     const Array<Map<String, Any>>& described, const Shape& which) {
  CheckBelow(which, described.size());
  if (index.size() != which.size()) TVM_FFI_THROW(ValueError) << "one index for each is needed";
  Array<Any> made;
  made.reserve(static_cast<int64_t>(which.size()));
  const String index_key("index"), name_key("name");
  size_t i = 0;
  for (const String& name : Names(said, which.size())) {
    Map<String, Any> port;
    port.Set(index_key, index[i]);
    port.Set(name_key, name);
    for (const auto& [key, value] : described[which[i++]]) port.Set(key, value);
    made.push_back(port);
  }
  return made;
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_variables, tvm_distir::MakeVariables);

TVM_FFI_DLL_EXPORT_TYPED_FUNC(make_ports, tvm_distir::MakePorts);
