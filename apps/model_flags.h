#pragma once
// Command-line flags that fill the options of api/open.h, shared by several verbs.
#include <CLI/CLI.hpp>
#include <string>

#include "api/open.h"

namespace tokamak {

void add_model_argument(CLI::App& verb, OpenOptions& options);  // MODEL
// --backend --threads --context --seed --activations ...
void add_model_flags(CLI::App& verb, OpenOptions& options);
void add_template_flag(CLI::App& verb, OpenOptions& options);  // --template-name
// --max-num-seqs --max-num-batched-tokens
void add_batch_flags(CLI::App& verb, OpenOptions& options);
// --lora of run and chat
void add_lora_flag(CLI::App& verb, OpenOptions& options, GenerateOptions& generate);
void add_speculative_flags(CLI::App& verb, OpenOptions& options);  // --speculate ...
// --temperature --top-k ... --seed is among the model flags.
void add_sampling_flags(CLI::App& verb, GenerateOptions& options);
// --grammar --json-schema --regex --choice --jump-forward
// DoLa and contrastive search.
void add_search_flags(CLI::App& verb, OpenOptions& model, GenerateOptions& options);
void add_grammar_flags(CLI::App& verb, GenerateOptions& options);
void add_jump_flag(CLI::App& verb, GenerateOptions& options);

// load_model and open_model_handle with a progress bar on a terminal.
LoadedModel load_with_progress(OpenOptions options);
Model open_with_progress(OpenOptions options);

}  // namespace tokamak
