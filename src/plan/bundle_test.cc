// Bundles as bytes: what is written is read, what is damaged is refused, and nothing that a file
// claims is believed before it was checked.
#include "plan/bundle.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "plan/bundle_plans.h"
#include "plan/dispatch.h"

namespace tokamak {
namespace {

const SymExpr kRows = SymExpr::symbol("T");

// One of everything that a PlanSet can hold.
PlanSet bundled_plans() {
  PlanSet set;
  set.model = "tiny";
  set.backend = "cpu";
  set.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 2}};
  set.inputs = {{"ids", DType::kI32, {kRows}}};
  set.groups = {{"full", 0, 16}, {"window", 32, 16}};
  set.states = {{"kv.0", 1, false, {{"k", DType::kF16, {2, 4}, 16}}}};
  RecipeStep scale{RecipeStep::Kind::kScale, -3, 7, 0.1, DType::kF16, {4, 5}};
  set.weights = {{"w", DType::kF32, {8, 8}, {{"a", "b"}, {scale}}, {}, "panel16"},
                 {"c", DType::kF32, {2}, {}, {1, -0.0}, ""}};
  set.kernels = {{"cpu.linear", 3, "f32"}};
  Plan plan;
  plan.function = "step";
  plan.guard = {{"T", 5, 16, 1, 16}, {"B", 1, 8, 2}};
  plan.bound_symbols = {{"R", "2*B"}};
  plan.arena_bytes = 1024;
  plan.arena_lower_bound = 640;
  plan.arena_method = "search";
  Value attrs = Value::Object{
      {"eps", 1e-5}, {"list", Value::Array{1, -2, "x", true, nullptr}}, {"n", Value::object()}};
  CallArg ids{CallArg::Kind::kInput, 0, 0, DType::kI32, {kRows}};
  CallArg value{CallArg::Kind::kArena, 0, 64, DType::kF32, {kRows * 2 + 1, 8}};
  CallArg state{CallArg::Kind::kState, 0, 0, DType::kF32, {}};
  plan.calls = {
      {.op = "embed", .attrs = attrs, .in = {ids, state}, .out = {value}, .label = "embd"},
      {.op = "region", .region = 0, .code = 0, .in = {ids, state}, .out = {value}, .label = {}}};
  Region region;
  region.inputs = 2;
  TensorType rows{DType::kI32, {{"t", kRows, false}}};
  region.values = {Type::of(rows), Type::state("kv.0"), Type::of(rows), Type::of(rows)};
  RegionPiece program, anchor;
  program.program = std::make_shared<loop::Program>(loop::parse_program(R"(loop 1
rows
columns T
in0 : i32[T]
out0 : i32[T]
%0 = load in0[c] : i32 tile
%1 = add %0, %0 : i32 tile
store out0[c] = %1
)"));
  program.in = {0}, program.out = {2};
  anchor.op = "custom";
  anchor.attrs = attrs;
  anchor.in = {2, 1}, anchor.out = {3};
  region.pieces = {program, anchor};
  region.results = {3};
  set.regions = {region, region};
  set.code = {{"sm_90a", "kernel", "-O3", "abcd", std::string("\x7f\0E", 3)}};
  plan.outputs = {{"logits", value}};
  set.plans = {plan, plan};
  set.arena_bytes = 1024;
  set.numerics_id = "abc";
  set.vocab = 100, set.hidden = 8, set.layers = 2, set.context = 4096;
  return set;
}

std::filesystem::path scratch_file(const char* name) {
  return std::filesystem::temp_directory_path() / fmt::format("tk_bundle_{}_{}", ::getpid(), name);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A small bundle whose plans the checker accepts.
std::string small_bundle() {
  PlanSet set = bundled_plans();
  set.weights[0].recipe = {{"a"}, {}};
  CallArg w{CallArg::Kind::kWeight, 0, 0, DType::kF32, {8, 8}};
  CallArg out{CallArg::Kind::kArena, 0, 0, DType::kF32, {kRows, 8}};
  set.plans.resize(1);
  set.plans[0].bound_symbols.clear();
  set.plans[0].calls = {{.op = "embed",
                         .in = {{CallArg::Kind::kInput, 0, 0, DType::kI32, {kRows}}, w},
                         .out = {out},
                         .label = "e"}};
  set.plans[0].outputs = {{"logits", out}};
  TokenizerSpec tokenizer;
  tokenizer.pieces = {"a", "b", "ab"};
  tokenizer.chat_template = "{{ messages }}";
  auto path = scratch_file("small");
  BundleWriter writer(path);
  std::vector<float> values(64, 0.5f);
  writer.add_weight(set.weights[0], {std::as_bytes(std::span(values)), {}, {}});
  writer.finish(Value::Object{{"backend", "cpu"},
                              {"isa", "any"},
                              {"packing", "none"},
                              {"metadata", Value::Object{{"key", 1}}}},
                "module tiny {}\n", set, tokenizer);
  std::string bytes = bytes_of(path);
  std::filesystem::remove(path);
  return bytes;
}

TEST(BundlePlans, RoundTrip) {
  PlanSet set = bundled_plans();
  std::string bytes = serialize_plans(set);
  PlanSet read = parse_plans(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(plan_set_text(read), plan_set_text(set));
  EXPECT_EQ(serialize_plans(read), bytes);
  EXPECT_EQ(read.plans[1].calls[0].attrs, set.plans[1].calls[0].attrs);
  EXPECT_TRUE(std::signbit(read.weights[1].constant[1]));
  EXPECT_EQ(read.weights[0].recipe, set.weights[0].recipe);
  EXPECT_EQ(*read.regions[0].pieces[0].program, *set.regions[0].pieces[0].program);
  EXPECT_EQ(read.regions[0].pieces[0].program, read.regions[1].pieces[0].program);  // read once
  EXPECT_EQ(read.regions[1].values, set.regions[1].values);
  EXPECT_EQ(read.regions[1].pieces[1].attrs, set.regions[1].pieces[1].attrs);
  EXPECT_EQ(read.code[0].bytes, set.code[0].bytes);
  EXPECT_EQ(plan_name(read.plans[0]), "step T=5..16 padded to 16 B<=8 multiple of 2");
}

TEST(BundlePlans, EveryPrefixIsRefused) {
  std::string bytes = serialize_plans(bundled_plans());
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW(parse_plans(std::as_bytes(std::span(bytes.data(), n))), Error) << n;
}

// Beneath the checksums: a file with valid checksums and wrong contents.
TEST(BundlePlans, MutationsEndInErrorsOrInPlansThatCanBeChecked) {
  std::string bytes = serialize_plans(bundled_plans());
  Rng rng(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = bytes;
    for (uint64_t n = 1 + rng.below(3); n > 0; --n) {
      size_t at = rng.below(damaged.size());
      switch (rng.below(4)) {
        case 0:
          damaged[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          damaged[at] = static_cast<char>(damaged[at] ^ 1 << rng.below(8));
          break;
        case 2:
          damaged.erase(at, 1 + rng.below(4));
          break;
        default:
          damaged.insert(at, 1 + rng.below(9), '\xff');
      }
    }
    try {
      check_plan_set(parse_plans(std::as_bytes(std::span(damaged))));
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 20000);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 2 << 20) << "KiB: a claimed size was allocated";
}

TEST(BundleFile, HoldsWhatWasWritten) {
  auto bundle = std::make_unique<BundleModel>(BundleFile::from_bytes(small_bundle(), "x.tkm"));
  bundle->verify_weights();
  EXPECT_EQ(bundle->tokenizer().pieces.size(), 3u);
  EXPECT_EQ(bundle->tokenizer().chat_template, "{{ messages }}");
  EXPECT_EQ(bundle->graph(), "module tiny {}\n");
  EXPECT_EQ(bundle->metadata().at("key").as_int(), 1);
  EXPECT_EQ(bundle->compiled_context(), 4096);
  const PackedWeight* w = bundle->packed("w", "panel16");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->matrix.size(), 256u);
  EXPECT_EQ(bundle->packed("w", ""), nullptr);
  for (const BundleSection& s : bundle->file().sections())
    EXPECT_EQ(s.offset % (s.name == kBundleWeights ? kBundlePage : kBundleAlignment), 0u) << s.name;
}

std::string refusal(const std::string& bytes) {
  try {
    BundleModel(BundleFile::from_bytes(bytes, "x.tkm")).verify_weights();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Every byte that carries something is under a checksum; what is left are zeros between sections.
TEST(BundleFile, EveryFlippedByteIsFound) {
  std::string bytes = small_bundle();
  std::vector<bool> covered(bytes.size(), false);
  auto file = BundleFile::from_bytes(bytes, "x.tkm");
  std::fill_n(covered.begin(), 64 + 64 * file->sections().size(), true);
  for (const BundleSection& s : file->sections())
    std::fill_n(covered.begin() + static_cast<ptrdiff_t>(s.offset), s.size, true);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!covered[i] && i % 64 != 0) continue;  // a few of the zeros
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    std::string said = refusal(damaged);
    EXPECT_EQ(!said.empty(), covered[i]) << i;
    EXPECT_EQ(said.find('\n'), std::string::npos);
    EXPECT_EQ(said.find("x.tkm") != std::string::npos, covered[i]) << said;
  }
}

TEST(BundleFile, EveryTruncationIsFound) {
  std::string bytes = small_bundle();
  for (size_t n = 0; n < bytes.size(); n += n < 2048 ? 1 : 61)
    EXPECT_NE(refusal(bytes.substr(0, n)), "") << n;
  EXPECT_NE(refusal(bytes + "x").find("were written"), std::string::npos);
}

TEST(BundleFile, AnotherVersionSaysWhatToDo) {
  std::string bytes = small_bundle();
  for (uint32_t version : {uint32_t{1}, kBundleVersion - 1, kBundleVersion + 1}) {
    std::memcpy(bytes.data() + 8, &version, 4);
    EXPECT_EQ(refusal(bytes),
              fmt::format("x.tkm is a bundle of version {}, this program reads version {}: compile "
                          "the model again",
                          version, kBundleVersion));
  }
}

// The same damage with checksums that fit: the reader itself has to hold.
TEST(BundleFile, ForgedTablesAndSections) {
  const std::string bytes = small_bundle();
  uint32_t sections;
  std::memcpy(&sections, bytes.data() + 12, 4);
  Rng rng(11);
  for (int i = 0; i < 3000; ++i) {
    std::string forged = bytes;
    if (rng.below(2) == 0) {  // a number of the header or the table
      size_t at = 8 + rng.below((64 + sections * 64 - 8) / 4) * 4;
      uint32_t word = rng.below(3) == 0 ? UINT32_MAX : static_cast<uint32_t>(rng.next_u64());
      std::memcpy(forged.data() + at, &word, 4);
    } else {  // a byte of a section
      size_t at = 4096 + rng.below(forged.size() - 4096);
      forged[at] = static_cast<char>(rng.next_u64());
    }
    // Sums of what now lies there, where it lies in the file at all.
    for (uint32_t s = 0; s < sections; ++s) {
      char* entry = forged.data() + 64 + s * 64;
      uint64_t offset, size, flags;
      std::memcpy(&offset, entry + 16, 8);
      std::memcpy(&size, entry + 24, 8);
      std::memcpy(&flags, entry + 32, 8);
      if (offset > forged.size() || size > forged.size() - offset || (flags & 1) != 0) continue;
      Checksum sum = checksum(std::as_bytes(std::span(forged)).subspan(offset, size));
      std::memcpy(entry + 48, &sum, 16);
    }
    std::string head = forged.substr(0, 48) + forged.substr(64, sections * 64);
    Checksum sum = checksum(std::as_bytes(std::span(head)));
    std::memcpy(forged.data() + 48, &sum, 16);
    refusal(forged);  // an Error or a bundle; never a signal
  }
}

TEST(BundleFile, APieceOfTextIsNoBundle) {
  EXPECT_NE(refusal("hello, this is a text and no bundle").find("is not a bundle"),
            std::string::npos);
  EXPECT_FALSE(is_bundle("/nowhere/at/all"));
  EXPECT_FALSE(is_bundle("/tmp"));
}

TEST(BundleFile, AFailedWriteLeavesNothing) {
  auto path = scratch_file("gone");
  {
    BundleFileWriter writer(path);
    writer.add_section("a", "text");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(BundleFileWriter("/nowhere/at/all"), Error);
}

}  // namespace
}  // namespace tokamak
