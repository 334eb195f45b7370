// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Drops the bindings that nobody reads.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ffi/nodes.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::ObjectRef;
using tvm::ffi::Shape;

// Getters of the fields read here, found once.
struct Fields {
  FieldGetter var{"relax.expr.Binding", "var"}, value{"relax.expr.VarBinding", "value"};
  FieldGetter cast_value{"relax.expr.MatchCast", "value"};
  FieldGetter op{"ir.Call", "op"}, args{"ir.Call", "args"}, fields{"ir.Tuple", "fields"};
  FieldGetter whole{"ir.TupleGetItem", "tuple_value"};
  int32_t cast = TypeIndex("relax.expr.MatchCast"), call = TypeIndex("ir.Call");
  int32_t tuple = TypeIndex("ir.Tuple"), item = TypeIndex("ir.TupleGetItem");
  int32_t variable = TypeIndex("ir.Var"), hidden = TypeIndex("relax.expr.DataflowVar");
  int32_t branch = TypeIndex("relax.expr.If");

  static const Fields& Get() {
    static const Fields fields;
    return fields;
  }

  // What a binding binds.
  Any Value(const Object* binding) const {
    return (binding->type_index() == cast ? cast_value : value)(binding);
  }
};

int32_t TypeOf(const Object* node) { return node == nullptr ? 0 : node->type_index(); }

class Pruner {
 public:
  // `is_pure(value)` and `variables(value)` are asked about what stands in an `If`, and the first
  // once for each op or function that is called.
  Pruner(Function is_pure, Function variables)
      : is_pure_(std::move(is_pure)), variables_(std::move(variables)) {}

  // The blocks without pure bindings that nothing reads, and whether all that is left is pure.
  Array<Any> Run(const Array<Array<Any>>& blocks, const Shape& dataflow, const Any& result) {
    static const Function hiding = Function::GetGlobalRequired("relax.DataflowBlock");
    static const Function plain = Function::GetGlobalRequired("relax.BindingBlock");
    if (blocks.size() != dataflow.size()) TVM_FFI_THROW(ValueError) << "a flag for each block";
    AddReads(result);
    std::vector<Any> out;
    bool pure = true;
    for (size_t b = blocks.size(); b-- > 0;) {
      std::vector<Any> kept;
      const Array<Any> bindings = blocks[b];
      for (size_t i = bindings.size(); i-- > 0;) {
        const Any binding = bindings[i];
        const Any value = fields_.Value(Node(binding));
        const bool clean = IsPure(value);
        if (clean && read_.count(Node(fields_.var(Node(binding)))) == 0) continue;
        pure = pure && clean;
        AddReads(value);
        kept.push_back(binding);
      }
      if (kept.empty()) continue;
      std::reverse(kept.begin(), kept.end());
      out.push_back((dataflow[b] ? hiding : plain)(Array<Any>(kept.begin(), kept.end()), nullptr));
    }
    return {Array<Any>(out.rbegin(), out.rend()), pure};
  }

 private:
  bool IsPure(const Any& value) {
    const int32_t type = TypeOf(Node(value));
    if (type == fields_.branch) return is_pure_(value).cast<bool>();
    if (type != fields_.call) return true;
    const Any op = fields_.op(Node(value));
    const auto [known, is_new] = pure_.try_emplace(Node(op), false);
    if (is_new) known->second = is_pure_(value).cast<bool>();
    return known->second;
  }

  // Notes the variables that a value of normal form reads.
  void AddReads(const Any& value) {
    const Object* node = Node(value);
    const int32_t type = TypeOf(node);
    if (type == fields_.variable || type == fields_.hidden) {
      read_.insert(node);
    } else if (type == fields_.call) {
      for (const Any& part : fields_.args(node).cast<Array<Any>>()) AddReads(part);
    } else if (type == fields_.tuple) {
      for (const Any& part : fields_.fields(node).cast<Array<Any>>()) AddReads(part);
    } else if (type == fields_.item) {
      AddReads(fields_.whole(node));
    } else if (type == fields_.branch) {
      for (const Any& used : variables_(value).cast<Array<Any>>()) read_.insert(Node(used));
    }
  }

  const Fields& fields_ = Fields::Get();
  Function is_pure_, variables_;
  std::unordered_set<const Object*> read_;
  std::unordered_map<const Object*, bool> pure_;  // by what is called
};

Array<Any> Prune(const Array<Array<Any>>& blocks, const Shape& dataflow, const Any& result,
                 Function is_pure, Function variables) {
  return Pruner(std::move(is_pure), std::move(variables)).Run(blocks, dataflow, result);
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(prune, tvm_distir::Prune);
