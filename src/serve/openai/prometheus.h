#pragma once
// Writes the Prometheus text format, or OpenMetrics.
#include <string>
#include <string_view>

#include "engine/stats.h"

namespace tokamak::openai {

// `model_name="x",kind="y"`, escaped; append to it with add_label.
void add_label(std::string& labels, std::string_view name, std::string_view value);

// One thread; families are written in the order they are begun, each with all its samples together,
// as the format requires.
class PrometheusText {
 public:
  enum class Type { kCounter, kGauge, kHistogram };
  explicit PrometheusText(bool open_metrics = false) : open_(open_metrics) {}
  void family(std::string_view name, Type type, std::string_view help);
  // Adds to the family begun last; labels as built by add_label.
  void sample(std::string_view labels, int64_t value);
  void sample(std::string_view labels, double value);
  void histogram(std::string_view labels, const Histogram& histogram);
  std::string take();

 private:
  void line(std::string_view suffix, std::string_view labels, std::string_view more,
            std::string_view value);
  const bool open_;
  std::string text_, name_;
};

}  // namespace tokamak::openai
