#include "apps/model_flags.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "apps/model_store.h"
#include "apps/terminal.h"
#include "base/file.h"
#include "text/usual_templates.h"

namespace tokamak {
namespace {

// CLI11 accepts numbers that are too large or negative, and turns them into others.
std::string check_seed(const std::string& text) {
  errno = 0;
  std::strtoull(text.c_str(), nullptr, 0);
  if (errno == 0 && !text.starts_with('-')) return "";
  return fmt::format("{}: a seed is a whole number from 0 to {}", text, UINT64_MAX);
}

void add_compile_flags(CLI::App& verb, OpenOptions& options) {
  verb.add_option(
      "--mode", options.mode,
      "compiled (default); max-autotune: also measures the best few kernels of each plan "
      "and keeps the fastest in the compile cache or the bundle; eager: op by op, "
      "without fusion or memory planning, as a baseline for speed-ups");
  verb.add_option("--shapes", options.shapes,
                  "auto (default): plans for a few sizes; dynamic: one plan for every shape; "
                  "buckets: plans of fixed sizes, and steps are padded to the next size; "
                  "fixed: as buckets, with every dimension padded");
  verb.add_option("--buckets", options.buckets,
                  "sizes for --shapes buckets, e.g. 128,512,2048 (default: 1, 8, 16, 32, 64 and "
                  "multiples of 64)")
      ->delimiter(',');
  verb.add_flag_callback(
      "--no-compile-cache", [&options] { options.compile_cache = false; },
      "do not read or write the compile cache (see tokamak cache ls)");
  verb.add_flag_callback(
      "--no-verify", [&options] { options.verify = false; },
      "do not compare the checksums of a bundle's weights");
}

}  // namespace

void add_model_argument(CLI::App& verb, OpenOptions& options) {
  verb.add_option("MODEL", options.model,
                  "a .gguf file, a folder with config.json, tokenizer.json and safetensors, a "
                  "bundle from tokamak compile, or the name of a pulled model")
      ->required()
      ->transform(find_model);
}

void add_model_flags(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--backend", options.backend,
                  "cpu, cuda (an NVIDIA GPU), auto (cuda where a GPU has room for the model, "
                  "otherwise cpu), ref (slow reference) or null (computes nothing); default: cpu, "
                  "or what a bundle was compiled for");
  verb.add_option("--gpu-memory-utilization", options.gpu_memory_utilization,
                  "--backend cuda: share of the GPU's memory to use, e.g. 0.9; the KV cache gets "
                  "what remains after the model (default: the cache has its usual size)");
  verb.add_option("--quantization", options.quantization,
                  "--backend cuda: fp8 = decode steps of up to 8 sequences read bf16 weights as "
                  "FP8 (E4M3, a scale per row), which are kept beside them");
  verb.add_option("--threads", options.threads, "threads of the cpu backend (default: all cores)");
  verb.add_option("--context", options.context,
                  "longest sequence in tokens (default: the model's, at most 8192)");
  verb.add_option("--seed", options.seed, "seed of the sampling noise")
      ->capture_default_str()
      ->check(check_seed);
  verb.add_option(
      "--activations", options.activations,
      "auto (default): int8 activations for quantised weights and, on CPUs that multiply bf16, "
      "bf16 for 16-bit weights; f32; on such CPUs, bf16 for f32 weights too and, with AMX, for "
      "all weights: faster with many tokens; with AMX, mixed: auto for steps of few tokens, bf16 "
      "for steps of many, so an answer may depend on what else runs in the same steps, on drafts "
      "and on how its prompt was divided; on CPUs with AVX-512, i16 for float weights: int16 with "
      "a "
      "scale for 128 values, a little less exact than f32 and faster");
  verb.add_option("--merge-adapter", options.merge_adapters,
                  "add this LoRA or DoRA adapter to the weights of the model, which must be f32, "
                  "f16 or bf16: a PEFT folder or a GGUF file (may be repeated)");
  verb.add_option(
      "--pooling", options.pooling,
      "which tokens give the embedding of a text: mean (all), cls (the first), last, or "
      "none (one vector per token, for /embedding) (default: as the model's files say)");
  verb.add_option("--storage", options.storage,
                  "type of values between ops: f32, f16 or bf16, then residual=TYPE, logits=TYPE");
  verb.add_flag(
      "--materialized-prefill", options.materialized_prefill,
      "latent attention (DeepSeek): prompts compute keys and values of each head, which is "
      "faster for long prompts; the answer may then depend on how a prompt was divided");
  verb.add_option("--kv-dtype", options.kv_dtype,
                  "element type of the KV cache: f16 (default), f32, or int8 with a scale per "
                  "token and head");
  verb.add_option("--disable-pass", options.disabled_passes,
                  "compile without these passes (tokamak debug passes lists them)")
      ->delimiter(',');
  verb.add_option("--dump-after", options.dump_after,
                  "print the graph to stderr after these passes")
      ->delimiter(',');
  verb.add_option("--machine", options.machine_file,
                  "machine file (JSON) for the fusion planner and for --backend null");
  add_compile_flags(verb, options);
}

void add_template_flag(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--template-name", options.chat_template,
                  "which of the model's chat templates to use, e.g. tool_use");
  verb.add_option(
      "--chat-template", options.chat_template_file,
      "chat template to use: a file (Jinja), the template itself, the name of one of the "
      "model's own, or a usual form: " +
          usual_template_names());
}

void add_batch_flags(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--max-num-seqs", options.max_sequences,
                  "sequences that run at the same time (default: 64)");
  verb.add_option("--max-num-batched-tokens", options.max_step_tokens,
                  "maximum number of tokens per step (default: 512)");
}

void add_lora_flag(CLI::App& verb, OpenOptions& options, GenerateOptions& generate) {
  verb.add_option_function<std::string>(
      "--lora",
      [&](const std::string& path) {
        options.adapters = {{"lora", path}};
        options.max_adapters = 1;
        generate.adapter = "lora";
      },
      "answer with this adapter: a PEFT folder or a GGUF file; works with quantised models too");
}

void add_speculative_flags(CLI::App& verb, OpenOptions& options) {
  CLI::Option* name =
      verb.add_option("--speculate", options.speculative,
                      "guess tokens and verify several in one step; the answer stays the same. "
                      "ngram: continue earlier occurrences of the last tokens; suffix: also those "
                      "in earlier answers, weighted by frequency; early_exit: the model's first "
                      "layers; lookahead: guesses that every step improves; off (default)");
  verb.add_option("--speculative-config", options.speculative,
                  "the same with settings, as JSON with vLLM's names: '{\"method\": \"ngram\", "
                  "\"num_speculative_tokens\": 5, \"prompt_lookup_max\": 4}'")
      ->excludes(name);
  verb.add_option("--draft-model", options.draft_model,
                  "a smaller model that guesses the tokens; its tokenizer may differ");
}

void add_sampling_flags(CLI::App& verb, GenerateOptions& options) {
  verb.add_option("--temperature", options.temperature,
                  "0 = always the likeliest token (default: the model's own, else 1)");
  verb.add_option("--top-k", options.top_k, "keep only the k likeliest tokens (0 = all)");
  verb.add_option("--top-p", options.top_p,
                  "keep only the likeliest tokens that together reach this probability");
  verb.add_option("--min-p", options.min_p,
                  "drop tokens below this fraction of the likeliest token's probability");
  verb.add_option(
      "--typical-p,--typical", options.typical_p,
      "keep the tokens whose surprise is closest to the entropy, up to this probability");
  verb.add_option("--top-n-sigma", options.top_n_sigma,
                  "keep the tokens within this many standard deviations of the largest logit "
                  "(-1 = off)");
  verb.add_option("--xtc-probability", options.xtc_probability,
                  "how often XTC drops the likeliest tokens (0 = off)");
  verb.add_option("--xtc-threshold", options.xtc_threshold,
                  "XTC drops the tokens with at least this probability, except the least likely of "
                  "them (default: 0.1)");
  verb.add_option("--dynatemp-range", options.dynatemp_range,
                  "how far the entropy moves the temperature, in both directions (0 = off)");
  verb.add_option("--dynatemp-exponent,--dynatemp-exp", options.dynatemp_exponent,
                  "exponent of --dynatemp-range (default: 1)");
  verb.add_option("--min-tokens", options.min_tokens,
                  "end-of-text tokens are not chosen before this many tokens");
  verb.add_option("--repeat-last-n", options.repeat_last_n,
                  "how many of the last tokens the penalties consider (-1 = all)");
  verb.add_option("--repetition-penalty", options.repetition_penalty,
                  "make tokens that occurred before less likely (1 = off)");
  verb.add_option("--presence-penalty", options.presence_penalty,
                  "subtract this from the logit of every token in the answer so far");
  verb.add_option(
      "--frequency-penalty", options.frequency_penalty,
      "subtract this from the logit of a token once for each time it occurs in the answer so far");
  verb.add_option("--mirostat", options.mirostat,
                  "Mirostat 1 or 2 instead of top-k, top-p and min-p (0 = off)");
  verb.add_option("--mirostat-tau,--mirostat-ent", options.mirostat_tau,
                  "target of Mirostat, in bits per token (default: 5)");
  verb.add_option("--mirostat-eta,--mirostat-lr", options.mirostat_eta,
                  "learning rate of Mirostat (default: 0.1)");
  verb.add_option("--guidance-scale,--cfg-scale", options.guidance_scale,
                  "classifier-free guidance: values above 1 steer away from --negative-prompt");
  verb.add_option("--negative-prompt,--cfg-negative-prompt", options.negative_prompt,
                  "what --guidance-scale steers away from (default: the prompt's last token)");
  verb.add_option("--samplers", options.samplers,
                  "the order of sampling, e.g. 'penalties;top_k;temperature'; stages that are not "
                  "named do not run")
      ->delimiter(';');
}

void add_search_flags(CLI::App& verb, OpenOptions& model, GenerateOptions& options) {
  verb.add_option_function<std::string>(
      "--dola",
      [&](const std::string& layers) {
        options.dola = layers;
        model.dola = true;
      },
      "DoLa: contrast the logits with those of earlier layers: low, high, or a list such as "
      "8,10,12");
  verb.add_option("--penalty-alpha", options.penalty_alpha,
                  "contrastive search: weight of the similarity to earlier text against the "
                  "probability; with --top-k candidates");
}

void add_grammar_flags(CLI::App& verb, GenerateOptions& options) {
  verb.add_option_function<std::string>(
          "--grammar",
          [&options](const std::string& path) {
            options.grammar = read_text_file(path, grammar::kMaxSourceBytes);
          },
          "file with a grammar (GBNF or Lark) that the answer follows")
      ->check(CLI::ExistingFile);
  verb.add_option_function<std::string>(
      "--json-schema",
      [&options](const std::string& text) {
        bool inline_text = text.find('{') != std::string::npos || text == "true";
        options.json_schema = inline_text ? text : read_text_file(text, grammar::kMaxSourceBytes);
      },
      "JSON schema that the answer follows: a file, or the schema itself");
  verb.add_option("--regex", options.regex, "regular expression that the whole answer matches");
  verb.add_option("--choice", options.choices, "the answer is one of these (may be repeated)");
  add_jump_flag(verb, options);
}

void add_jump_flag(CLI::App& verb, GenerateOptions& options) {
  verb.add_flag("--jump-forward,!--no-jump-forward", options.jump_forward,
                "append text that a grammar forces without running the model for it");
}

LoadedModel load_with_progress(OpenOptions options) {
  ProgressBar bar("loading weights");
  options.on_progress = [&](uint64_t done, uint64_t total) { bar.update(done, total); };
  return load_model(options);
}

Model open_with_progress(OpenOptions options) {
  ProgressBar bar("loading weights");
  options.on_progress = [&](uint64_t done, uint64_t total) { bar.update(done, total); };
  return open_model_handle(options);
}

}  // namespace tokamak
