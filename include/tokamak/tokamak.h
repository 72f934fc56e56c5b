#pragma once
// Tokamak's C++ API: open a model, generate text, chat, embed, tokenize, score. docs/api.md has a
// tour.
//
//   tokamak::Model model("SmolLM2-135M-Instruct.Q4_1.gguf");
//   std::cout << model.generate("The capital of France is", {.max_tokens = 8}).text;
//
// Errors. A function that fails throws tokamak::Error (tokamak/error.h).
// Threads. All const functions of a Model may be called from any number of threads at a time;
// their requests run as one batch. A Stream belongs to one thread, except for Stream::cancel.
// Callbacks run on the thread that called the function, never on a thread of the library, except
// for ModelOptions::on_progress (stated there).
// Lifetimes. A Model is a handle: copies refer to the same loaded model, which is freed with its
// last handle or stream. Arguments are only used during the call; results own what they hold.
// Determinism. The tokens of a request depend on its prompt, its options and the seed, never on
// what else runs, on the number of threads, or on how requests are batched.
#include <tokamak/error.h>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tokamak {

const char* version();  // "0.1.0"

// How to open a model. What is left empty, zero or unset has a default; for a bundle, which was
// compiled before, the default is what it was compiled with, and asking for something else throws
// Error(kInvalidArgument or kOutOfRange).
// (Members of option structs have initializers so that designated ones may leave any of them out.)
struct ModelOptions {
  // "cpu", "cuda", "auto" (cuda where a GPU has room for the model), "ref" (slow: the definition)
  // or "null" (computes nothing)
  std::string backend{};
  int threads = 0;         // of the cpu backend; 0: all cores
  int64_t context = 0;     // longest sequence in tokens; 0: the model's own, at most 8192
  std::string kv_dtype{};  // of the KV cache: "f16" (default), "f32" or "int8"
  // "auto" (default): int8 where weights are quantised, bf16 where they have 16 bits and the CPU
  // multiplies bf16; "f32"; or "bf16"
  std::string activations{};
  std::string
      storage{};  // between ops: "bf16", "f16,residual=f32" ...; empty: the backend's choice
  std::string machine_file{};  // from `tokamak calibrate`; empty: built-in figures

  // How much may run at a time.
  int64_t max_sequences = 0;    // sequences in one step; 0: 64
  int64_t max_step_tokens = 0;  // tokens in one step; 0: 512
  uint64_t kv_cache_bytes = 0;  // 0: two sequences of full length, at least 16384 tokens
  bool prefix_cache = true;     // requests with a common prefix share its KV cache

  // Which tokens give embeddings: "mean", "cls" or "last"; empty: what the model's files say
  std::string pooling{};

  std::string chat_template{};  // which of the model's named chat templates; empty: its default

  // Speculative decoding: "ngram", "suffix", "off" (default), or JSON with the names of vLLM's
  // --speculative-config (docs/speculation.md). It changes the speed, never an answer (with
  // probabilistic rejection: its distribution).
  std::string speculative{};
  std::string draft_model{};  // a smaller model with the same tokenizer that guesses tokens

  bool dola = false;  // GenerateOptions::dola may be used; one more function is compiled

  // Low-rank adapters (docs/adapters.md): PEFT folders or GGUF files. Merged ones become part of
  // the weights. The others, {name, path}, stay beside them: GenerateOptions::adapter chooses one.
  std::vector<std::string> merge_adapters{};
  std::vector<std::pair<std::string, std::string>> adapters{};
  bool enable_adapters = false;  // also without `adapters`: Model::load_adapter adds some later
  int64_t max_adapters = 0;      // that run at the same time; 0: 4, or as many as `adapters`
  int64_t max_adapter_rank = 0;  // 0: the largest of `adapters`, at least 16

  // How it is compiled.
  std::string mode{};              // "compiled" (default) or "eager": op by op, for comparison
  std::string shapes{};            // "auto" (default), "dynamic", "buckets" or "fixed"
  std::vector<int64_t> buckets{};  // sizes for "buckets"
  std::vector<std::string> disabled_passes{};
  bool compile_cache = true;  // read and write compiled plans in ~/.cache/tokamak
  bool verify = true;         // compare the checksums of a bundle's weights

  // Called while weights are loaded, with bytes, possibly from several threads.
  std::function<void(uint64_t done, uint64_t total)> on_progress{};
};

// How to continue a prompt. An unset value is the model's own default, where its makers give one
// (generation_config.json or GGUF metadata), else the value named here. Ranges are those of the
// HTTP API; a value out of range throws Error(kInvalidArgument).
struct GenerateOptions {
  int32_t max_tokens = -1;                    // -1: until the model stops or the context is full
  uint64_t seed = 0;                          // the same seed gives the same answer
  std::optional<float> temperature{};         // 1; 0 always takes the likeliest token
  std::optional<int32_t> top_k{};             // 0: all tokens
  std::optional<float> top_p{};               // 1: all tokens
  std::optional<float> min_p{};               // 0: all tokens
  std::optional<float> typical_p{};           // 1: all tokens
  std::optional<float> repetition_penalty{};  // 1: none; counts prompt and answer
  std::optional<float> presence_penalty{};    // 0: none; counts the answer
  std::optional<float> frequency_penalty{};   // 0: none; counts the answer
  std::optional<int32_t> repeat_last_n{};     // tokens that penalties count; -1: all
  std::optional<float> top_n_sigma{};         // -1: all tokens
  std::optional<float> xtc_probability{};     // 0: off
  std::optional<float> xtc_threshold{};       // 0.1
  std::optional<float> dynatemp_range{};      // 0: a fixed temperature
  std::optional<float> dynatemp_exponent{};   // 1
  // Mirostat 1 or 2 instead of top_k, top_p, min_p and typical_p; 0: off. tau: target in bits per
  // token (5); eta: learning rate (0.1).
  std::optional<int32_t> mirostat{};
  std::optional<float> mirostat_tau{}, mirostat_eta{};
  // Classifier-free guidance: above 1 the answer follows the prompt more closely than it would
  // follow the negative prompt (empty: the last token of the prompt). Costs a second sequence.
  std::optional<float> guidance_scale{};  // 1: off
  std::string negative_prompt{};
  // DoLa (ModelOptions::dola): the logits are contrasted with those of earlier layers: "low",
  // "high", or numbers of layers, "8,10,12" (docs/engine.md). Empty: off.
  std::string dola{};
  // Contrastive search: of top_k candidates, the likely one that resembles the text before it
  // least. From 0 (off) to 1. It does not sample, and stops at tokens only.
  std::optional<float> penalty_alpha{};
  // The order of sampling, with llama.cpp's names: "top_k", "temperature" ... (docs/engine.md).
  // Stages that are not named do not run. Empty: the default order.
  std::vector<std::string> samplers{};
  std::vector<std::pair<int32_t, float>> logit_bias{};  // {token id, added to its logit}
  std::vector<std::string> stop{};                      // the answer ends before any of these texts
  std::vector<int32_t> stop_ids{};  // the answer ends before any of these tokens
  bool ignore_eos = false;          // do not stop at the model's end-of-text tokens
  int32_t min_tokens = 0;           // end-of-text tokens are not chosen before this many tokens
  bool logprobs = false;            // fill Result::logprobs

  // At most one of these may constrain the answer (docs/structured.md). It then ends where the
  // grammar may end; with max_tokens it may be cut off before.
  std::string json_schema{};           // a JSON schema; "{}": any JSON value
  std::string regex{};                 // the whole answer matches it
  std::string grammar{};               // GBNF, as in llama.cpp, or Lark
  std::vector<std::string> choices{};  // one of these
  // Text that the grammar forces is appended without running the model, as the tokenizer splits it.
  // Saves time; the answer may be split into other tokens. Has no effect with `logprobs`.
  bool jump_forward = false;

  std::string adapter{};  // name of a loaded adapter; empty: none

  // With ModelOptions::speculative: most drafted tokens per step; 0: none, unset: the model's.
  std::optional<int32_t> draft_tokens{};
};

// One message of a conversation; role is "system", "user" or "assistant".
struct Message {
  std::string role, content;
};
using Chat = std::vector<Message>;

// What a model can continue: text, a conversation (rendered with the model's chat template), or
// token ids that are used as they are.
using Prompt = std::variant<std::string, Chat, std::vector<int32_t>>;

enum class FinishReason {
  kStop,       // an end-of-text token, a stop text or a stop id
  kLength,     // max_tokens or the end of the context
  kCancelled,  // by the caller
};
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

struct Result {
  std::string text;
  std::vector<int32_t> ids;     // without the token that ended the answer
  std::vector<float> logprobs;  // parallel to ids, if asked for
  FinishReason finish = FinishReason::kStop;
  std::vector<int32_t> prompt_ids;
  int64_t cached_tokens = 0;                        // of the prompt: found in the prefix cache
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of speculation
  double prompt_seconds = 0;                        // from the call to the first token
  double generate_seconds = 0;                      // from the first token to the last
};

// An answer while it is generated, to be read piece by piece:
//
//   for (const std::string& piece : model.stream("Once upon a time")) std::cout << piece;
//
// Generation goes on while the caller is busy. Destroying a Stream cancels its request.
class Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Waits for the next piece of text, which never ends inside a UTF-8 character; nullopt at the
  // end. Throws what ended the request early.
  std::optional<std::string> next();
  // Ends the answer soon; next() then returns what is left. From any thread, any number of times.
  void cancel();
  // The whole answer; waits for its end.
  const Result& result();

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::string;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::string*;
    using reference = const std::string&;
    explicit Iterator(Stream* stream = nullptr) : stream_(stream) {
      if (stream_) ++*this;
    }
    reference operator*() const { return *piece_; }
    pointer operator->() const { return &*piece_; }
    Iterator& operator++() {
      piece_ = stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const {
      return piece_.has_value() == other.piece_.has_value();
    }

   private:
    Stream* stream_;
    std::optional<std::string> piece_;
  };
  Iterator begin() { return Iterator(this); }
  Iterator end() { return Iterator(); }

 private:
  friend class Model;
  class Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct ModelInfo {
  std::string name;     // of the file or folder, without its extension
  std::string backend;  // that runs it
  int64_t context = 0;  // longest prompt plus answer
  int64_t vocab = 0;
  bool has_chat_template = false;
  double load_seconds = 0;
  bool generates = true;              // false: an encoder, which embeds or classifies texts
  int64_t embedding_size = 0;         // numbers of an embedding; 0: the model gives none
  std::vector<std::string> labels{};  // of a classifier; one label: it scores pairs of texts
};

// How texts become vectors.
struct EmbedOptions {
  // Name of one of the model's prompts; empty: its default. "query" and "document" are valid for
  // every model.
  std::string prompt{};
  int64_t dimensions = 0;           // keep the first values only; 0: all
  std::optional<bool> normalize{};  // to length 1; unset: as the model's files say
  bool truncate = false;            // cut texts that are too long, instead of throwing
};

struct OpenOptions;  // internal

class Model {
 public:
  // Opens a .gguf file, a folder with config.json, tokenizer.json and safetensors, or a bundle
  // (.tkm): compiles it for this machine, or takes the plans from the compile cache or the bundle,
  // and loads its weights.
  explicit Model(const std::string& path, const ModelOptions& options = {});

  const ModelInfo& info() const;
  // The sampling values that a request gets when it sets nothing; every optional is set.
  const GenerateOptions& defaults() const;

  // Called with each piece of text; returning false ends the answer (FinishReason::kCancelled).
  // If it throws, the request is cancelled and the exception reaches the caller of generate.
  using OnText = std::function<bool(std::string_view piece)>;

  Result generate(const Prompt& prompt, const GenerateOptions& options = {},
                  const OnText& on_text = {}) const;
  // All prompts at the same time, results in the same order. The answer to a prompt is the one
  // that generate gives. If one of them fails, all are cancelled and its error is thrown.
  std::vector<Result> generate_batch(const std::vector<Prompt>& prompts,
                                     const GenerateOptions& options = {}) const;
  Stream stream(const Prompt& prompt, const GenerateOptions& options = {}) const;

  // Adapters, with ModelOptions::enable_adapters. Requests that run keep theirs when it is
  // unloaded. Throw Error for an adapter that does not fit the model, a name that is taken or
  // unknown.
  void load_adapter(const std::string& name, const std::string& path) const;
  void unload_adapter(const std::string& name) const;
  std::vector<std::string> adapters() const;  // names

  // Runs a generation program (docs/programs.md), given as JSON, and returns its result as JSON:
  // {"output", "variables", "text" or "messages", "usage"}. Its branches run as one batch and share
  // the KV cache of what they have in common. Throws Error(kInvalidArgument) whose message begins
  // with the path of the statement that is wrong or exceeds a limit. on_event is called with each
  // piece of text and each result, as JSON; returning false throws Error(kCancelled).
  using OnEvent = std::function<bool(const std::string& event)>;
  // on_call gives the result of a call, both as JSON: {"id", "branch", "tool", "arguments"}.
  // Without it, a program with calls throws Error(kUnsupported).
  using OnCall = std::function<std::string(const std::string& call)>;
  std::string run_program(std::string_view program, const OnEvent& on_event = {},
                          const OnCall& on_call = {}) const;

  // Log-probabilities of the prompt's tokens, each given the tokens before it, from token `first`
  // on (at least 1: nothing comes before token 0). Empty for a prompt that is not longer.
  std::vector<float> score(const Prompt& prompt, int32_t first = 1) const;

  // One vector per text, computed together. A text's vector does not depend on the others. Throws
  // Error(kUnsupported) when the model gives no embeddings and Error(kOutOfRange) for a text that
  // is too long.
  std::vector<std::vector<float>> embed(const std::vector<std::string>& texts,
                                        const EmbedOptions& options = {}) const;
  std::vector<float> embed_one(const std::string& text, const EmbedOptions& options = {}) const;
  // How well each document answers the query, higher is better: from 0 to 1 of a model that scores
  // pairs, the cosine of the embeddings otherwise.
  std::vector<double> rerank(const std::string& query, const std::vector<std::string>& documents,
                             const EmbedOptions& options = {}) const;
  // The probability of each of info().labels, per text.
  std::vector<std::vector<double>> classify(const std::vector<std::string>& texts,
                                            const EmbedOptions& options = {}) const;

  // Text to ids. add_special: with BOS and the like; parse_special: "<|im_end|>" in the text
  // becomes the control token.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special = true,
                                bool parse_special = true) const;
  // Ids to text. Valid UTF-8: U+FFFD stands for bytes that are not. Ids beyond the vocabulary have
  // no text.
  std::string detokenize(const std::vector<int32_t>& ids, bool skip_special = true) const;
  // The ids of any prompt, as generate sees them.
  std::vector<int32_t> prompt_ids(const Prompt& prompt) const;
  // The text of a conversation in the model's chat template. To generate from it, pass the Chat
  // itself: tokenizing this text would add BOS a second time. Throws Error(kUnsupported) when the
  // model has no template.
  std::string render_chat(const Chat& chat, bool add_generation_prompt = true) const;

 private:
  friend class Stream;
  friend Model open_model_handle(const OpenOptions& options);
  class Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// Compiles a model for this machine into a bundle: one file that holds plans, packed weights and
// tokenizer and that opens without compiling. An existing file is replaced as a whole or kept.
void compile_bundle(const std::string& path, const std::string& bundle,
                    const ModelOptions& options = {});

}  // namespace tokamak
