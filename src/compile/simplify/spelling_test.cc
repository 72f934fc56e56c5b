// The same computation in many spellings must end as the same ops. And golden files: graph text in,
// passes, graph text out (tests/golden/graph/opt; TK_GOLDEN_WRITE=1 rewrites them).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "compile/fuse/report.h"
#include "compile/simplify/check.h"
#include "compile/simplify/rules.h"
#include "graph/rewrite.h"

namespace tokamak {
namespace {

const char* const kHeader = R"(module m format 1
symbol T in 1..6
weight w : f32[n=8] from w
weight b : f32[n=8] from b
weight p : f32[n=8, k=8] from p
weight h : f16[n=8, k=8] from h
constant freq : f32[n=2] = [1, 0.1]
constant freq2 : f32[n=4] = [1, 0.1, 1, 0.1]
constant zero : f32[] = [0]
constant one : f32[] = [1]
constant one1 : f32[n=1] = [1]
constant ones : f32[n=8] = [1, 1, 1, 1, 1, 1, 1, 1]
constant two : f32[] = [2]
constant half : f32[] = [0.5]
constant eight : f32[] = [8]
constant eps : f32[] = [1e-5]
constant r2 : f32[] = [1.4142135]
constant rr2 : f32[] = [0.70710678]
constant c1 : f32[] = [0.044715]
constant c2 : f32[n=1] = [0.7978846]

func f {
  %0 = input x : f32[t=T, d=8]
  %1 = input pos : i32[t=T]
  %2 = input q : f32[t=T, h=2, d=4]
  %3 = input k : f32[a=2, s=5, d=4]
  %4 = input v : f32[a=2, s=5, d=4]
  %5 = input m : f32[t=T, s=5]
  %6 = input qq : f32[a=2, t=T, d=4]
)";

struct Spelling {
  const char* want;  // ops that must be left, sorted, with spaces
  const char* body;  // the last node is the result
};

const Spelling kSpellings[] = {
    // rms_norm
    {"rms_norm",
     "%10 = mul(%0, %0)\n%11 = reduce_mean(%10) {axis=-1, keep=1}\n%12 = add(%11, $eps)\n"
     "%13 = rsqrt(%12)\n%14 = mul(%0, %13)\n%15 = mul(%14, @w)"},
    {"rms_norm",
     "%10 = square(%0)\n%11 = reduce_sum(%10) {axis=1}\n%12 = reshape(%11) {dims=[\"T\", 1], "
     "axes=[\"t\", \"o\"]}\n"
     "%13 = div(%12, $eight)\n%14 = add($eps, %13)\n%15 = sqrt(%14)\n%16 = div(%0, %15)\n%17 = "
     "mul(@w, %16)"},
    {"rms_norm",
     "%10 = square(%0)\n%11 = reduce_mean(%10) {axis=1, keep=1}\n%12 = add(%11, $eps)\n%13 = "
     "sqrt(%12)\n"
     "%14 = div($one, %13)\n%15 = mul(%14, %0)\n%16 = mul(%15, @w)"},
    {"rms_norm",
     "%10 = square(%0)\n%11 = reduce_mean(%10) {axis=1, keep=1}\n%12 = add(%11, $eps)\n%13 = "
     "rsqrt(%12)\n"
     "%14 = mul(%0, @w)\n%15 = mul(%14, %13)"},
    {"rms_norm",
     "%10 = cast(%0) {dtype=\"f32\"}\n%11 = square(%10)\n%12 = reduce_mean(%11) {axis=1, "
     "keep=1}\n%13 = add(%12, $eps)\n"
     "%14 = rsqrt(%13)\n%15 = mul(%10, %14)\n%16 = cast(%15) {dtype=\"f32\"}\n%17 = add(@w, "
     "$one)\n%18 = mul(%16, %17)"},
    {"rms_norm",
     "%10 = square(%0)\n%11 = reduce_mean(%10) {axis=1, keep=1}\n%12 = add(%11, $eps)\n%13 = "
     "rsqrt(%12)\n"
     "%14 = mul(%0, %13)\n%15 = reshape(@w) {dims=[1, 8], axes=[\"o\", \"d\"]}\n%16 = mul(%14, "
     "%15)"},
    {"rms_norm",
     "%10 = square(%0)\n%11 = reduce_mean(%10) {axis=1, keep=1}\n%12 = add(%11, $eps)\n%13 = "
     "rsqrt(%12)\n"
     "%14 = broadcast(%13) {dims=[\"T\", 8], axes=[\"t\", \"d\"]}\n%15 = mul(%14, %0)\n%16 = "
     "mul(%15, @w)"},
    // layer_norm
    {"layer_norm",
     "%10 = reduce_mean(%0) {axis=-1, keep=1}\n%11 = sub(%0, %10)\n%12 = mul(%11, %11)\n%13 = "
     "reduce_mean(%12) {axis=-1, keep=1}\n"
     "%14 = add(%13, $eps)\n%15 = sqrt(%14)\n%16 = div(%11, %15)\n%17 = mul(%16, @w)\n%18 = "
     "add(%17, @b)"},
    {"layer_norm",
     "%10 = reduce_mean(%0) {axis=1, keep=1}\n%11 = sub(%0, %10)\n%12 = square(%11)\n%13 = "
     "reduce_mean(%12) {axis=1}\n"
     "%14 = reshape(%13) {dims=[\"T\", 1], axes=[\"t\", \"o\"]}\n%15 = add(%14, $eps)\n%16 = "
     "rsqrt(%15)\n%17 = mul(%16, %11)\n"
     "%18 = mul(@w, %17)\n%19 = add(@b, %18)"},
    {"layer_norm",
     "%10 = reduce_mean(%0) {axis=1, keep=1}\n%11 = neg(%10)\n%12 = add(%0, %11)\n%13 = "
     "square(%12)\n"
     "%14 = reduce_mean(%13) {axis=1, keep=1}\n%15 = add(%14, $eps)\n%16 = rsqrt(%15)\n%17 = "
     "mul(%12, %16)\n%18 = mul(%17, @w)\n%19 = add(%18, @b)"},
    {"layer_norm",
     "%10 = reduce_mean(%0) {axis=1, keep=1}\n%11 = sub(%0, %10)\n%12 = square(%0)\n%13 = "
     "reduce_mean(%12) {axis=1, keep=1}\n"
     "%14 = mul(%10, %10)\n%15 = sub(%13, %14)\n%16 = add(%15, $eps)\n%17 = rsqrt(%16)\n%18 = "
     "mul(%11, %17)\n%19 = mul(%18, @w)\n%20 = add(%19, @b)"},
    // softmax
    {"softmax",
     "%10 = reduce_max(%0) {axis=-1, keep=1}\n%11 = sub(%0, %10)\n%12 = exp(%11)\n%13 = "
     "reduce_sum(%12) {axis=-1, keep=1}\n%14 = div(%12, %13)"},
    {"softmax",
     "%10 = reduce_max(%0) {axis=1}\n%11 = reshape(%10) {dims=[\"T\", 1], axes=[\"t\", "
     "\"o\"]}\n%12 = sub(%0, %11)\n%13 = exp(%12)\n"
     "%14 = reduce_sum(%13) {axis=1}\n%15 = reshape(%14) {dims=[\"T\", 1], axes=[\"t\", "
     "\"o\"]}\n%16 = div(%13, %15)"},
    {"softmax", "%10 = exp(%0)\n%11 = reduce_sum(%10) {axis=1, keep=1}\n%12 = div(%10, %11)"},
    {"softmax",
     "%10 = reduce_max(%0) {axis=1, keep=1}\n%11 = sub(%0, %10)\n%12 = exp(%11)\n%13 = "
     "reduce_sum(%12) {axis=1, keep=1}\n"
     "%14 = div($one, %13)\n%15 = mul(%12, %14)"},
    {"softmax",
     "%10 = reduce_max(%0) {axis=1, keep=1}\n%11 = sub(%0, %10)\n%12 = exp(%11)\n%13 = "
     "reduce_sum(%12) {axis=1, keep=1}\n"
     "%14 = log(%13)\n%15 = sub(%11, %14)\n%16 = exp(%15)"},
    // silu
    {"silu", "%10 = sigmoid(%0)\n%11 = mul(%0, %10)"},
    {"silu", "%10 = neg(%0)\n%11 = exp(%10)\n%12 = add(%11, $one)\n%13 = div(%0, %12)"},
    {"silu",
     "%10 = scale(%0) {value=-1.0}\n%11 = exp(%10)\n%12 = add($one1, %11)\n%13 = div($one, "
     "%12)\n%14 = mul(%13, %0)"},
    {"silu",
     "%10 = mul(%0, $half)\n%11 = tanh(%10)\n%12 = add(%11, $one)\n%13 = mul(%12, $half)\n%14 = "
     "mul(%0, %13)"},
    // gelu
    {"gelu",
     "%10 = div(%0, $r2)\n%11 = erf(%10)\n%12 = add(%11, $one)\n%13 = mul(%0, %12)\n%14 = mul(%13, "
     "$half)"},
    {"gelu",
     "%10 = mul(%0, $half)\n%11 = mul(%0, $rr2)\n%12 = erf(%11)\n%13 = add($one, %12)\n%14 = "
     "mul(%10, %13)"},
    {"gelu",
     "%10 = scale(%0) {value=0.7071067811865475}\n%11 = erf(%10)\n%12 = add(%11, $one)\n%13 = "
     "mul(%12, $half)\n%14 = mul(%13, %0)"},
    {"gelu",
     "%10 = mul(%0, $rr2)\n%11 = erf(%10)\n%12 = mul(%11, $half)\n%13 = add(%12, $half)\n%14 = "
     "mul(%0, %13)"},
    {"gelu",
     "%10 = mul(%0, %0)\n%11 = mul(%10, %0)\n%12 = mul(%11, $c1)\n%13 = add(%0, %12)\n%14 = "
     "mul(%13, $c2)\n%15 = tanh(%14)\n"
     "%16 = add(%15, $one)\n%17 = mul(%0, $half)\n%18 = mul(%17, %16)"},
    {"gelu",
     "%10 = square(%0)\n%11 = mul(%10, $c1)\n%12 = add(%11, $one)\n%13 = mul(%0, %12)\n%14 = "
     "scale(%13) {value=0.7978845608028654}\n"
     "%15 = tanh(%14)\n%16 = add($one, %15)\n%17 = mul(%16, %0)\n%18 = div(%17, $two)"},
    // rope
    {"rope",
     "%10 = cast(%1) {dtype=\"f32\"}\n%11 = reshape(%10) {dims=[\"T\", 1], axes=[\"t\", "
     "\"o\"]}\n%12 = mul(%11, $freq)\n"
     "%13 = concat(%12, %12) {axis=-1}\n%14 = cos(%13)\n%15 = sin(%13)\n%16 = reshape(%14) "
     "{dims=[\"T\", 1, 4], axes=[\"t\", \"o\", \"d\"]}\n"
     "%17 = reshape(%15) {dims=[\"T\", 1, 4], axes=[\"t\", \"o\", \"d\"]}\n%18 = slice(%2) "
     "{axis=-1, start=0, end=2}\n"
     "%19 = slice(%2) {axis=-1, start=2, end=4}\n%20 = neg(%19)\n%21 = concat(%20, %18) "
     "{axis=-1}\n%22 = mul(%2, %16)\n%23 = mul(%21, %17)\n%24 = add(%22, %23)"},
    {"rope",
     "%10 = cast(%1) {dtype=\"f32\"}\n%11 = reshape(%10) {dims=[\"T\", 1], axes=[\"t\", "
     "\"o\"]}\n%12 = mul(%11, $freq)\n"
     "%13 = reshape(%12) {dims=[\"T\", 1, 2], axes=[\"t\", \"o\", \"r\"]}\n%14 = cos(%13)\n%15 = "
     "sin(%13)\n"
     "%18 = slice(%2) {axis=2, start=0, end=2}\n%19 = slice(%2) {axis=2, start=2, end=4}\n"
     "%20 = mul(%18, %14)\n%21 = mul(%19, %15)\n%22 = sub(%20, %21)\n%23 = mul(%19, %14)\n%24 = "
     "mul(%18, %15)\n%25 = add(%23, %24)\n%26 = concat(%22, %25) {axis=2}"},
    {"rope",
     "%10 = reshape(%1) {dims=[\"T\", 1, 1], axes=[\"t\", \"o\", \"p\"]}\n%11 = cast(%10) "
     "{dtype=\"f32\"}\n%12 = mul($freq, %11)\n"
     "%14 = cos(%12)\n%15 = sin(%12)\n%18 = slice(%2) {axis=2, start=0, end=2}\n%19 = slice(%2) "
     "{axis=2, start=2, end=4}\n"
     "%20 = mul(%14, %18)\n%21 = mul(%15, %19)\n%22 = sub(%20, %21)\n%23 = mul(%14, %19)\n%24 = "
     "mul(%15, %18)\n%25 = add(%24, %23)\n%26 = concat(%22, %25) {axis=2}"},
    // attention
    {"sdpa",
     "%10 = transpose(%3) {perm=[0, 2, 1]}\n%11 = matmul(%6, %10)\n%12 = mul(%11, $half)\n%13 = "
     "softmax(%12)\n%14 = matmul(%13, %4)"},
    {"sdpa",
     "%10 = transpose(%3) {perm=[0, 2, 1]}\n%11 = mul(%6, $half)\n%12 = matmul(%11, %10)\n%13 = "
     "add(%12, %5)\n%14 = softmax(%13)\n%15 = matmul(%14, %4)"},
    {"sdpa",
     "%10 = transpose(%3) {perm=[0, 2, 1]}\n%11 = matmul(%6, %10)\n%12 = div(%11, $two)\n%13 = "
     "add(%5, %12)\n"
     "%14 = reduce_max(%13) {axis=-1, keep=1}\n%15 = sub(%13, %14)\n%16 = exp(%15)\n%17 = "
     "reduce_sum(%16) {axis=-1, keep=1}\n%18 = div(%16, %17)\n"
     "%19 = dropout(%18) {p=0.1}\n%20 = matmul(%19, %4)"},
    {"sdpa",
     "%10 = mul(%3, $half)\n%11 = transpose(%10) {perm=[0, 2, 1]}\n%12 = matmul(%6, %11)\n%13 = "
     "softmax(%12)\n%14 = matmul(%13, %4)"},
    // products with weights
    {"linear", "%10 = transpose(@p) {perm=[1, 0]}\n%11 = matmul(%0, %10)"},
    {"linear", "%10 = matmul(%0, @p)\n%11 = add(%10, @b)"},
    {"linear",
     "%10 = cast(@h) {dtype=\"f32\"}\n%11 = linear(%0, %10)\n%12 = identity(%11)\n%13 = "
     "dropout(%12) {p=0.5}"},
    {"linear", "%10 = linear(%0, @p)\n%11 = mul(%10, $half)"},
    {"linear", "%10 = mul(%0, $half)\n%11 = mul(%10, $two)\n%12 = linear(%11, @p, @b)"},
    // nothing left
    {"", "%10 = mul(%0, $one)\n%11 = neg(%10)\n%12 = neg(%11)\n%13 = add(%12, $zero)"},
    {"",
     "%10 = reshape(%0) {dims=[\"T\", 2, 4], axes=[\"t\", \"h\", \"d\"]}\n%11 = transpose(%10) "
     "{perm=[0, 2, 1]}\n"
     "%12 = transpose(%11) {perm=[0, 2, 1]}\n%13 = reshape(%12) {dims=[\"T\", 8], axes=[\"t\", "
     "\"d\"]}"},
    {"",
     "%10 = slice(%0) {axis=1, start=0, end=3}\n%11 = slice(%0) {axis=1, start=3, end=8}\n%12 = "
     "concat(%10, %11) {axis=1}"},
    {"slice",
     "%10 = concat(%0, %0) {axis=1}\n%11 = slice(%10) {axis=1, start=8, end=16}\n%12 = slice(%11) "
     "{axis=1, start=2, end=8}\n%13 = slice(%12) {axis=1, start=1, end=4}"},
    {"softcap", "%10 = div(%0, $eight)\n%11 = tanh(%10)\n%12 = mul(%11, $eight)"},
    {"relu", "%10 = maximum(%0, $zero)"},
    {"scale", "%10 = add($one, $one)\n%11 = mul(%10, $eight)\n%12 = sqrt(%11)\n%13 = mul(%0, %12)"},
};

Module parse_spelling(const Spelling& s) {
  std::string body = s.body;
  size_t last = body.rfind('\n');
  std::string result = body.substr(last == std::string::npos ? 0 : last + 1);
  result = result.substr(0, result.find(' '));
  return parse_module(std::string(kHeader) + body + "\nreturn y = " + result + "\n}\n");
}

std::string ops_of(const Function& fn) {
  std::vector<std::string_view> ops;
  for (const Node& n : fn.nodes())
    if (n.op->tier != Tier::kStructural) ops.push_back(n.op->name);
  std::sort(ops.begin(), ops.end());
  return fmt::format("{}", fmt::join(ops, " "));
}

// All rules together come to an end.
void expect_no_cycles(const Module& before) {
  Module module = before.clone();
  std::vector<const RewriteRule*> rules;
  for (const char* group : {"canonical", "recognize", "algebra"})
    for (const RewriteRule& rule : rules_of(group)) rules.push_back(&rule);
  for (const auto& fn : module.functions) {
    RewriteStats stats = Rewriter(module, rules).run(*fn);
    EXPECT_TRUE(stats.cycles.empty() && !stats.exhausted) << testing::PrintToString(stats.cycles);
  }
}

TEST(Spellings, EndAsTheSameOps) {
  auto backend = make_backend("cpu");
  CompileOptions simplify;
  simplify.disabled_passes = {"fuse"};
  simplify.activations = "f32";  // what else is rounded depends on the machine
  std::map<std::string, int> counts;
  for (const Spelling& s : kSpellings) {
    SCOPED_TRACE(s.body);
    Module before = parse_spelling(s), after = before.clone();
    verify_module(before);
    run_passes(after, *after.functions[0], {*backend, simplify});
    EXPECT_EQ(ops_of(*after.functions[0]), s.want) << print_function(*after.functions[0]);
    CheckReport r =
        check_functions(*before.functions[0], *after.functions[0], {7, 3, PassClass::kReal, false});
    EXPECT_TRUE(r.same && r.runs > 0) << r.message;
    ++counts[s.want];
  }
  for (const char* op : {"rms_norm", "layer_norm", "softmax", "silu", "gelu", "rope", "sdpa"})
    EXPECT_GE(counts[op], 3) << op;
}

// Graphs as exporters write them, one after the other: "// want: OPS", then a module. Also near
// misses, whose ops show that they were not taken for what they resemble.
int check_spellings(const char* file) {
  auto backend = make_backend("cpu");
  CompileOptions simplify;
  simplify.disabled_passes = {"fuse", "quantize-activations", "fold-norms"};
  const std::string text = read_text_file(file), mark = "// want:";
  int count = 0;
  for (size_t at = text.find(mark); at != std::string::npos; ++count) {
    size_t line = text.find('\n', at), next = text.find(mark, line);
    std::string want = text.substr(at + mark.size(), line - at - mark.size());
    if (!want.empty()) want.erase(0, 1);
    Module before = parse_module(text.substr(line, next - line)), after = before.clone();
    SCOPED_TRACE(before.name);
    verify_module(before);
    run_passes(after, *after.functions[0], {*backend, simplify});
    EXPECT_EQ(ops_of(*after.functions[0]), want) << print_function(*after.functions[0]);
    CheckReport r =
        check_functions(*before.functions[0], *after.functions[0], {7, 2, PassClass::kReal, false});
    EXPECT_TRUE(r.same && r.runs > 0) << r.message;
    at = next;
  }
  return count;
}

TEST(Spellings, OfExporters) { EXPECT_GE(check_spellings(TK_GRAPH_GOLDEN "/spellings.txt"), 274); }

// With a batch axis and an axis of heads, as transformers and PyTorch write attention.
TEST(Spellings, OfExportersWithBatches) {
  EXPECT_GE(check_spellings(TK_GRAPH_GOLDEN "/spellings_batch.txt"), 90);
}

void expect_golden(const std::filesystem::path& path, const std::string& text) {
  if (std::getenv("TK_GOLDEN_WRITE")) write_text_file(path, text);
  EXPECT_EQ(read_text_file(path), text);
}

// The first line of NAME.tkg may say which passes run: "// passes: canonicalize, recognize". Where
// "fuse" is among them, the decisions and their reasons are compared too (NAME.fusion).
// A line "// storage: bf16" sets the types for choose-storage, with the kernels of ref.
TEST(OptGolden, TextInPassesTextOut) {
  auto backend = make_backend("cpu"), ref = make_backend("ref");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TK_GRAPH_GOLDEN "/opt"))
    if (entry.path().extension() == ".tkg") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 4u);
  for (std::filesystem::path path : files) {
    SCOPED_TRACE(path);
    std::string text = read_text_file(path);
    CompileOptions options;
    const std::string mark = "// passes: ";
    if (text.rfind(mark, 0) == 0) {
      std::string line = text.substr(mark.size(), text.find('\n') - mark.size()), name;
      for (char c : line + ",") {
        if (c != ',' && c != ' ') name += c;
        if (c == ',') options.passes.push_back(std::exchange(name, {}));
      }
    }
    const std::string storage = "// storage: ";
    if (size_t at = text.find(storage); at != std::string::npos)
      options.storage = text.substr(at + storage.size(), text.find('\n', at) - at - storage.size());
    const bool fuses =
        std::find(options.passes.begin(), options.passes.end(), "fuse") != options.passes.end();
    options.fusion = std::make_shared<FusionReport>();
    Module before = parse_module(text), after = before.clone();
    verify_module(before);
    expect_no_cycles(before);
    for (size_t i = 0; i < before.functions.size(); ++i) {
      run_passes(after, *after.functions[i], {options.storage.empty() ? *backend : *ref, options});
      CheckOptions check{3, 3, class_of(chosen_passes(options)), false};
      CheckReport r = check_functions(*before.functions[i], *after.functions[i], check);
      EXPECT_TRUE(r.same && r.runs > 0) << r.message;
    }
    verify_module(after);
    std::string out = print_module(after);
    expect_golden(path.replace_extension(".out"), out);
    EXPECT_EQ(print_module(parse_module(out)), out);
    if (fuses)
      expect_golden(path.replace_extension(".fusion"), fusion_report_text(*options.fusion));
  }
}

}  // namespace
}  // namespace tokamak
