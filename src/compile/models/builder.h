#pragma once
// Shared by all model families: the inputs of `step`, weights by canonical name, KV groups and the
// final part that turns hidden states into logits, so that models read like the paper.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "compile/compiler.h"

namespace tokamak {

class ModelBuilder {
 public:
  ModelBuilder(const ModelConfig& config, const CompileOptions& options);

  const ModelConfig& config;
  const CompileOptions& options;

  // Inputs of step(), see docs/graph_text.md.
  Ref ids, pos, seq, slot, q_start, kv_len, out_rows;
  Ref mask;     // only with CompileOptions::tree_mask
  Ref types;    // of encoders with segments
  Ref adapter;  // only with CompileOptions::adapter_slots

  Function& fn() { return *fn_; }
  int64_t layers() const { return layers_; }  // of the function that is built
  bool slides(int64_t layer) const;
  bool rotates(int64_t layer) const;

  Ref weight(const std::string& name);  // declared on first use; throws if the file lacks it
  bool has(const std::string& name) const;
  Ref constant(const std::string& name, const std::vector<double>& values);

  Ref embed(Ref ids, const std::string& table);
  Ref linear(Ref x,
             const std::string& prefix);  // prefix.weight and, if present, prefix.bias, and the
                                          // change by the row's adapter
  // The model's kind of norm, with its epsilon unless another is given.
  Ref norm(Ref x, const std::string& prefix, double eps = 0);
  Ref head_norm(Ref x, const std::string& prefix);  // the same, with weights for each head
  Ref unit_norm(Ref x, int64_t width);              // of the mean square, without weights
  Ref clip(Ref x, double limit);
  Ref scaled(Ref x, double scale);               // x itself where the scale is 1
  Ref heads(Ref x, int64_t heads, int64_t dim);  // [t, n] -> [t, heads, dim]
  Ref merge_heads(Ref x);                        // [t, heads, dim] -> [t, n]
  Ref rope(Ref x, int64_t layer);
  Ref temper(Ref q);  // queries of a layer without positions: larger where the context is longer
  Ref activation(Ref x, Activation kind);
  Ref activation(Ref x) { return activation(x, config.activation); }
  Ref activation(Ref x, int64_t layer);  // where it may differ from layer to layer
  Ref op(std::string_view name, std::vector<Ref> in, Attrs attrs = {}, std::string label = {});
  std::vector<Ref> op_multi(std::string_view name, std::vector<Ref> in, Attrs attrs = {},
                            std::string label = {});

  // Writes the planes of this layer, k and v, and attends over everything visible: the causal core
  // of a layer.
  Ref append_and_attend(int64_t layer, Ref q, Ref k, Ref v);
  Ref attend_shared(int64_t layer, Ref q);  // over the keys and values of ModelConfig::kv_layer()
  // The same with planes c and kr; keys and values are the layer's matrices times c.
  Ref append_and_attend_latent(int64_t layer, Ref q, Ref c, Ref kr);

  // An op that advances a state per sequence: 0 is the layer's convolution, 1 its state space.
  Ref advance(int64_t layer, int which, std::string_view name, std::vector<Ref> in);

  // Attends over all rows of the sequence: the core of an encoder's layer.
  Ref attend_rows(int64_t layer, Ref q, Ref k, Ref v);
  // The vector of each sequence: its pooled rows, or the scores of the classifier; sets the results
  // of step().
  Module finish_encoder(Ref x);

  // Selects the output rows, normalises, multiplies by the output matrix; sets the results of the
  // function.
  void finish(Ref x, const std::string& final_norm);
  // Before each layer, with the sum that it adds to: kLayersFunction returns its logits.
  void before_layer(Ref x);
  // Begins the next function, after finish(): kExitFunction and kLayersFunction, where the options
  // ask for them. False: there is none.
  bool next_function();
  Module module() { return std::move(module_); }

 private:
  void begin_function(std::string_view name, int64_t layers);
  Ref head(Ref x);
  void finish_layers();
  void declare_inputs(const SymExpr& tokens, const SymExpr& outputs);
  bool attends(int64_t layer) const {
    return !config.only_mlp(layer) && (config.recurrent.beside || !config.recurrent.at(layer));
  }
  std::string kv_group(int64_t layer) const { return slides(layer) ? "window" : "full"; }
  bool uses_group(int64_t layer, std::string_view group) const;
  // Keys and values of a layer come before the states of its recurrent part.
  size_t first_state(int64_t layer) const;
  Ref view_of(std::string_view group) const;
  std::vector<Ref> append(int64_t layer, Ref q, Ref first, Ref second);
  Ref attend(int64_t layer, std::vector<Ref> in);
  void declare_recurrent_states(int64_t layer);
  Ref adapt(Ref y, Ref x, const std::string& prefix);
  Ref adapter_weight(const std::string& name, std::vector<Dim> dims);
  void declare_states();
  void declare_encoder_inputs();
  double score_scale(int64_t layer) const;

  Module module_;
  Function* fn_;
  int64_t layers_;
  Ref layer_rows_;                                  // only in kLayersFunction
  std::vector<Ref> layer_sums_;                     // likewise
  std::vector<std::pair<std::string, Ref>> views_;  // group -> input
  std::vector<Ref> states_;                         // current versions, layer by layer
};

// One function per family file; compile/models/registry.cc maps architectures to them.
Module build_decoder(const ModelConfig& config,
                     const CompileOptions& options);  // Llama and related models
Module build_gpt2(const ModelConfig& config, const CompileOptions& options);
Module build_gemma3n(const ModelConfig& config, const CompileOptions& options);
Module build_gemma4(const ModelConfig& config, const CompileOptions& options);
Module build_encoder(const ModelConfig& config, const CompileOptions& options);  // BERT and related

// What a layer with a recurrent state has in place of attention.
Ref recurrent_mixer(ModelBuilder& builder, Ref x, int64_t layer);

// Latent attention: the cache holds one vector per token for all heads.
Ref latent_attention(ModelBuilder& builder, Ref x, int64_t layer);

// The MLP of a layer that has experts: the router, the chosen experts and the shared one. The
// router reads x unless it is given something else.
Ref expert_mlp(ModelBuilder& builder, Ref x, int64_t layer, Ref routed = {});

// Embeddings of the token that are a layer's own (Gemma 3n and 4): [t, layers, width], and a row.
Ref layer_inputs(ModelBuilder& builder, Ref x);
Ref layer_input(ModelBuilder& builder, Ref inputs, int64_t layer);

}  // namespace tokamak
