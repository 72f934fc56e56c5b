// Fused regions as Loop IR: the program is parsed when the plan is loaded, and interpreted.
#include "backend/ref/ref_executable.h"
#include "base/error.h"
#include "loop/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak {

RefExecutable::Call RefExecutable::load_loop(const KernelCall& call) const {
  auto program =
      std::make_shared<loop::Program>(loop::parse_program(call.attrs.at("program").as_string()));
  Call entry{&call, nullptr, {}, {}, program};
  auto load = [&](const std::vector<CallArg>& args, const std::vector<TensorType>& types,
                  std::vector<Argument>& to) {
    bool same = args.size() == types.size();
    for (size_t i = 0; same && i < args.size(); ++i) same = args[i].dtype == types[i].dtype;
    if (!same)
      fail(ErrorCode::kCorrupt, "{}: the arguments of its loop program are not those of the call",
           call.label);
    for (const CallArg& arg : args) to.push_back(load_argument(arg));
  };
  load(call.in, program->in, entry.in);
  load(call.out, program->out, entry.out);
  for (const std::string& s : loop::program_symbols(*program))
    if (std::find(symbols_.begin(), symbols_.end(), s) == symbols_.end())
      fail(ErrorCode::kCorrupt, "{}: its loop program uses the symbol {}, which is not declared",
           call.label, s);
  return entry;
}

void RefExecutable::run_loop(Call& call, std::span<const Operand<float>> in,
                             std::span<const Operand<float>> out) {
  std::map<std::string, int64_t, std::less<>> symbols;
  for (size_t i = 0; i < symbols_.size(); ++i) symbols[symbols_[i]] = binder_.symbols()[i];
  std::vector<TensorRef<float>> from, to;
  for (const Operand<float>& o : in) from.push_back(o.tensor);
  for (const Operand<float>& o : out) to.push_back(o.tensor);
  loop::evaluate_program<float>(*call.program, symbols, from, to);
  store(call);
}

}  // namespace tokamak
