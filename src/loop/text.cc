// The text form (docs/loop_ir.md). One statement per line; "//" starts a comment.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "loop/program.h"

namespace tokamak::loop {
namespace {

constexpr std::string_view kElems[] = {"f32", "wide", "i32"};
constexpr std::string_view kForms[] = {"row", "tile"};

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format("{}", value);
}

std::string by_text(const Access& a) {
  return a.by < 0 ? "" : fmt::format(" by %{} below {}", a.by, a.limit.text());
}

std::string instr_text(const Instr& instr) {
  std::string out(op_info(instr.op).name);
  if (instr.op == Op::kConst) out += " " + number_text(instr.number);
  if (instr.op == Op::kIndex) out += fmt::format(" [{}]", instr.access.index.text());
  if (instr.op == Op::kLoad)
    out += fmt::format(" in{}[{}]{}", instr.access.param, instr.access.index.text(),
                       by_text(instr.access));
  for (size_t i = 0; i < instr.in.size(); ++i)
    out += fmt::format("{} %{}", i == 0 ? "" : ",", instr.in[i]);
  if (instr.op == Op::kSoftcap) out += ", " + number_text(instr.number);
  return out + fmt::format(" : {} {}", kElems[static_cast<size_t>(instr.type.elem)],
                           kForms[static_cast<size_t>(instr.type.form)]);
}

// A cursor over one line. Every method throws Error(kInvalidArgument) without the line's number;
// the parser adds it.
class Line {
 public:
  explicit Line(std::string_view text) : text_(text) {}

  void skip() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t')) ++pos_;
  }
  bool at_end() {
    skip();
    return pos_ == text_.size();
  }
  [[noreturn]] void expected(std::string_view what) {
    skip();
    fail(ErrorCode::kInvalidArgument, "expected {}, found \"{}\"", what, text_.substr(pos_, 24));
  }
  bool take(std::string_view mark) {
    skip();
    if (text_.substr(pos_, mark.size()) != mark) return false;
    pos_ += mark.size();
    return true;
  }
  void need(std::string_view mark) {
    if (!take(mark)) expected(fmt::format("\"{}\"", mark));
  }
  std::string_view word() {
    skip();
    size_t begin = pos_;
    while (pos_ < text_.size() && is_word(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }
  uint32_t index(std::string_view mark) {
    need(mark);
    uint32_t value = 0;
    auto [end, status] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), value);
    if (status != std::errc()) expected("a number");
    pos_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  double number() {
    skip();
    for (auto [name, value] :
         {std::pair<std::string_view, double>{"nan", std::numeric_limits<double>::quiet_NaN()},
          {"-inf", -std::numeric_limits<double>::infinity()},
          {"inf", std::numeric_limits<double>::infinity()}})
      if (take(name)) return value;
    double value = 0;
    auto [end, status] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), value);
    if (status != std::errc()) expected("a number");
    pos_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  // Up to one of the marks, which is not consumed.
  SymExpr expression(std::string_view marks) {
    skip();
    size_t depth = 0, end = pos_;
    for (; end < text_.size(); ++end) {
      char c = text_[end];
      if (depth == 0 && marks.find(c) != std::string_view::npos) break;
      depth += c == '(';
      if (c == ')' && depth > 0) --depth;
    }
    std::string_view part = text_.substr(pos_, end - pos_);
    pos_ = end;
    return SymExpr::parse(part);
  }
  TensorType tensor_type() { return parse_tensor_type(text_, pos_); }

 private:
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  std::string_view text_;
  size_t pos_ = 0;
};

const std::unordered_map<std::string_view, Op>& op_names() {
  static const auto names = [] {
    std::unordered_map<std::string_view, Op> out;
    for (size_t i = 0; i < static_cast<size_t>(Op::kCount); ++i)
      out.emplace(op_info(static_cast<Op>(i)).name, static_cast<Op>(i));
    return out;
  }();
  return names;
}

class ProgramParser {
 public:
  Program parse(std::string_view text) {
    if (text.size() > kMaxText)
      fail(ErrorCode::kInvalidArgument, "loop program of {} bytes, the limit is {}", text.size(),
           kMaxText);
    for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
      size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      line = line.substr(0, line.find("//"));
      begin = end + 1;
      Line in(line);
      if (in.at_end()) continue;
      try {
        statement(in);
        if (!in.at_end()) in.expected("the end of the line");
      } catch (const Error& e) {
        fail(ErrorCode::kInvalidArgument, "line {}: {}", number, e.what());
      }
    }
    if (state_ < kCode) fail(ErrorCode::kInvalidArgument, "loop program without rows and columns");
    verify_program(program_);
    return std::move(program_);
  }

 private:
  enum State { kHead, kRows, kColumns, kCode };

  void statement(Line& in) {
    if (state_ == kHead) {
      in.need("loop");
      if (in.index("") != 1) fail(ErrorCode::kInvalidArgument, "only format 1 is supported");
      state_ = kRows;
    } else if (state_ == kRows) {
      in.need("rows");
      for (bool more = !in.at_end(); more; more = in.take(",")) {
        if (program_.rows.size() == kMaxRowAxes) in.expected("at most 8 row axes");
        program_.rows.push_back(in.expression(","));
      }
      state_ = kColumns;
    } else if (state_ == kColumns) {
      in.need("columns");
      program_.columns = in.expression("");
      state_ = kCode;
    } else if (in.take("in")) {
      param(in, program_.in, "in");
    } else if (in.take("out")) {
      param(in, program_.out, "out");
    } else if (in.take("store")) {
      store(in);
    } else {
      instr(in);
    }
  }

  static void param(Line& in, std::vector<TensorType>& list, std::string_view kind) {
    if (in.index("") != list.size() || list.size() == kMaxParams)
      fail(ErrorCode::kInvalidArgument, "expected {}{}; the limit is {}", kind, list.size(),
           kMaxParams);
    in.need(":");
    in.skip();
    list.push_back(in.tensor_type());
  }

  static void access(Line& in, Access& a) {
    in.need("[");
    a.index = in.expression("]");
    in.need("]");
    if (!in.take("by")) return;
    uint32_t by = in.index("%");
    if (by >= kMaxInstrs) in.expected("an instruction");
    a.by = static_cast<int32_t>(by);
    in.need("below");
    a.limit = in.expression(":=");
  }

  void store(Line& in) {
    Store s;
    s.to.param = in.index("out");
    access(in, s.to);
    in.need("=");
    s.value = in.index("%");
    if (program_.stores.size() == kMaxParams) in.expected("one store per output");
    program_.stores.push_back(std::move(s));
  }

  void instr(Line& in) {
    if (program_.code.size() == kMaxInstrs) in.expected("at most 512 instructions");
    if (in.index("%") != program_.code.size())
      fail(ErrorCode::kInvalidArgument, "expected the instruction %{}", program_.code.size());
    in.need("=");
    auto it = op_names().find(in.word());
    if (it == op_names().end()) in.expected("an instruction");
    Instr made;
    made.op = it->second;
    if (made.op == Op::kConst) made.number = in.number();
    if (made.op == Op::kLoad) made.access.param = in.index("in");
    if (made.op == Op::kLoad || made.op == Op::kIndex) access(in, made.access);
    for (int i = 0; i < op_info(made.op).inputs(); ++i) {
      if (i > 0) in.need(",");
      made.in.push_back(in.index("%"));
    }
    if (made.op == Op::kSoftcap) {
      in.need(",");
      made.number = in.number();
    }
    in.need(":");
    made.type.elem = static_cast<Elem>(one_of(in, kElems));
    made.type.form = static_cast<Form>(one_of(in, kForms));
    program_.code.push_back(std::move(made));
  }

  static size_t one_of(Line& in, std::span<const std::string_view> names) {
    std::string_view w = in.word();
    for (size_t i = 0; i < names.size(); ++i)
      if (w == names[i]) return i;
    in.expected("a type such as \"f32 tile\"");
  }

  Program program_;
  State state_ = kHead;
};

}  // namespace

std::string print_program(const Program& program) {
  std::string out = "loop 1\nrows";
  for (size_t i = 0; i < program.rows.size(); ++i)
    out += (i == 0 ? " " : ", ") + program.rows[i].text();
  out += "\ncolumns " + program.columns.text() + "\n";
  for (size_t i = 0; i < program.in.size(); ++i)
    out += fmt::format("in{} : {}\n", i, program.in[i].text());
  for (size_t i = 0; i < program.out.size(); ++i)
    out += fmt::format("out{} : {}\n", i, program.out[i].text());
  for (size_t i = 0; i < program.code.size(); ++i)
    out += fmt::format("%{} = {}\n", i, instr_text(program.code[i]));
  for (const Store& s : program.stores)
    out += fmt::format("store out{}[{}]{} = %{}\n", s.to.param, s.to.index.text(), by_text(s.to),
                       s.value);
  return out;
}

Program parse_program(std::string_view text) { return ProgramParser().parse(text); }

}  // namespace tokamak::loop
