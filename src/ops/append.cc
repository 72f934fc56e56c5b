// append: writes the step's rows into a state. Inputs after the planes are reads of the old
// version; they only order the write.
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

constexpr size_t kFirstPlane = 4;

template <class S>
void append(const MeaningArgs<S>& args) {
  const StateRef<S>& state = args.out[0].state;
  const ViewRef& view = args.in[1].view;
  const TensorRef<S>&seq = args.in[2].tensor, &slot = args.in[3].tensor;
  for (int64_t i = 0; i < seq.dims[0]; ++i) {
    if (slot.i[i] < 0) continue;  // padding
    int64_t at = view.physical(seq.i[i], slot.i[i]);
    TK_CHECK(at >= 0 && at < state.slots, "append: row {} has no block (slot {})", i, slot.i[i]);
    for (size_t p = 0; p < state.planes.size(); ++p) {
      int64_t width = state.planes[p].width;
      std::copy_n(args.in[kFirstPlane + p].tensor.f + i * width, width,
                  state.planes[p].data + at * width);
    }
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("append", context);
  const std::string& state = rule.state(0);
  rule.view(1);
  const SymExpr& rows = rule.integers(2, "seq", 1).extent(0);
  rule.same(rows, "the rows of seq", rule.integers(3, "slot", 1).extent(0), "those of slot");
  for (int p = 0; rule.knows_planes(); ++p) {
    auto plane = rule.plane(state, p);
    if (!plane) break;
    const TensorType& x = rule.values(kFirstPlane + static_cast<size_t>(p), plane->name);
    rule.same(rows, "the rows of seq", x.rank() > 0 ? x.extent(0) : SymExpr(1), plane->name);
    if (x.elements() != rows * plane->type->elements())
      rule.fail("plane {} of {} holds {} per token, got {}", plane->name, state,
                plane->type->text(), x.text());
  }
  return {Type::state(state)};
}

SymExpr no_flops(std::span<const Type>, std::span<const Type>) { return 0; }

}  // namespace

std::vector<OpDef> append_ops() {
  return {{.name = "append",
           .tier = Tier::kComposite,
           .min_inputs = 5,
           .max_inputs = -1,
           .infer = infer,
           .f32 = append<float>,
           .f64 = append<double>,
           .traced = append<Traced>,
           .field = append<Field>,
           .writes_state = true,
           .flops = no_flops,
           .doc = "writes the step's rows into the planes of a state",
           .element_ops = 4,
           .first_plane = 4,
           .reads = [](size_t operand, const Attrs&) {
             constexpr size_t kSlot = 3;  // -1 marks padding
             return OperandRead{operand == kSlot ? OperandRead::Kind::kAll
                                                 : OperandRead::Kind::kTokenRows};
           }}};
}

}  // namespace tokamak
