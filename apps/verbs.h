#pragma once
// The verbs of the command line, one small file each. A verb adds its subcommand; main runs the
// chosen one.
#include <CLI/CLI.hpp>

namespace tokamak {

void add_run_verb(CLI::App& app);
void add_chat_verb(CLI::App& app);
void add_program_verb(CLI::App& app);
void add_serve_verb(CLI::App& app);
void add_embed_verb(CLI::App& app);
void add_rag_verb(CLI::App& app);
void add_inspect_verb(CLI::App& app);
void add_explain_verb(CLI::App& app);
void add_tokenize_verb(CLI::App& app);
void add_template_verb(CLI::App& app);
void add_eval_verb(CLI::App& app);
void add_bench_verb(CLI::App& app);
void add_debug_verb(CLI::App& app);
void add_calibrate_verb(CLI::App& app);
void add_compile_verb(CLI::App& app);
void add_convert_verb(CLI::App& app);
void add_pull_verb(CLI::App& app);
void add_cache_verb(CLI::App& app);
void add_draft_verb(CLI::App& app);

}  // namespace tokamak
