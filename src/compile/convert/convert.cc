#include "compile/convert/convert.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/thread_pool.h"
#include "compile/convert/describe.h"
#include "compile/convert/layout.h"
#include "compile/open_model.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// One tensor of the output: how to get its values, and the type to write.
struct Job {
  std::string name;
  std::vector<int64_t> dims;
  DType from, to;
  uint64_t bytes_in = 0;
  std::function<FileBytes()> read;
};

int64_t elements(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

size_t bytes_of(DType dtype, const std::vector<int64_t>& dims) {
  size_t rows = static_cast<size_t>(elements(dims) / std::max<int64_t>(1, dims.back()));
  return rows * dtype_bytes(dtype, dims.back());
}

// Encodes tensors on all threads and collects the report.
class Converter {
 public:
  explicit Converter(const ConvertOptions& options) : options_(options), pool_(options.threads) {}

  ConvertReport& report() { return report_; }
  void expect(const std::vector<Job>& jobs) {
    for (const Job& job : jobs) total_ += job.bytes_in;
  }

  std::vector<std::byte> run(const Job& job) {
    FileBytes source = job.read();
    size_t size = bytes_of(job.to, job.dims);
    ConvertedTensor done{job.name, job.from, job.to, job.dims, job.bytes_in, size, 0};
    std::vector<std::byte> out(size);
    if (source.dtype == job.to)
      std::memcpy(out.data(), source.bytes.data(), size);
    else
      done.nmse = encode(job, source, out);
    report_.bytes_in += job.bytes_in;
    report_.bytes_out += size;
    report_.tensors.push_back(std::move(done));
    if (options_.progress && !options_.progress(report_.bytes_in, total_))
      fail(ErrorCode::kCancelled, "the conversion was interrupted; nothing was written");
    return out;
  }

 private:
  double encode(const Job& job, const FileBytes& source, std::vector<std::byte>& out) {
    int64_t columns = job.dims.back(), rows = elements(job.dims) / columns;
    size_t in_row = dtype_bytes(source.dtype, columns), out_row = dtype_bytes(job.to, columns);
    std::vector<double> errors(static_cast<size_t>(pool_.size())), powers(errors.size());
    pool_.split(rows, 1, [&](int64_t begin, int64_t end, int thread) {
      std::vector<float> values(static_cast<size_t>(columns)), back(values.size());
      double error = 0, power = 0;
      for (int64_t r = begin; r < end; ++r) {
        auto row = static_cast<size_t>(r);
        decode_row(source.dtype, source.bytes.data() + row * in_row, values.data(), columns);
        encode_row(job.to, values.data(), out.data() + row * out_row, columns);
        decode_row(job.to, out.data() + row * out_row, back.data(), columns);
        for (size_t i = 0; i < values.size(); ++i) {
          double x = values[i], d = x - double{back[i]};
          error += d * d;
          power += x * x;
        }
      }
      errors[static_cast<size_t>(thread)] += error;
      powers[static_cast<size_t>(thread)] += power;
    });
    double error = 0, power = 0;
    for (size_t i = 0; i < errors.size(); ++i) {
      error += errors[i];
      power += powers[i];
    }
    return power > 0 ? error / power : 0;
  }

  const ConvertOptions& options_;
  ThreadPool pool_;
  ConvertReport report_;
  uint64_t total_ = 0;
};

// A type of the same purpose whose blocks fit rows that are not a multiple of 256.
DType narrower(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
      return DType::kQ8_0;
    default:
      return DType::kIQ4_NL;
  }
}

DType fitting(DType type, int64_t columns) {
  if (columns % dtype_info(type).block_elements == 0) return type;
  if (dtype_info(type).block_elements == 256) return fitting(narrower(type), columns);
  return DType::kF16;
}

bool is_small(std::string_view name, const std::vector<int64_t>& dims) {
  // Routers, positions, segments and the parts of recurrent layers that are no matrices are small
  // and matter for every token.
  for (const char* part : {".ssm_conv1d.", ".ssm_a.", ".ssm_d."})
    if (name.find(part) != name.npos) return true;
  return dims.size() < 2 || !name.ends_with(".weight") || name.find("_norm") != name.npos ||
         name.find("ffn_gate_inp") != name.npos || name.starts_with("position_embd") ||
         name.starts_with("token_types");
}

std::vector<Job> jobs_of(const ImportedModel& model, const std::vector<FileTensor>& layout,
                         const ConvertOptions& options, bool gguf) {
  std::vector<Job> jobs;
  for (const FileTensor& tensor : layout) {
    DType from = model.config.weights.at(tensor.parts[0].weight).dtype;
    const std::string& weight = tensor.parts[0].weight;
    for (const FilePart& part : tensor.parts)
      if (model.config.weights.at(part.weight).factor != 1.0)
        fail(ErrorCode::kUnsupported,
             "{} is NVFP4 with a scale of the whole matrix, which cannot be converted",
             part.weight);
    bool head = weight == (model.config.tied_embeddings ? "token_embd.weight" : "output.weight");
    const DTypeInfo& info = dtype_info(from);
    auto bytes_in =
        static_cast<uint64_t>(elements(tensor.dims)) * info.block_bytes / info.block_elements;
    Job job{tensor.name, tensor.dims, from, from, bytes_in, {}};
    if (gguf) {
      job.to = type_for(options, weight, tensor.dims, from, head);
    } else {
      // Safetensors has no blocks that other programs would read.
      DType kept = is_block_type(from) ? DType::kF16 : from;
      job.to = tensor.dims.size() < 2 ? DType::kF32 : options.type.value_or(kept);
    }
    job.read = [&model, tensor] { return assemble(tensor, model.config, *model.weights); };
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// Reads back what was written at `path`, before it takes its name.
void check_same(const ModelConfig& before, const fs::path& path, const fs::path& name) {
  std::string difference;
  try {
    difference = config_difference(import_model(path).config, before);
  } catch (const Error& e) {
    std::string cause = e.what();  // names the file, which has another name yet
    if (size_t at = cause.find(path.string()); at != std::string::npos)
      cause.replace(at, path.string().size(), name.string());
    fail(ErrorCode::kUnsupported, "what was written cannot be read as a {} model: {}",
         before.architecture, cause);
  }
  if (!difference.empty())
    fail(ErrorCode::kUnsupported, "the format of {} cannot express {} of this {} model",
         name.string(), difference, before.architecture);
}

int file_type(std::optional<DType> type) {
  constexpr std::pair<DType, int> kFileTypes[] = {
      {DType::kF32, 0},     {DType::kF16, 1},   {DType::kQ4_0, 2},    {DType::kQ4_1, 3},
      {DType::kQ8_0, 7},    {DType::kQ5_0, 8},  {DType::kQ5_1, 9},    {DType::kQ2_K, 10},
      {DType::kQ3_K, 12},   {DType::kQ4_K, 15}, {DType::kQ5_K, 17},   {DType::kQ6_K, 18},
      {DType::kIQ4_NL, 25}, {DType::kBF16, 32}, {DType::kIQ4_XS, 30}, {DType::kTQ1_0, 36},
      {DType::kTQ2_0, 37},  {DType::kMXFP4, 38}};
  for (const auto& [dtype, id] : kFileTypes)
    if (type == dtype) return id;
  return 1024;  // "guessed" by readers
}

DType most_common(const std::vector<Job>& jobs) {
  std::vector<uint64_t> bytes(kDTypeCount);
  for (const Job& job : jobs) bytes[static_cast<size_t>(job.to)] += bytes_of(job.to, job.dims);
  return static_cast<DType>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

void write_gguf(Converter& converter, const std::vector<Job>& jobs, GgufWriter& writer,
                const fs::path& out, const std::function<void(const fs::path&)>& check = {}) {
  converter.expect(jobs);
  writer.set_u32("general.file_type", static_cast<uint32_t>(file_type(most_common(jobs))));
  for (const Job& job : jobs)
    writer.add_tensor(job.name, job.to, job.dims, [&] { return converter.run(job); });
  writer.write(out, check);
}

// Requantises a GGUF file of any architecture: metadata and layout stay.
void requantize(const GgufFile& file, const ConvertOptions& options, Converter& converter) {
  if (file.version() < 2)
    fail(ErrorCode::kUnsupported, "{}: GGUF version 1 cannot be rewritten", file.name());
  GgufWriter writer;
  for (const std::string& key : file.keys())
    if (key != "general.file_type" && key != "general.alignment" && !key.starts_with("split."))
      writer.set_raw(key, file.raw(key));
  if (file.alignment() != 32) writer.set_alignment(static_cast<uint32_t>(file.alignment()));
  bool tied = file.find("output.weight") == nullptr;
  std::vector<Job> jobs;
  for (const GgufTensor& t : file.tensors()) {
    if (!t.view)
      fail(ErrorCode::kUnsupported, "{}: tensor {} has type {}, which this build does not know",
           file.name(), t.name, t.type_id);
    bool head = t.name == (tied ? "token_embd.weight" : "output.weight");
    const TensorView view = *t.view;
    bool values = dtype_info(view.dtype).is_float || is_block_type(view.dtype);
    Job job{t.name,
            t.dims,
            view.dtype,
            values ? type_for(options, t.name, t.dims, view.dtype, head) : view.dtype,
            view.bytes.size(),
            [view] {
              return FileBytes{view.dtype, view.bytes, {}};
            }};
    jobs.push_back(std::move(job));
  }
  write_gguf(converter, jobs, writer, options.out);
}

void to_gguf(const OpenedModel& opened, const ConvertOptions& options, Converter& converter) {
  const ModelConfig& config = opened.model.config;
  GgufWriter writer;
  std::vector<Job> jobs = jobs_of(opened.model, gguf_layout(config), options, true);
  ModelConfig form = gguf_form(config);
  describe_gguf(form, writer);
  describe_gguf_tokenizer(opened.tokenizer, config.vocab, writer);
  write_gguf(converter, jobs, writer, options.out,
             [&](const fs::path& path) { check_same(form, path, options.out); });
}

const char* safetensors_type(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

void write_safetensors(Converter& converter, const std::vector<Job>& jobs, const fs::path& path) {
  Value::Object header = {{"__metadata__", Value::Object{{"format", "pt"}}}};
  uint64_t at = 0;
  for (const Job& job : jobs) {
    uint64_t end = at + bytes_of(job.to, job.dims);
    header.emplace_back(
        job.name, Value::Object{{"dtype", safetensors_type(job.to)},
                                {"shape", Value(Value::Array(job.dims.begin(), job.dims.end()))},
                                {"data_offsets", Value::Array{at, end}}});
    at = end;
  }
  std::string text = dump_json(Value(std::move(header)));
  text.append((8 - text.size() % 8) % 8, ' ');
  NewFile file(path);
  uint64_t size = text.size();
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(std::as_bytes(std::span(text)));
  for (const Job& job : jobs) file.write(converter.run(job));
  file.commit();
}

void to_folder(const OpenedModel& opened, const ConvertOptions& options, Converter& converter) {
  const ModelConfig& config = opened.model.config;
  std::vector<Job> jobs = jobs_of(opened.model, hf_layout(config), options, false);
  converter.expect(jobs);
  DType most = most_common(jobs);
  Value json = config_json(config, most == DType::kF32   ? "float32"
                                   : most == DType::kF16 ? "float16"
                                                         : "bfloat16");
  TokenizerJson tokenizer = tokenizer_json(opened.tokenizer);
  for (const char* name : {"bos_token_id", "eos_token_id"})
    if (const Value* id = tokenizer.generation.find(name)) json.set(name, *id);
  // Written beside the folder, so that a folder that is there keeps its files until all are
  // checked.
  fs::path made = fs::absolute(options.out).lexically_normal();
  if (!made.has_filename()) made = made.parent_path();
  made += ".converting";
  std::error_code ec;
  fs::remove_all(made, ec);
  fs::create_directories(made.parent_path());
  // The long part leaves nothing behind when the process is ended: the file has no name yet.
  const fs::path weights = made.string() + ".safetensors";
  write_safetensors(converter, jobs, weights);
  try {
    fs::create_directories(made);
    fs::rename(weights, made / "model.safetensors");
    replace_file(made / "config.json", dump_json(json, 2) + "\n");
    replace_file(made / "tokenizer.json", dump_json(tokenizer.tokenizer) + "\n");
    replace_file(made / "tokenizer_config.json", dump_json(tokenizer.config, 2) + "\n");
    replace_file(made / "generation_config.json", dump_json(tokenizer.generation, 2) + "\n");
    check_same(config, made, options.out);
    fs::create_directories(options.out);
    for (const auto& entry : fs::directory_iterator(made))
      fs::rename(entry.path(), options.out / entry.path().filename());
    fs::remove(made);
  } catch (...) {
    fs::remove(weights, ec);
    fs::remove_all(made, ec);
    throw;
  }
}

// Other tensors in the folder would be loaded instead of the new ones, or beside them.
void check_folder(const fs::path& folder) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    std::string name = entry.path().filename().string();
    if (name != "model.safetensors" &&
        (name.ends_with(".safetensors") || name.ends_with(".index.json")))
      fail(ErrorCode::kInvalidArgument,
           "{} has tensors of another model ({}); remove them or name another folder",
           folder.string(), name);
  }
}

std::string lower_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return ending;
}

void check_target(const ConvertOptions& options, bool gguf) {
  std::error_code ec;
  // A folder may have any name, but these endings are meant for files.
  for (const char* ending :
       {".bin", ".ggml", ".json", ".onnx", ".pt", ".pth", ".safetensors", ".tkm", ".txt", ".zip"})
    if (lower_ending(options.out) == ending && !fs::is_directory(options.out, ec))
      fail(ErrorCode::kInvalidArgument,
           "{}: {} files are not written; OUT is a file that ends in .gguf, or a folder for "
           "safetensors",
           options.out.string(), ending);
  bool there = fs::exists(options.out, ec) &&
               (!fs::is_directory(options.out, ec) || !fs::is_empty(options.out, ec));
  if (there && !options.overwrite)
    fail(ErrorCode::kInvalidArgument, "{} exists; remove it or add --force", options.out.string());
  if (fs::equivalent(options.in, options.out, ec))
    fail(ErrorCode::kInvalidArgument, "{} cannot be converted onto itself", options.in.string());
  if (!gguf) check_folder(options.out);
  for (std::optional<DType> type : {options.type, options.output_type}) {
    if (!type) continue;
    bool plain = *type == DType::kF32 || *type == DType::kF16 || *type == DType::kBF16;
    if (!gguf && !plain)
      fail(ErrorCode::kInvalidArgument,
           "safetensors folders hold f32, f16 or bf16; write a .gguf file for {}",
           dtype_name(*type));
    if (!can_encode(*type) || (gguf && dtype_info(*type).gguf_id < 0))
      fail(ErrorCode::kUnsupported,
           "{} can be read but not written; its blocks need a search over a codebook",
           dtype_name(*type));
  }
}

}  // namespace

DType type_for(const ConvertOptions& options, std::string_view name,
               const std::vector<int64_t>& dims, DType from, bool head) {
  bool in_file = dtype_info(from).gguf_id >= 0;
  if (is_small(name, dims)) return is_block_type(from) && in_file ? from : DType::kF32;
  if (!options.type) return in_file ? from : DType::kF16;
  DType type = *options.type;
  if (head && options.output_type) {
    type = *options.output_type;
  } else if (head && dtype_bytes(type, 256) < dtype_bytes(DType::kQ6_K, 256)) {
    type = DType::kQ6_K;  // logits need more than most matrices
  }
  return fitting(type, dims.back());
}

ConvertReport convert_model(const ConvertOptions& options) {
  bool gguf = lower_ending(options.out) == ".gguf";
  check_target(options, gguf);
  Converter converter(options);
  std::error_code ec;
  bool from_gguf = !fs::is_directory(options.in, ec) && lower_ending(options.in) == ".gguf";
  if (from_gguf && gguf) {
    auto file = GgufFile::open(options.in);
    requantize(*file, options, converter);
    converter.report().architecture = file->get_string("general.architecture", "");
  } else {
    OpenedModel opened = open_model(options.in);
    converter.report().architecture = opened.model.config.architecture;
    if (opened.model.config.embedding.encoder && !gguf)
      fail(ErrorCode::kUnsupported, "{}: encoders can be converted to GGUF, not to a folder",
           options.in.string());
    gguf ? to_gguf(opened, options, converter) : to_folder(opened, options, converter);
  }
  converter.report().from = from_gguf ? "gguf" : "safetensors";
  converter.report().to = gguf ? "gguf" : "safetensors";
  return std::move(converter.report());
}

}  // namespace tokamak
