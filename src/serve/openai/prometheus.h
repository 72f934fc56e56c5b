#pragma once
// Writes the text format that Prometheus reads.
#include <string>
#include <string_view>

#include "engine/stats.h"

namespace tokamak::openai {

// `model_name="x",kind="y"`, escaped; append to it with add_label.
void add_label(std::string& labels, std::string_view name, std::string_view value);

// One thread; families in the order they are begun, each with all its samples together, as the
// format wants it.
class PrometheusText {
 public:
  enum class Type { kCounter, kGauge, kHistogram };
  void family(std::string_view name, Type type, std::string_view help);
  // Of the family begun last; labels as add_label makes them.
  void sample(std::string_view labels, int64_t value);
  void sample(std::string_view labels, double value);
  void histogram(std::string_view labels, const Histogram& histogram);
  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, std::string_view labels, std::string_view more,
            std::string_view value);
  std::string text_, name_;
};

}  // namespace tokamak::openai
