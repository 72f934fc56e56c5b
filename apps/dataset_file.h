#pragma once
// Reads published sets of prompts for load tests.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tokamak {

struct DatasetEntry {
  std::string prompt;
  std::string answer;  // of the dataset; its length is that of the answer to ask for
  int64_t output = 0;  // tokens of the answer, if the file says so; 0: those of `answer`
};

// The format follows from the extension:
//   .json   ShareGPT: [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt",
//   ...}]}];
//           the first question is the prompt and the first answer the answer
//   .jsonl  {"prompt": "...", "output_tokens": 64}, as vLLM's custom datasets; output_tokens is
//           optional
// In the order of the file; conversations that do not begin with a question are skipped. Throws
// Error(kCorrupt) naming the entry.
std::vector<DatasetEntry> load_dataset(const std::filesystem::path& path);

}  // namespace tokamak
