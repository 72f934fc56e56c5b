// Logits of a GGUF file by llama.cpp, for tools/llama_goldens.py, which builds it.
//   llama_logits MODEL.gguf < lines of "id id ...|row row ...|tokens to continue greedily"
// Prints a line of logits per row, then a line with the continuation.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

std::vector<int> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<int> out;
  for (int x; in >> x;) out.push_back(x);
  return out;
}

void decode(llama_context* context, const std::vector<int>& ids, int from) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(ids.size()), 0, 1);
  batch.n_tokens = static_cast<int32_t>(ids.size());
  for (int i = 0; i < batch.n_tokens; ++i) {
    batch.token[i] = ids[i];
    batch.pos[i] = from + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch) != 0) std::exit(1);
  llama_batch_free(batch);
}

}  // namespace

int main(int, char** argv) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (std::string line; std::getline(std::cin, line);) {
    size_t first = line.find('|'), second = line.rfind('|');
    std::vector<int> ids = numbers(line.substr(0, first)),
                     rows = numbers(line.substr(first + 1, second - first - 1));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) return 1;
    decode(context, ids, 0);
    for (int row : rows) {
      const float* logits = llama_get_logits_ith(context, row);
      for (int i = 0; i < vocab; ++i) std::printf("%.9g ", static_cast<double>(logits[i]));
      std::printf("\n");
    }
    int count = std::stoi(line.substr(second + 1)), length = static_cast<int>(ids.size());
    for (int last = length - 1; count > 0; --count) {
      const float* logits = llama_get_logits_ith(context, last);
      int best = static_cast<int>(std::max_element(logits, logits + vocab) - logits);
      std::printf("%d ", best);
      if (count > 1) decode(context, {best}, length++);
      last = 0;
    }
    std::printf("\n");
    llama_free(context);
  }
}
