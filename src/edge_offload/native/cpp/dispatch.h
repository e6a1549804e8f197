// The boxed kernel: every functional operator on the device.
#pragma once
#include "checks.h"
#include "flush.h"
#include "results.h"
#include "shapes.h"
#include "watching.h"

namespace edge_offload {

// Meta kernels written in Python: right where operands and results are in rows (device/conformance/shapes.py).
inline bool try_meta(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key, std::vector<Return>* returns) {
  const Busy busy;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  try { *returns = MetaRun().run(op, stack, first, key); } catch (const std::exception&) { return false; }
  for (const auto& r : *returns)
    for (const auto& out : r.outs) {
      int64_t stride = 1;
      for (size_t i = out.sizes.size(); i-- > 0; stride *= std::max<int64_t>(out.sizes[i], 1))
        if (out.strides[i] != stride) return false;
    }
  return true;
}

inline void boxed(const c10::OperatorHandle& op, Stack* stack) {
  if (state().here) { compute(op, stack); return; }
  Hold hold;
  auto& s = state();
  forget_if_many();
  const auto& schema = op.schema();
  if (torch::jit::tracer::isTracing()) check_traceable(schema);
  const size_t arguments = schema.arguments().size(), first = stack->size() - arguments;
  Key key(&schema);
  for (size_t i = 0; i < arguments; ++i) key.value((*stack)[first + i], schema.name().c_str());
  ++s.count_calls;
  auto* entry = lookup(key);
  if (!entry) {
    check_version(op);
    check_host_operands(key, schema);
    check_written(schema, *stack, first);
    const bool dynamic = has_dynamic_results(op, *stack, first);
    std::vector<Return> returns;
    bool here = !dynamic && s.trusted.count(&schema) && plain(key);
    if (here) returns = MetaRun().run(op, *stack, first, key);  // raises what eager execution would raise
    else if (!dynamic && plain(key)) {
      const auto found = s.row_major.find(&schema);
      here = found != s.row_major.end() && in_rows(key, found->second) && try_meta(op, *stack, first, key, &returns);
    }
    entry = intern(key.view(), c10::toString(op.operator_name()));
    entry->dynamic = dynamic;
    entry->known = entry->claimed = here;
    entry->returns = std::move(returns);
  }
  if (entry->known) check_room(new_bytes(entry->returns));
  note(entry, key);
  if (entry->known) {
    ++s.count_hits;
    give_results(entry->returns, key, stack, arguments, true);
    after_call();
    return;
  }
  std::vector<Return> returns;
  flush(entry->dynamic ? kDynamic : kInfer, [&](const py::object& result) { returns = parse_returns(result, schema); });
  give_results(returns, key, stack, arguments, false);
  const int64_t bytes = new_bytes(returns), held = s.taken - s.given;
  if (!entry->dynamic) { entry->returns = std::move(returns); entry->known = true; }
  if (held <= s.room.limit) return;
  torch::jit::drop(*stack, schema.returns().size());  // the server knows of what is dropped here
  s.room.refuse(bytes, held - bytes);
}

}  // namespace edge_offload
