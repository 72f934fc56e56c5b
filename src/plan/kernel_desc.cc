#include "plan/kernel_desc.h"

#include <algorithm>

#include "base/error.h"
#include "base/text_cursor.h"
#include "plan/plan.h"

namespace tokamak {
namespace {

// Reads the text form of a pattern.
class PatternParser : private TextCursor {
 public:
  explicit PatternParser(std::string_view text) : TextCursor(text) {}

  KernelPattern run() {
    KernelPattern p;
    if (peek('[')) {
      p.before = op_list();
      arrow();
      p.region = true;
    }
    anchor(p);
    if (!at_end() && peek('-')) {
      arrow();
      p.after = op_list();
      p.region = true;
    }
    if (!at_end()) companion(p);
    if (!at_end()) bad("unexpected text");
    if (p.kind == KernelPattern::Anchor::kLoop) p.region = true;
    return p;
  }

 private:
  void need(char c) {
    if (!take(c)) bad(fmt::format("'{}' is missing", c));
  }
  void arrow() {
    need('-');
    need('>');
  }
  std::string name() {
    std::string_view found = word();
    if (found.empty()) bad("expected a name");
    return std::string(found);
  }
  std::vector<std::string> op_list() {
    std::vector<std::string> out;
    need('[');
    while (!take(']')) out.push_back(name());
    return out;
  }

  void anchor(KernelPattern& p) {
    if (take('*')) {
      p.kind = KernelPattern::Anchor::kAny;
      return;
    }
    p.op = name();
    if (p.op == "loop" && !peek('(')) {
      p.kind = KernelPattern::Anchor::kLoop;
      p.op.clear();
      return;
    }
    need('(');
    while (!take(')')) {
      if (p.open) bad("\"...\" must be the last operand");
      if (take('.')) {
        need('.');
        need('.');
        p.open = true;
      } else {
        p.operands.push_back(operand());
      }
      if (!peek(')')) need(',');
    }
    p.several = take('+');
    p.region = p.region || p.several;
  }

  OperandPattern operand() {
    OperandPattern out;
    if (take('*')) return out;
    std::string type = name();
    if (type == "weight") {
      out.weight = true;
      if (take('*')) return out;
      type = name();
    }
    for (;; type = name()) {
      auto dtype = dtype_from_name(type);
      if (!dtype) bad("unknown element type");
      out.dtypes.push_back(*dtype);
      if (!take('|')) return out;
    }
  }

  void companion(KernelPattern& p) {
    if (name() != "with") bad("expected \"with\"");
    p.companion = name();
    need('(');
    do p.companion_shares.push_back(static_cast<size_t>(std::stoul(name())));
    while (take(','));
    need(')');
  }

  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "kernel pattern \"{}\", at {}: {}", text_, pos_, what);
  }
};

bool listed(const std::vector<std::string>& ops, std::string_view op) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

}  // namespace

bool KernelPattern::takes_before(std::string_view o) const { return listed(before, o); }
bool KernelPattern::takes_after(std::string_view o) const { return listed(after, o); }

KernelPattern parse_pattern(std::string_view text) { return PatternParser(text).run(); }

bool kernel_matches(const KernelPattern& pattern, std::string_view op,
                    std::span<const DType> operands, std::span<const bool> weight) {
  if (pattern.kind == KernelPattern::Anchor::kAny) return true;
  if (pattern.kind == KernelPattern::Anchor::kLoop || pattern.op != op) return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i >= pattern.operands.size()) return pattern.open;
    const OperandPattern& want = pattern.operands[i];
    if (want.weight && i < weight.size() && !weight[i]) return false;
    if (!want.dtypes.empty() &&
        std::find(want.dtypes.begin(), want.dtypes.end(), operands[i]) == want.dtypes.end())
      return false;
  }
  return true;
}

bool KernelDesc::stores(DType type) const {
  return std::find(out_types.begin(), out_types.end(), type) != out_types.end();
}

bool isa_has(std::string_view isa, std::string_view needs) {
  auto next = [](std::string_view& list) {
    std::string_view word = list.substr(0, list.find('+'));
    list.remove_prefix(std::min(word.size() + 1, list.size()));
    return word;
  };
  while (!needs.empty()) {
    std::string_view feature = next(needs), rest = isa;
    bool found = false;
    while (!rest.empty() && !found) found = next(rest) == feature;
    if (!found) return false;
  }
  return true;
}

double roofline_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  double compute = 0, memory = 0;
  for (const OpWork& op : work.ops) {
    bool integer = op.activations == DType::kQ8A;
    compute += op.flops > 0 ? op.flops / (integer ? machine.i8_ops : machine.f32_flops)
                            : op.vector_ops / machine.vector_ops;
  }
  double far = machine.level_of(work.all_weight_bytes / 2).bandwidth;
  for (const auto* list : {&work.in, &work.out})
    for (const ValueWork& v : *list)
      memory += v.bytes / (v.weight ? far : machine.level_of(v.bytes).bandwidth);
  // What stays inside is free while a row of all of it fits the nearest level.
  const MachineLevel& rows = machine.level_of(work.inside_row_bytes / 2);
  if (&rows != &machine.levels.front()) memory += 2 * work.inside_bytes / rows.bandwidth;
  return machine.call_seconds + machine.barrier_seconds + std::max(compute, memory);
}

double kernel_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine) {
  return (kernel.cost ? kernel.cost : roofline_cost)(kernel, work, machine);
}

void need_kernels(const PlanSet& set, std::span<const KernelDesc> kernels,
                  std::string_view backend) {
  for (const KernelEntry& entry : set.kernels) {
    auto it = std::find_if(kernels.begin(), kernels.end(),
                           [&](const KernelDesc& k) { return k.name == entry.name; });
    if (it != kernels.end() && it->abi == entry.abi) continue;
    std::string have = it == kernels.end() ? "no kernel of that name"
                                           : fmt::format("{} (version {})", it->name, it->abi);
    fail(ErrorCode::kUnsupported,
         "the plan, made for backend {}, asks for {} (version {}); backend {} of this program has "
         "{}: compile the model again",
         set.backend, entry.name, entry.abi, backend, have);
  }
}

}  // namespace tokamak
