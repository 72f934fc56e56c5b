#include "serve/openai/prometheus.h"

#include <fmt/format.h>

namespace tokamak::openai {

void add_label(std::string& labels, std::string_view name, std::string_view value) {
  if (!labels.empty()) labels += ',';
  labels += name;
  labels += "=\"";
  for (char c : value) {
    if (c == '\\' || c == '"') labels += '\\';
    if (c == '\n')
      labels += "\\n";
    else
      labels += c;
  }
  labels += '"';
}

void PrometheusText::family(std::string_view name, Type type, std::string_view help) {
  constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  name_ = name;
  // In OpenMetrics the family of a counter has the name without the suffix of its samples.
  if (open_ && type == Type::kCounter && name.ends_with("_total")) name.remove_suffix(6);
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name,
                 kTypes[static_cast<int>(type)]);
}

std::string PrometheusText::take() {
  if (open_) text_ += "# EOF\n";
  return std::move(text_);
}

void PrometheusText::line(std::string_view suffix, std::string_view labels, std::string_view more,
                          std::string_view value) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty() || !more.empty()) {
    text_ += '{';
    text_ += labels;
    if (!labels.empty() && !more.empty()) text_ += ',';
    text_ += more;
    text_ += '}';
  }
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void PrometheusText::sample(std::string_view labels, int64_t value) {
  line("", labels, "", fmt::format("{}", value));
}

void PrometheusText::sample(std::string_view labels, double value) {
  line("", labels, "", fmt::format("{}", value));
}

void PrometheusText::histogram(std::string_view labels, const Histogram& histogram) {
  uint64_t below = 0;
  auto bounds = histogram.bounds();
  auto counts = histogram.counts();
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    std::string edge = i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf";
    line("_bucket", labels, fmt::format("le=\"{}\"", edge), fmt::format("{}", below));
  }
  line("_sum", labels, "", fmt::format("{}", histogram.sum()));
  line("_count", labels, "", fmt::format("{}", histogram.count()));
}

}  // namespace tokamak::openai
