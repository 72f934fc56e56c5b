#include "serve/openai/request_log.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/openai/params.h"

namespace tokamak::openai {
namespace {

bool is_hex(std::string_view text, size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool all_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

std::string Trace::header() const { return fmt::format("00-{}-{}-{}", id, span, flags); }

// version-trace-parent-flags; malformed values are ignored, as the standard requires.
Trace trace_of(const http::Request& request) {
  Trace trace;
  trace.span = fmt::format("{:016x}", fresh_number() | 1);
  std::string_view text = request.header("traceparent");
  if (text.size() >= 55 && (text.size() == 55 || (text[55] == '-' && !text.starts_with("00"))) &&
      text[2] == '-' && text[35] == '-' && text[52] == '-') {
    std::string_view version = text.substr(0, 2), id = text.substr(3, 32),
                     parent = text.substr(36, 16), flags = text.substr(53, 2);
    if (is_hex(version, 2) && version != "ff" && is_hex(id, 32) && !all_zero(id) &&
        is_hex(parent, 16) && !all_zero(parent) && is_hex(flags, 2)) {
      trace.id = id;
      trace.parent = parent;
      trace.flags = flags;
      return trace;
    }
  }
  trace.id = fmt::format("{:016x}{:016x}", fresh_number(), fresh_number() | 1);
  trace.flags = "00";
  return trace;
}

bool Trace::sampled() const { return parent.empty() || (std::stoi(flags, nullptr, 16) & 1) != 0; }

RequestLog::RequestLog(const std::string& path, const std::string& collector,
                       const std::string& service)
    : exporter_(collector.empty() ? nullptr : std::make_unique<TraceExporter>(collector, service)) {
  if (!path.empty()) file_.emplace("request log", path);
}

void RequestLog::write(const Trace& trace, const Value& line) {
  if (exporter_ && trace.sampled()) {
    auto now = std::chrono::system_clock::now().time_since_epoch();
    exporter_->add(
        span_of(line, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  }
  if (file_) file_->write(dump_json(line));
}

Value RequestContext::line(int status, const std::string& error) const {
  Value line = Value::object();
  line.set("time", unix_seconds());
  line.set("trace_id", trace.id);
  line.set("span_id", trace.span);
  if (!trace.parent.empty()) line.set("parent_id", trace.parent);
  line.set("route", route);
  line.set("remote", remote);
  line.set("status", status);
  if (!error.empty()) line.set("error", error);
  line.set("duration_ms", seconds(SteadyClock().now() - start) * 1e3);
  return line;
}

}  // namespace tokamak::openai
