#pragma once
#include <CLI/CLI.hpp>
#include <memory>

#include "plan/step.h"

namespace tokamak {

// --temperature, --top-k ... as `run` and `chat` take them.
inline void add_sampling_flags(CLI::App& verb, SampleSpec& spec) {
  verb.add_option("--temperature", spec.temperature, "0 = always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  verb.add_option("--top-k", spec.top_k, "keep the k likeliest tokens (0 = all)")
      ->check(CLI::Range(0, 1 << 30));
  verb.add_option("--top-p", spec.top_p, "keep the likeliest tokens that reach this mass")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--min-p", spec.min_p, "drop tokens below this share of the best one")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--repetition-penalty", spec.repetition_penalty,
                  "divide the score of tokens seen before")
      ->check(CLI::Range(0.01, 100.0));
  verb.add_option("--presence-penalty", spec.presence_penalty,
                  "subtract once from tokens already written");
  verb.add_option("--frequency-penalty", spec.frequency_penalty, "subtract per occurrence");
}

}  // namespace tokamak
