// The body of a chat or completion request (the first byte selects) -> a prepared request. Anything
// but Error is a finding.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/fake_client.h"
#include "serve/openai/prepare.h"

using namespace tokamak;

namespace {

void read_body(std::string_view text, bool chat) {
  log::set_level(log::Level::kError);  // unknown fields are logged
  static const auto model = std::make_shared<const ServedModel>(testing::fake_model(nullptr));
  Value body = parse_json(text);
  if (chat)
    openai::prepare_chat(body, model);
  else
    openai::prepare_completion(body, model);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    read_body(text, data[0] % 2 == 0);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
