#include "engine/client.h"

namespace tokamak {

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kNone:
      return "none";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kTimeout:
      return "timeout";
    case Finish::kError:
      return "error";
  }
  return "none";
}

SavedPrefix Client::save_slot(int32_t, const std::string&) {
  fail(ErrorCode::kUnsupported, "there are no slots to save");
}
void Client::restore_slot(int32_t, const std::string&, const SavedPrefix&) {
  fail(ErrorCode::kUnsupported, "there are no slots to restore");
}
int64_t Client::erase_slot(int32_t, const std::string&) {
  fail(ErrorCode::kUnsupported, "there are no slots to erase");
}

}  // namespace tokamak
