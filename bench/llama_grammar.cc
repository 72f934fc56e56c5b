// Decode speed of llama.cpp with a grammar and without, beside bench/constrained_decode.py:
//   g++ -O2 -std=c++17 -I$L/include -I$L/ggml/include bench/llama_grammar.cc -L$B/bin -lllama
//   -lggml -lggml-base -Wl,-rpath,$B/bin -o llama_grammar
//   ./llama_grammar MODEL GRAMMAR.gbnf PROMPT TOKENS THREADS ROUNDS
// ($L: a checkout, $B: its build folder.) Greedy, one sequence. As its own programs do, the grammar
// is first asked about the likeliest token alone, and about all tokens only if it does not allow
// that one. Prints CPU and wall milliseconds per token of both, the medians of the rounds, in
// turns; then microseconds of a mask of all tokens along one more constrained answer.
#include <llama.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Times {
  double cpu, wall;
};

// `masks`: the grammar is asked about all tokens in every step, and these are the microseconds.
llama_token choose(llama_context* context, llama_sampler* grammar,
                   std::vector<llama_token_data>& all, std::vector<double>* masks) {
  const float* logits = llama_get_logits_ith(context, -1);
  for (size_t i = 0; i < all.size(); ++i) all[i] = {static_cast<llama_token>(i), logits[i], 0};
  auto best = [&] {
    return std::max_element(all.begin(), all.end(),
                            [](auto& a, auto& b) { return a.logit < b.logit; })
        ->id;
  };
  llama_token id = best();
  if (!grammar) return id;
  if (masks) {
    std::vector<llama_token_data> tokens = all;
    llama_token_data_array whole{tokens.data(), tokens.size(), -1, false};
    auto start = std::chrono::steady_clock::now();
    llama_sampler_apply(grammar, &whole);
    masks->push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  llama_token_data one{id, 1, 0};
  llama_token_data_array single{&one, 1, -1, false};
  llama_sampler_apply(grammar, &single);
  if (single.data[0].logit == -INFINITY) {
    llama_token_data_array whole{all.data(), all.size(), -1, false};
    llama_sampler_apply(grammar, &whole);
    id = best();
  }
  llama_sampler_accept(grammar, id);
  return id;
}

// The time per token of an answer; a grammar that ends begins again.
Times decode(llama_model* model, llama_context* context, const std::string& gbnf,
             const std::vector<llama_token>& prompt, int tokens, std::string* text,
             std::vector<double>* masks = nullptr) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  llama_memory_clear(llama_get_memory(context), true);
  llama_sampler* grammar =
      gbnf.empty() ? nullptr : llama_sampler_init_grammar(vocab, gbnf.c_str(), "root");
  std::vector<llama_token_data> all(static_cast<size_t>(llama_vocab_n_tokens(vocab)));
  std::vector<llama_token> copy = prompt;
  llama_decode(context, llama_batch_get_one(copy.data(), static_cast<int32_t>(copy.size())));
  llama_token id = choose(context, grammar, all, masks);
  clock_t cpu = std::clock();
  auto wall = std::chrono::steady_clock::now();
  for (int i = 0; i < tokens; ++i) {
    if (llama_vocab_is_eog(vocab, id) && grammar) llama_sampler_reset(grammar);
    char piece[256];
    int n = llama_token_to_piece(vocab, id, piece, sizeof piece, 0, false);
    if (text && n > 0) text->append(piece, static_cast<size_t>(n));
    llama_decode(context, llama_batch_get_one(&id, 1));
    id = choose(context, grammar, all, masks);
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
  double used = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  if (grammar) llama_sampler_free(grammar);
  return {1e3 * used / tokens, 1e3 * seconds / tokens};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7)
    return std::fprintf(stderr, "llama_grammar MODEL GRAMMAR PROMPT TOKENS THREADS ROUNDS\n"), 2;
  std::stringstream gbnf;
  gbnf << std::ifstream(argv[2]).rdbuf();
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_threads = params.n_threads_batch = std::atoi(argv[5]);
  llama_context* context = llama_init_from_model(model, params);
  std::string prompt = argv[3], text;
  std::vector<llama_token> ids(prompt.size() + 16);
  ids.resize(static_cast<size_t>(llama_tokenize(llama_model_get_vocab(model), prompt.c_str(),
                                                static_cast<int32_t>(prompt.size()), ids.data(),
                                                static_cast<int32_t>(ids.size()), true, true)));
  std::vector<double> cpu[2], wall[2];
  for (int round = 0; round < std::atoi(argv[6]); ++round)
    for (int constrained : {0, 1}) {
      Times t = decode(model, context, constrained ? gbnf.str() : "", ids, std::atoi(argv[4]),
                       constrained && round == 0 ? &text : nullptr);
      cpu[constrained].push_back(t.cpu);
      wall[constrained].push_back(t.wall);
    }
  auto median = [](std::vector<double> v) {
    return std::sort(v.begin(), v.end()), v[v.size() / 2];
  };
  std::printf(
      "llama.cpp: free %.2f ms CPU, %.2f ms; constrained %.2f ms CPU, %.2f ms; ratio %.3f CPU, "
      "%.3f\n%s\n",
      median(cpu[0]), median(wall[0]), median(cpu[1]), median(wall[1]),
      median(cpu[1]) / median(cpu[0]), median(wall[1]) / median(wall[0]), text.c_str());
  std::vector<double> masks;
  decode(model, context, gbnf.str(), ids, std::atoi(argv[4]), nullptr, &masks);
  std::sort(masks.begin(), masks.end());
  std::printf("a mask of all tokens: median %.0f us, p99 %.0f us, longest %.0f us\n",
              masks[masks.size() / 2], masks[masks.size() * 99 / 100], masks.back());
}
