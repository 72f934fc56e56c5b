#pragma once
// `tokamak explain`: what a model's plan does at one shape and why, as one JSON value from which
// the text and the page are generated. docs/explain.md lists its fields.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/explain/step_shape.h"
#include "compile/fuse/report.h"
#include "compile/pass.h"
#include "plan/machine.h"

namespace tokamak {

// Records what the passes did to one function, in order. Its hook is installed in
// CompileOptions::after_pass; it may outlive the compilation.
class PassRecord {
 public:
  // `function`: the one to explain; the function it was specialised from (step) is included.
  explicit PassRecord(const std::string& function);
  void captured(const Function& step);  // before any pass
  void add(const Function& function, const PassTiming& timing);
  // `function`: the one that the plan was made from, which is another one for plans of many rows
  // (--activations mixed).
  const Value& passes(std::string_view function) const { return line_of(function).passes; }
  const Value& graphs(std::string_view function) const { return line_of(function).graphs; }

 private:
  struct Line {
    std::string function;
    uint64_t last_hash = 0;
    Value passes = Value::array(), graphs = Value::array();
  };
  const Line& line_of(std::string_view function) const {
    return function == many_.function ? many_ : usual_;
  }
  Line usual_, many_;
};

struct ExplainRequest {
  std::string model, function, mode;
  StepShape shape;
  std::string backend, isa;
  Machine machine;
  const PlanSet* set = nullptr;
  const FusionReport* fusion = nullptr;  // may be null
  const PassRecord* passes = nullptr;    // may be null: a bundle has none
  const CallProfile* profile = nullptr;  // may be null: not run
  int measured_steps = 0;
  bool count = false;  // count bytes as well
};
Value explain(const ExplainRequest& request);

// --- explain_text.cc
std::string explain_text(const Value& report);
// --- explain_html.cc: one self-contained page.
std::string explain_html(const Value& report);
// --- explain_trace.cc: a Chrome/Perfetto trace of the passes and of the measured calls.
std::string explain_trace(const Value& report, const CallProfile& profile);

}  // namespace tokamak
