// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Writes bindings of calls once more, with other variables and other types: many in one call.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ffi/nodes.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Shape;

// Getters of the fields read here, and the constructors, found once.
struct Fields {
  FieldGetter var{"relax.expr.Binding", "var"}, value{"relax.expr.VarBinding", "value"};
  FieldGetter name{"ir.Var", "name"}, op{"ir.Call", "op"}, args{"ir.Call", "args"};
  FieldGetter attrs{"ir.Call", "attrs"}, type_args{"ir.Call", "ty_args"};
  int32_t binding = TypeIndex("relax.expr.VarBinding"), call = TypeIndex("ir.Call");
  int32_t op_node = TypeIndex("ir.Op"), hidden = TypeIndex("relax.expr.DataflowVar");
  int32_t shape = TypeIndex("relax.expr.ShapeExpr"), integer = TypeIndex("ir.IntImm");
  int32_t real = TypeIndex("ir.FloatImm"), text = TypeIndex("ir.StringImm");
  int32_t constant = TypeIndex("ir.GenericConst");
  Function make_var = Function::GetGlobalRequired("ir.Var");
  Function make_hidden = Function::GetGlobalRequired("relax.DataflowVar");
  Function make_call = Function::GetGlobalRequired("ir.Call");
  Function make_binding = Function::GetGlobalRequired("relax.VarBinding");

  static const Fields& Get() {
    static const Fields fields;
    return fields;
  }
};

// Writes the bindings of one function block by block.
class Rewriter {
 public:
  // `constant(old, number)` gives what stands for a constant in a binding of the type of a number.
  explicit Rewriter(Function constant) : constant_(std::move(constant)) {}

  // From now on the variables of these handles are read as other expressions.
  void Know(const Shape& handles, const Array<Any>& expressions) {
    if (handles.size() != expressions.size()) {
      TVM_FFI_THROW(ValueError) << "an expression for each handle is needed";
    }
    for (size_t i = 0; i < handles.size(); ++i) known_[Key(handles[i])] = expressions[i];
  }

  // Begins a block. The variable of binding i gets the type `types[which[i]]`; where that is -1 the
  // binding is left to the caller. In a dataflow block it hides what was hidden before, and the
  // variables of the handles `inside`.
  void Open(const Array<Any>& bindings, const Array<Any>& types, const Shape& which, bool dataflow,
            const Shape& inside) {
    if (which.size() != bindings.size()) TVM_FFI_THROW(ValueError) << "a type for each binding";
    for (const int64_t number : which) {
      if (number < -1 || number >= static_cast<int64_t>(types.size())) {
        TVM_FFI_THROW(IndexError) << number << " is not in [-1, " << types.size() << ")";
      }
    }
    bindings_ = bindings, types_ = types, which_ = which, dataflow_ = dataflow;
    inside_.clear();
    for (const int64_t handle : inside) inside_.insert(Key(handle));
  }

  // Writes the bindings from a first one on, up to the first that cannot be written: variables and
  // bindings in turn.
  Array<Any> Write(int64_t first) {
    if (first < 0) TVM_FFI_THROW(IndexError) << "no binding " << first;
    std::vector<Any> made;
    for (size_t i = first; i < which_.size() && which_[i] >= 0; ++i) {
      const Any binding = bindings_[static_cast<int64_t>(i)];
      if (!WriteOne(Node(binding), which_[i], &made)) break;
    }
    return Array<Any>(made.begin(), made.end());
  }

 private:
  static const Object* Key(int64_t handle) { return reinterpret_cast<const Object*>(handle); }

  bool WriteOne(const Object* binding, int64_t number, std::vector<Any>* made) {
    if (binding == nullptr || binding->type_index() != fields_.binding) return false;
    const Any value = fields_.value(binding), old = fields_.var(binding);
    const Object* call = Node(value);
    if (call == nullptr || call->type_index() != fields_.call) return false;
    const Any op = fields_.op(call);
    if (Node(op) == nullptr || Node(op)->type_index() != fields_.op_node) return false;
    std::vector<Any> args;
    for (const Any& arg : fields_.args(call).cast<Array<Any>>()) {
      const auto found = known_.find(Node(arg));
      if (found != known_.end()) {
        args.push_back(found->second);
      } else if (IsLiteral(Node(arg))) {
        args.push_back(arg);
      } else if (Node(arg) != nullptr && Node(arg)->type_index() == fields_.constant) {
        args.push_back(constant_(arg, number));
      } else {
        return false;
      }
    }
    const Any type = types_[number];
    const Any written = fields_.make_call(type, op, Array<Any>(args.begin(), args.end()),
                                          fields_.attrs(call), fields_.type_args(call), nullptr);
    const bool hides = dataflow_ && (Node(old)->type_index() == fields_.hidden ||
                                     inside_.count(Node(old)) > 0);
    const Function& make = hides ? fields_.make_hidden : fields_.make_var;
    const Any variable = make(fields_.name(Node(old)), type, nullptr);
    made->push_back(variable);
    made->push_back(fields_.make_binding(variable, written, nullptr));
    known_[Node(old)] = variable;
    return true;
  }

  // Whether an argument holds no tensor and stays as it is.
  bool IsLiteral(const Object* node) const {
    if (node == nullptr) return false;
    const int32_t type = node->type_index();
    return type == fields_.shape || type == fields_.integer || type == fields_.real ||
           type == fields_.text;
  }

  const Fields& fields_ = Fields::Get();
  Function constant_;
  Array<Any> bindings_, types_;
  Shape which_;
  bool dataflow_ = false;
  std::unordered_set<const Object*> inside_;
  std::unordered_map<const Object*, Any> known_;
};

Array<Function> NewRewriter(Function constant) {
  const auto rewriter = std::make_shared<Rewriter>(std::move(constant));
  return {Function::FromTyped([rewriter](const Shape& handles, const Array<Any>& expressions) {
            rewriter->Know(handles, expressions);
          }),
          Function::FromTyped([rewriter](const Array<Any>& bindings, const Array<Any>& types,
                                         const Shape& which, bool dataflow, const Shape& inside) {
            rewriter->Open(bindings, types, which, dataflow, inside);
          }),
          Function::FromTyped([rewriter](int64_t first) { return rewriter->Write(first); })};
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rewriter, tvm_distir::NewRewriter);
