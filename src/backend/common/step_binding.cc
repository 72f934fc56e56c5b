#include "backend/common/step_binding.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/channels.h"
#include "base/error.h"

namespace tokamak {
namespace {

template <class... Args>
[[noreturn]] void wrong_step(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInternal,
              fmt::format("step: {}", fmt::format(format, std::forward<Args>(args)...)));
}

size_t index(int64_t i) { return static_cast<size_t>(i); }

// How many rows per sequence a specialised function has: T bound to c * B gives c.
int64_t multiple_of_b(const std::string& text) {
  SymExpr expr = SymExpr::parse(text), b = SymExpr::symbol("B");
  int64_t c = expr.eval({{"B", 1}});
  return expr == b * SymExpr(c) ? c : 0;
}

// The scale and offset of scale * symbol + offset.
std::optional<std::pair<int64_t, int64_t>> affine(const SymExpr& expr, const std::string& symbol) {
  std::vector<std::string> symbols = expr.symbols();
  if (symbols.size() != 1 || symbols[0] != symbol) return std::nullopt;
  int64_t offset = expr.eval({{symbol, 0}}), scale = expr.eval({{symbol, 1}}) - offset;
  if (scale < 1 || expr != SymExpr(scale) * SymExpr::symbol(symbol) + SymExpr(offset))
    return std::nullopt;
  return std::pair{scale, offset};
}

int64_t product(std::span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

}  // namespace

StepBinder::StepBinder(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows)
    : plans_(plans),
      checker_(plans, std::move(blocks), max_rows),
      compiles_at_load_(compile_count()),
      log_guards_(log::channel_enabled("guards")) {
  std::vector<std::string> order;
  for (const SymbolDecl& symbol : plans.symbols) order.push_back(symbol.name);
  for (const InputEntry& in : plans.inputs) {
    Source source{find_step_field(in.name), in.name, in.dtype, {}};
    if (source.field && in.dtype != DType::kI32)
      fail(ErrorCode::kUnsupported, "input {} has type {}; steps provide it as i32", in.name,
           dtype_name(in.dtype));
    for (const SymExpr& d : in.dims) source.dims.emplace_back(d, order);
    sources_.push_back(std::move(source));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    solutions_.push_back(solve(order[i]));
    for (auto [name, at] : {std::pair{"T", &t_}, {"B", &b_}, {"R", &r_}, {"M", &m_}})
      if (order[i] == name) *at = static_cast<int>(i);
  }
  values_.resize(order.size());
  own_values_.resize(order.size());
  for (const Plan& plan : plans.plans) facts_.push_back(facts_of(plan));
  auto names = std::make_shared<std::vector<std::string>>();
  for (const Plan& plan : plans.plans) {
    names->push_back(plan_name(plan));
    if (log_guards_)
      log::channel("guards", fmt::format("plan {}: {}", names->size() - 1, names->back()));
  }
  stats_.names = std::move(names);
}

// An axis of an input whose extent gives the symbol's value: a field of every step, or an input of
// the plans.
StepBinder::Solution StepBinder::solve(const std::string& symbol) const {
  for (const StepField& field : step_fields())
    for (size_t axis = 0; axis < field.dims.size() && !field.dims[axis].empty(); ++axis)
      if (auto found = affine(SymExpr::parse(field.dims[axis]), symbol))
        return {
            {&field, std::string(field.name), DType::kI32, {}}, axis, found->first, found->second};
  for (size_t i = 0; i < plans_.inputs.size(); ++i)
    for (size_t axis = 0; axis < plans_.inputs[i].dims.size(); ++axis)
      if (auto found = affine(plans_.inputs[i].dims[axis], symbol))
        return {sources_[i], axis, found->first, found->second};
  fail(ErrorCode::kUnsupported, "no step input gives the symbol {} its value", symbol);
}

StepBinder::Facts StepBinder::facts_of(const Plan& plan) const {
  Facts facts;
  facts.pads.resize(plans_.symbols.size());
  facts.least.resize(plans_.symbols.size());
  for (const auto& [symbol, value] : plan.bound_symbols) {
    if (symbol == "T") facts.rows_per_sequence = multiple_of_b(value);
    if (symbol == "R") facts.all_rows_out = true;
  }
  for (const GuardRange& g : plan.guard) {
    if (g.symbol == "B") facts.most_sequences = g.hi;
    for (size_t i = 0; i < plans_.symbols.size(); ++i)
      if (plans_.symbols[i].name == g.symbol && g.pad > 0) {
        facts.pads[i] = {g.pad, g.multiple};
        facts.least[i] = g.lo;
        facts.bucket = true;
      }
  }
  return facts;
}

const StepTensor* StepBinder::find_tensor(const StepInputs& step, std::string_view name) const {
  for (const StepTensor& t : step.inputs)
    if (t.name == name) return &t;
  return nullptr;
}

// The extent of an axis of an input; 0 if the step does not have the input.
int64_t StepBinder::extent(const StepInputs& step, const Source& source, size_t axis) const {
  if (source.field) {
    if (axis == 1) return step.mask_width;
    auto values = source.field->values;
    if (values == &StepInputs::ids || values == &StepInputs::mask) values = &StepInputs::pos;
    return static_cast<int64_t>((step.*values).size());
  }
  const StepTensor* tensor = find_tensor(step, source.name);
  return tensor && axis < tensor->dims.size() ? tensor->dims[axis] : 0;
}

void StepBinder::set_symbols(const StepInputs& step) {
  for (size_t i = 0; i < solutions_.size(); ++i) {
    const Solution& s = solutions_[i];
    int64_t found = extent(step, s.source, s.axis);
    values_[i] = found <= s.offset ? 0 : (found - s.offset) / s.scale;
  }
}

void StepBinder::check_tensors(const StepInputs& step) const {
  for (const StepTensor& t : step.inputs)
    if (std::any_of(t.dims.begin(), t.dims.end(), [](int64_t d) { return d < 0; }) ||
        t.bytes.size() != dtype_bytes(t.dtype, product(t.dims)))
      wrong_step("input {} has {} bytes for {} elements of {}", t.name, t.bytes.size(),
                 product(t.dims), dtype_name(t.dtype));
  for (const Source& source : sources_) {
    const StepTensor* t = source.field ? nullptr : find_tensor(step, source.name);
    if (t == nullptr) continue;
    bool same = t->dtype == source.dtype && t->dims.size() == source.dims.size();
    for (size_t i = 0; same && i < t->dims.size(); ++i)
      same = t->dims[i] == source.dims[i].eval(values_);
    if (!same)
      wrong_step("input {} of {} with dimensions [{}] is not what the plans read", t->name,
                 dtype_name(t->dtype), fmt::join(t->dims, ", "));
  }
}

StepBinder::Shape StepBinder::shape_of(const StepInputs& step) const {
  return {static_cast<int64_t>(step.pos.size()), step.sequences(),
          static_cast<int64_t>(step.out_rows.size()), step.mask_width};
}

StepBinder::Shape StepBinder::padded_shape(const Facts& facts, const StepInputs& step) const {
  Shape shape = shape_of(step);
  auto padded = [&](int symbol, int64_t value) {
    return symbol < 0 ? value : facts.pads[index(symbol)].apply(value);
  };
  int64_t tokens = padded(t_, shape.tokens);
  shape.sequences = padded(b_, shape.sequences);
  if (facts.rows_per_sequence > 0)
    tokens = facts.rows_per_sequence * shape.sequences;
  else if (tokens > shape.tokens)  // rows of padding belong to a sequence of their own
    shape.sequences = std::max(shape.sequences, step.sequences() + 1);
  shape.tokens = tokens;
  shape.outputs = facts.all_rows_out ? tokens : padded(r_, shape.outputs);
  shape.mask_width = padded(m_, shape.mask_width);
  return shape;
}

// A specialised plan may rely on its rows being laid out as its facts say.
bool StepBinder::admits(size_t plan, const StepInputs& step) const {
  const Facts& facts = facts_[plan];
  if (facts.rows_per_sequence > 0)
    for (size_t b = 0; b < step.q_start.size(); ++b)
      if (step.q_start[b] != static_cast<int64_t>(b) * facts.rows_per_sequence) return false;
  if (facts.most_sequences > 0 && padded_shape(facts, step).sequences > facts.most_sequences)
    return false;
  if (facts.all_rows_out) {
    if (static_cast<int64_t>(step.out_rows.size()) != step.tokens()) return false;
    for (size_t r = 0; r < step.out_rows.size(); ++r)
      if (step.out_rows[r] != static_cast<int64_t>(r)) return false;
  }
  return true;
}

// The function's own plan, the most specific first; then the general function's.
int StepBinder::choose(const StepInputs& step) const {
  for (std::string_view function : {std::string_view(step.function), std::string_view("step")})
    for (bool buckets : {true, false}) {
      int plan = select_plan(plans_, function, values_, buckets);
      if (plan >= 0 && admits(static_cast<size_t>(plan), step)) return plan;
    }
  return -1;
}

// Copies what plans read; vectors keep their capacity. Tables stay as they are: nothing looks up a
// block of a sequence of length 0.
void StepBinder::pad(const StepInputs& step, const Facts& facts, const Shape& shape) {
  const Shape own = shape_of(step);
  padded_.pos = step.pos;
  padded_.seq = step.seq;
  padded_.slot = step.slot;
  padded_.q_start = step.q_start;
  padded_.kv_len = step.kv_len;
  padded_.out_rows = step.out_rows;
  padded_.tables = step.tables;
  padded_.inputs = step.inputs;
  padded_.ids.resize(index(shape.tokens));  // see ids()
  padded_.pos.resize(index(shape.tokens), 0);
  padded_.slot.resize(index(shape.tokens), -1);
  padded_.mask_width = static_cast<int32_t>(shape.mask_width);
  padded_.mask.assign(index(shape.tokens * shape.mask_width), 0);
  for (int64_t t = 0; t < own.tokens; ++t)
    std::copy_n(step.mask.begin() + t * own.mask_width, own.mask_width,
                padded_.mask.begin() + t * shape.mask_width);
  for (int64_t b = own.sequences, at = own.tokens; b < shape.sequences; ++b) {
    int64_t rows = facts.rows_per_sequence > 0 ? facts.rows_per_sequence : shape.tokens - at;
    at += rows;
    padded_.seq.resize(index(at), static_cast<int32_t>(b));
    padded_.q_start.push_back(static_cast<int32_t>(at));
    padded_.kv_len.push_back(0);
  }
  for (int64_t r = own.outputs; r < shape.outputs; ++r)
    padded_.out_rows.push_back(facts.all_rows_out ? static_cast<int32_t>(r) : 0);
}

// Zeros after the rows of named inputs whose first axis has grown.
void StepBinder::pad_tensors(const StepInputs& step) {
  for (const Source& source : sources_) {
    if (source.field || !find_tensor(step, source.name)) continue;
    StepTensor* tensor = nullptr;
    for (StepTensor& t : padded_.inputs)
      if (t.name == source.name) tensor = &t;
    for (size_t i = 0; i < tensor->dims.size(); ++i) {
      int64_t extent = source.dims[i].eval(values_);
      if (i > 0 && extent != tensor->dims[i])
        wrong_step("input {} can be padded along its first axis only", source.name);
      tensor->dims[i] = extent;
    }
    tensor->bytes.resize(dtype_bytes(tensor->dtype, product(tensor->dims)));
  }
}

void StepBinder::count(const StepInputs& step, size_t plan) {
  bool bucketed = false;  // steps of this function and size are meant to be padded
  for (size_t i = 0; i < facts_.size(); ++i)
    bucketed =
        bucketed || (facts_[i].bucket && plans_.plans[i].function == plans_.plans[plan].function &&
                     std::equal(own_values_.begin(), own_values_.end(), facts_[i].least.begin(),
                                [](int64_t value, int64_t least) { return value >= least; }));
  if (plan < stats_.steps.size()) ++stats_.steps[plan];
  if (plans_.plans[plan].function != step.function || (bucketed && !facts_[plan].bucket))
    ++stats_.fallbacks;
  stats_.rows += step.tokens();
  stats_.padded_rows += padded_shape(facts_[plan], step).tokens - step.tokens();
  stats_.compiles = compile_count() - compiles_at_load_;
  if (!log_guards_ || logged_plan_ == static_cast<int>(plan)) return;
  logged_plan_ = static_cast<int>(plan);
  log::channel("guards",
               fmt::format("{} with T={} B={} R={}: plan {}, {}", step.function, step.tokens(),
                           step.sequences(), step.out_rows.size(), plan, (*stats_.names)[plan]));
}

void StepBinder::apply_bucket(const StepInputs& own, const Facts& facts, const Shape& shape) {
  pad(own, facts, shape);
  for (size_t i = 0; i < values_.size(); ++i) values_[i] = facts.pads[i].apply(values_[i]);
  for (auto [symbol, value] : {std::pair{t_, shape.tokens},
                               {b_, shape.sequences},
                               {r_, shape.outputs},
                               {m_, shape.mask_width}})
    if (symbol >= 0) values_[index(symbol)] = value;
  pad_tensors(own);
  inputs_ = &padded_;
}

int StepBinder::bind(const StepInputs& step, size_t phase) {
  if (phase == 0) checker_.check_step(step);
  const StepInputs& own = *(phase_ = &cutter_.cut(step, phase));
  checker_.check_phase(own, cutter_.first_output());
  set_symbols(own);
  check_tensors(own);
  own_values_ = values_;
  inputs_ = &own;
  int plan = choose(own);
  if (plan < 0)
    fail(ErrorCode::kOutOfRange, "no plan for {} tokens of {} sequences with {} outputs ({})",
         own.tokens(), own.sequences(), own.out_rows.size(), own.function);
  count(own, index(plan));
  const Facts& facts = facts_[index(plan)];
  if (facts.bucket) apply_bucket(own, facts, padded_shape(facts, own));
  ids_.assign(own.ids.begin(), own.ids.end());
  ids_.resize(inputs_->pos.size(), 0);  // rows of padding have id 0
  return plan;
}

void StepBinder::bind_padding(size_t plan, int64_t sequences) {
  const Facts& facts = facts_[plan];
  TK_CHECK(facts.rows_per_sequence == 1 && facts.all_rows_out, "{} is not for one row per sequence",
           plan_name(plans_.plans[plan]));
  nothing_.function = plans_.plans[plan].function;
  nothing_.q_start = {0};
  nothing_.tables.assign(plans_.groups.size(), {{}, 1});
  nothing_.mask_width = m_ >= 0 ? 1 : 0;
  phase_ = &nothing_;
  set_symbols(nothing_);
  own_values_ = values_;
  apply_bucket(nothing_, facts, {sequences, sequences, sequences, nothing_.mask_width});
  ids_.assign(index(sequences), 0);
}

InputView StepBinder::input(size_t i) const {
  const Source& source = sources_[i];
  if (source.field) {
    const std::vector<int32_t>& values =
        source.field->values == &StepInputs::ids ? ids_ : inputs_->*source.field->values;
    return {DType::kI32, values.data(), static_cast<int64_t>(values.size())};
  }
  const StepTensor* tensor = find_tensor(*inputs_, source.name);
  if (tensor == nullptr)
    wrong_step("{} reads the input {}, which the step does not have", inputs_->function,
               source.name);
  return {tensor->dtype, tensor->bytes.data(), product(tensor->dims)};
}

}  // namespace tokamak
