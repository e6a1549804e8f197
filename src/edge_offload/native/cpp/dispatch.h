// The boxed kernel: every functional operator on the device.
#pragma once
#include "checks.h"
#include "flush.h"
#include "results.h"
#include "suppose.h"
#include "watching.h"

namespace edge_offload {

inline void note_writes(const c10::OperatorHandle& op, const Stack& stack, size_t first) {
  const auto& facts = facts_of(op);
  const auto write = [&](const Tensor& t) { if (t.defined() && on_device(t)) written(t.storage().unsafeGetStorageImpl()); };
  const auto all = [&](const IValue& v) {
    if (v.isTensor()) write(v.toTensor());
    else if (v.isList()) for (const IValue& item : v.toListRef()) if (item.isTensor()) write(item.toTensor());
  };
  for (auto position : facts.written) all(stack[first + position]);
  if (facts.statistics >= 0)
    for (int i = 0; i < 2; ++i) all(stack[first + facts.statistics + i]);
}

inline void boxed(const c10::OperatorHandle& op, Stack* stack) {
  if (state().local) { compute(op, stack); return; }
  Hold hold;
  auto& s = state();
  forget_if_many();
  const auto& schema = op.schema();
  if (torch::jit::tracer::isTracing()) check_traceable(schema);
  const size_t arguments = schema.arguments().size(), first = stack->size() - arguments;
  Key key(&schema);
  key.apart = facts_of(op).steps;
  for (size_t i = 0; i < arguments; ++i) key.value((*stack)[first + i], schema.name().c_str());
  ++s.count_calls;
  auto* entry = lookup(key);
  Surveyed surveyed;
  Supposed supposed;
  if (!entry) {
    check_version(op);
    check_host_operands(key, schema);
    check_written(schema, *stack, first);
    const bool dynamic = has_dynamic_results(op, *stack, first);
    std::vector<Return> returns;
    bool inferred = !dynamic && schema.returns().empty() && facts_of(op).writes;  // no results
    if (!inferred && !dynamic && plain(key) && !s.inference.distrusted.count(&schema)) {
      if (s.inference.survey) surveyed.guess(op, *stack, first, key);
      else if (s.inference.trusted.count(&schema)) {
        returns = MetaRun().run(op, *stack, first, key);  // raises the errors of eager execution
        inferred = true;
      } else if (const auto match = s.inference.exact.find(&schema); match != s.inference.exact.end()) {
        const auto layouts = layouts_needed(key);
        for (int way = 0; way < kWays && !inferred; ++way)
          inferred = (match->second[way] & layouts) == layouts && infer_results(op, *stack, first, key, way, &returns);
      }
      if (!inferred && !s.inference.survey) inferred = supposed.infer_results(op, *stack, first, key, &returns);
    }
    entry = intern(key.view(), c10::toString(op.operator_name()));
    entry->dynamic = dynamic;
    entry->cached = entry->claimed = inferred;
    entry->returns = std::move(returns);
  }
  if (entry->cached) check_room(new_bytes(entry->returns));
  if (s.inference.compared.used) note_writes(op, *stack, first);
  note(entry, key);
  if (entry->cached) {
    ++s.tables.count_hits;
    give_results(entry->returns, key, stack, arguments, true);
    after_call();
    return;
  }
  std::vector<Return> returns;
  const auto generation = s.tables.generation;
  const bool dynamic = entry->dynamic;
  flush(dynamic ? kDynamic : kInfer, [&](const py::object& result) { returns = parse_returns(result, schema); });
  surveyed.judge(returns);
  supposed.judge(returns);
  give_results(returns, key, stack, arguments, false);
  const int64_t bytes = new_bytes(returns), in_use = s.taken - s.given;
  if (!dynamic && generation == s.tables.generation) { entry->returns = std::move(returns); entry->cached = true; }  // else the entry was evicted
  if (in_use <= s.room.limit) return;
  torch::jit::drop(*stack, schema.returns().size());  // these results exist on the server, too
  s.room.refuse(bytes, in_use - bytes);
}

}  // namespace edge_offload
