#include <utility>

#include "text/output/call_scanner.h"
#include "text/output/machines.h"

namespace tokamak {
namespace {

class JsonCalls final : public CallMachine {
 protected:
  bool step(CallSink& sink) override {
    if (reading_) return read(sink);
    if (!skip_space()) return false;
    const char c = held_[0];
    if (c == '{' && !after_) {
      scanner_ = {};
      reading_ = true;
      begun_ = false;
      return true;
    }
    if (c == '[' && !list_ && !after_) {
      list_ = true;
    } else if (c == ',' && after_) {
      after_ = false;
    } else if (c == ']' && list_) {
      held_.erase(0, 1);
      return any_ ? done() : bad();
    } else {
      return bad();
    }
    held_.erase(0, 1);
    return true;
  }

 private:
  bool read(CallSink& sink) {
    held_.erase(0, scanner_.push(held_));
    if (scanner_.begun()) {
      any_ = true;
      if (!std::exchange(begun_, true)) sink.begin(scanner_.name());
      if (std::string more = scanner_.take_arguments(); !more.empty()) sink.add(more);
    }
    if (scanner_.state() == CallScanner::State::kReading) return false;
    if (scanner_.state() == CallScanner::State::kBad) return bad();
    reading_ = false;
    after_ = true;
    return list_ ? true : done();
  }

  CallScanner scanner_;
  bool list_ = false, reading_ = false, begun_ = false, after_ = false, any_ = false;
};

}  // namespace

std::unique_ptr<CallMachine> make_json_calls() { return std::make_unique<JsonCalls>(); }

}  // namespace tokamak
