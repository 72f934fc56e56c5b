#include "compile/explain/step_shape.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "backend/common/step_binding.h"
#include "base/error.h"

namespace tokamak {
namespace {

constexpr int64_t kMostTokens = 1 << 20;

int64_t number_of(std::string_view text) {
  int64_t n = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? n : -1;
}

// Rows of sequence b: the first ones get the remainder.
int64_t rows_of(const StepShape& shape, int64_t b) {
  return shape.tokens / shape.sequences + (b < shape.tokens % shape.sequences ? 1 : 0);
}

int64_t blocks_per_sequence(const GroupEntry& group, const StepShape& shape) {
  return (shape.kv_len + group.block_size - 1) / group.block_size;
}

}  // namespace

const std::vector<int32_t>& step_values(const StepInputs& step, std::string_view name) {
  static const std::vector<int32_t> kNone;
  const StepField* field = find_step_field(name);
  return field ? step.*field->values : kNone;
}

int64_t rows_per_sequence(std::string_view function) {
  if (function == "decode") return 1;
  if (!function.starts_with("verify")) return 0;
  int64_t k = number_of(function.substr(6));
  return k < 1 || k > 64 ? -1 : k + 1;
}

StepShape parse_shape(std::string_view function, const std::vector<std::string>& items) {
  int64_t rows = rows_per_sequence(function);
  if (rows < 0 || (rows == 0 && function != "step"))
    fail(ErrorCode::kInvalidArgument, "--fn {}: unknown function; use step, decode or verify<k>",
         function);
  const char* known = rows == 0 ? "B, T, S and R" : "B and S";
  StepShape s{0, 0, 0, 0, true};
  for (const std::string& item : items) {
    size_t eq = item.find('=');
    std::string name = item.substr(0, eq);
    int64_t* field = name == "B"                ? &s.sequences
                     : name == "S"              ? &s.kv_len
                     : rows == 0 && name == "T" ? &s.tokens
                     : rows == 0 && name == "R" ? &s.logit_rows
                                                : nullptr;
    if (!field || eq == std::string::npos)
      fail(ErrorCode::kInvalidArgument, "--shape {}: {} has the symbols {}, as in B=8,S=4096", item,
           function, known);
    *field = number_of(std::string_view(item).substr(eq + 1));
    if (*field < 1 || *field > kMostTokens)
      fail(ErrorCode::kInvalidArgument, "--shape {}: write a number from 1 to {}", item,
           kMostTokens);
  }
  if (s.sequences == 0) s.sequences = 1;
  if (rows > 0) s.tokens = rows * s.sequences;
  if (s.tokens == 0) s.tokens = std::max<int64_t>(64, s.sequences);
  if (s.tokens < s.sequences || s.sequences > 4096)
    fail(ErrorCode::kInvalidArgument,
         "--shape: {} sequences in a step of {} tokens; B is at most {}", s.sequences, s.tokens,
         std::min<int64_t>(s.tokens, 4096));
  int64_t most = rows_of(s, 0);
  s.kv_len_given = s.kv_len > 0;
  if (!s.kv_len_given) s.kv_len = rows > 0 ? std::max<int64_t>(1024, most) : most;
  if (s.kv_len < most)
    fail(ErrorCode::kInvalidArgument,
         "--shape: S={} is less than the {} tokens that a sequence gets in this step", s.kv_len,
         most);
  if (rows > 0) s.logit_rows = s.tokens;
  if (s.logit_rows == 0) s.logit_rows = s.sequences;
  if (s.logit_rows > s.tokens)
    fail(ErrorCode::kInvalidArgument, "--shape: R={} rows of logits in a step of {} tokens",
         s.logit_rows, s.tokens);
  return s;
}

void fit_context(StepShape& shape, int64_t context) {
  if (!shape.kv_len_given && shape.kv_len > context)
    shape.kv_len = std::max(context, rows_of(shape, 0));
}

StepInputs make_step(const PlanSet& set, std::string_view function, const StepShape& shape) {
  StepInputs step;
  step.function = function;
  step.tables.resize(set.groups.size());
  step.q_start.push_back(0);
  for (int64_t b = 0; b < shape.sequences; ++b) {
    int64_t rows = rows_of(shape, b);
    for (int64_t i = 0; i < rows; ++i) {
      auto at = static_cast<int32_t>(shape.kv_len - rows + i);
      step.ids.push_back(static_cast<int32_t>(step.tokens() % std::max<int64_t>(1, set.vocab)));
      step.pos.push_back(at);
      step.slot.push_back(at);
      step.seq.push_back(static_cast<int32_t>(b));
    }
    step.q_start.push_back(static_cast<int32_t>(step.ids.size()));
    step.kv_len.push_back(static_cast<int32_t>(shape.kv_len));
    step.row.push_back(static_cast<int32_t>(b));
    for (size_t g = 0; g < set.groups.size(); ++g) {
      int64_t blocks = blocks_per_sequence(set.groups[g], shape);
      step.tables[g].stride = static_cast<int32_t>(blocks);
      for (int64_t i = 0; i < blocks; ++i)
        step.tables[g].blocks.push_back(static_cast<int32_t>(b * blocks + i));
    }
  }
  for (const InputEntry& in : set.inputs)
    if (in.name == kSegmentInput)
      step.set_input(kSegmentInput, std::vector<int32_t>(step.ids.size()));
  auto greedy = std::make_shared<SampleSpec>();
  greedy->temperature = 0;
  bool last_rows = shape.logit_rows == shape.sequences && shape.tokens != shape.sequences;
  for (int64_t r = 0; r < shape.logit_rows; ++r) {
    auto index = static_cast<size_t>(r);
    step.out_rows.push_back(last_rows ? step.q_start[index + 1] - 1
                                      : static_cast<int32_t>(shape.tokens - shape.logit_rows + r));
    SampleRow sample;
    sample.position = step.pos[static_cast<size_t>(step.out_rows.back())] + 1;
    sample.spec = greedy;
    if (set.states.empty()) sample.mode = SampleRow::Mode::kHidden;  // an encoder gives vectors
    step.samples.push_back(std::move(sample));
  }
  return step;
}

std::vector<int64_t> blocks_for(const PlanSet& set, const StepShape& shape) {
  std::vector<int64_t> out;
  for (const GroupEntry& g : set.groups)
    out.push_back(shape.sequences * blocks_per_sequence(g, shape));
  return out;
}

size_t plan_for(const PlanSet& set, std::string_view function, const StepShape& shape) {
  if (shape.kv_len > set.context)
    fail(ErrorCode::kOutOfRange, "--shape: sequences of S={} tokens; the plans are for at most {}",
         shape.kv_len, set.context);
  std::vector<int64_t> values;
  for (const SymbolDecl& s : set.symbols)
    values.push_back(s.name == "B"   ? shape.sequences
                     : s.name == "R" ? shape.logit_rows
                                     : shape.tokens);
  int plan = select_plan(set, function, values);
  if (plan >= 0) return static_cast<size_t>(plan);
  std::string limits;
  for (const Plan& p : set.plans)
    if (p.function == function)
      for (const GuardRange& g : p.guard)
        limits += fmt::format("{}{} in {}..{}", limits.empty() ? "" : ", ", g.symbol, g.lo, g.hi);
  if (limits.empty()) {
    std::set<std::string> functions;
    for (const Plan& p : set.plans) functions.insert(p.function);
    fail(ErrorCode::kInvalidArgument, "--fn {}: the model has plans for {} only", function,
         fmt::join(functions, ", "));
  }
  fail(ErrorCode::kOutOfRange, "--shape: no plan of {} supports it; there are plans for {}",
       function, limits);
}

BoundStep bind_step(const PlanSet& set, std::string_view function, const StepShape& shape) {
  plan_for(set, function, shape);  // its errors refer to the shape
  StepBinder binder(set, blocks_for(set, shape), shape.sequences);
  StepInputs step = make_step(set, function, shape);
  BoundStep out{static_cast<size_t>(binder.bind(step)), {}, {}};
  out.step = binder.inputs();
  out.step.ids = step.ids;
  out.step.ids.resize(out.step.pos.size());
  for (size_t i = 0; i < set.symbols.size(); ++i)
    out.symbols[set.symbols[i].name] = binder.symbols()[i];
  return out;
}

}  // namespace tokamak
