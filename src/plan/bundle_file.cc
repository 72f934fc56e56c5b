#include "plan/bundle_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

static_assert(std::endian::native == std::endian::little, "bundles are little endian");

constexpr char kBundleMagic[8] = {'\x89', 'T', 'K', 'M', '\r', '\n', '\x1a', '\n'};
constexpr size_t kNameBytes = 16;

struct FileHeader {
  char magic[8];
  uint32_t version, sections;
  uint64_t file_size, table;  // table: offset of the section table
  uint64_t reserved[2];       // 0
  Checksum sum;               // of the header before it and of the table
};
static_assert(sizeof(FileHeader) == 64);

struct TableEntry {
  char name[kNameBytes];  // filled up with zeros
  uint64_t offset, size, flags, reserved;
  Checksum sum;
};
static_assert(sizeof(TableEntry) == 64);

template <class T>
T load(std::span<const std::byte> bytes, uint64_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}

Checksum header_sum(const FileHeader& header, std::span<const std::byte> table) {
  std::string text(reinterpret_cast<const char*>(&header), offsetof(FileHeader, sum));
  text.append(reinterpret_cast<const char*>(table.data()), table.size());
  return checksum(std::as_bytes(std::span(text)));
}

}  // namespace

bool is_bundle(const std::filesystem::path& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return false;
  std::ifstream in(path, std::ios::binary);
  char begin[sizeof kBundleMagic] = {};
  return in.read(begin, sizeof begin) && std::memcmp(begin, kBundleMagic, sizeof begin) == 0;
}

std::shared_ptr<const BundleFile> BundleFile::open(const std::filesystem::path& path) {
  std::shared_ptr<BundleFile> out(new BundleFile());
  out->name_ = path.string();
  out->file_ = MappedFile::open(path);
  out->bytes_ = out->file_->bytes();
  out->parse();
  return out;
}

std::shared_ptr<const BundleFile> BundleFile::from_bytes(std::string bytes, std::string name) {
  std::shared_ptr<BundleFile> out(new BundleFile());
  out->name_ = std::move(name);
  out->memory_ = std::move(bytes);
  out->bytes_ = std::as_bytes(std::span(out->memory_));
  out->parse();
  return out;
}

void BundleFile::damaged(std::string_view what) const {
  fail(ErrorCode::kCorrupt, "{} is damaged: {}; copy it again, or compile the model again", name_,
       what);
}

void BundleFile::parse() {
  uint64_t size = bytes_.size();
  if (size < sizeof kBundleMagic ||
      std::memcmp(bytes_.data(), kBundleMagic, sizeof kBundleMagic) != 0)
    fail(ErrorCode::kCorrupt, "{} is not a bundle: its first bytes are wrong", name_);
  if (size < sizeof(FileHeader)) damaged(fmt::format("its {} bytes are less than a header", size));
  auto header = load<FileHeader>(bytes_, 0);
  if (header.version != kBundleVersion)
    fail(ErrorCode::kUnsupported,
         "{} is a bundle of version {}, this program reads version {}: compile the model again",
         name_, header.version, kBundleVersion);
  uint64_t room = header.table <= size ? (size - header.table) / sizeof(TableEntry) : 0;
  if (header.sections > room || header.table < sizeof(FileHeader))
    damaged(fmt::format("its table of {} sections extends beyond the file", header.sections));
  auto table = bytes_.subspan(header.table, header.sections * sizeof(TableEntry));
  if (header_sum(header, table) != header.sum) damaged("the checksum of its header differs");
  if (header.file_size != size)
    damaged(fmt::format("it has {} bytes, {} were written", size, header.file_size));
  for (uint32_t i = 0; i < header.sections; ++i) {
    auto entry = load<TableEntry>(table, i * sizeof(TableEntry));
    BundleSection s{std::string(entry.name, strnlen(entry.name, kNameBytes)), entry.offset,
                    entry.size, entry.flags, entry.sum};
    if (s.offset > size || s.size > size - s.offset || s.offset % kBundleAlignment != 0)
      damaged(fmt::format("section {} extends beyond the file", i));
    if (find(s.name)) damaged(fmt::format("section {} appears twice", s.name));
    sections_.push_back(std::move(s));
    const BundleSection& added = sections_.back();
    if ((added.flags & BundleSection::kPartsChecked) == 0 &&
        checksum(bytes_.subspan(added.offset, added.size)) != added.sum)
      damaged(fmt::format("the checksum of section {} differs", added.name));
  }
}

const BundleSection* BundleFile::find(std::string_view name) const {
  for (const BundleSection& s : sections_)
    if (s.name == name) return &s;
  return nullptr;
}

std::span<const std::byte> BundleFile::section(std::string_view name) const {
  const BundleSection* s = find(name);
  if (!s) damaged(fmt::format("it has no section {}", name));
  return bytes_.subspan(s->offset, s->size);
}

std::string_view BundleFile::text(std::string_view name) const {
  auto bytes = section(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// --- writing

BundleFileWriter::BundleFileWriter(const std::filesystem::path& path) : file_(path) {
  remove_orphaned_temporaries(path.parent_path(), path.filename().string() + ".");
  std::vector<std::byte> room(sizeof(FileHeader) + kMaxSections * sizeof(TableEntry));
  file_.write(room);  // filled in by finish(): a file without its header is not a bundle
}

void BundleFileWriter::pad_to(uint64_t alignment) {
  static constexpr std::byte kZeros[kBundlePage] = {};
  uint64_t over = file_.size() % alignment;
  if (over > 0) file_.write(std::span(kZeros).first(alignment - over));
}

void BundleFileWriter::begin_section(std::string name, uint64_t alignment, uint64_t flags) {
  end_section();
  TK_CHECK(sections_.size() < kMaxSections && name.size() < kNameBytes);
  pad_to(alignment);
  sections_.push_back({std::move(name), file_.size(), 0, flags, {}});
  open_ = true;
}

uint64_t BundleFileWriter::append(std::span<const std::byte> bytes, uint64_t alignment) {
  TK_CHECK(open_ && alignment <= kBundlePage);
  pad_to(alignment);
  uint64_t offset = file_.size() - sections_.back().offset;
  file_.write(bytes);
  return offset;
}

void BundleFileWriter::end_section() {
  if (!open_) return;
  sections_.back().size = file_.size() - sections_.back().offset;
  open_ = false;
}

void BundleFileWriter::add_section(std::string name, std::string_view bytes) {
  begin_section(std::move(name));
  auto raw = std::as_bytes(std::span(bytes));
  append(raw);
  sections_.back().sum = checksum(raw);
  end_section();
}

void BundleFileWriter::finish() {
  end_section();
  std::string table;
  for (const BundleSection& s : sections_) {
    TableEntry entry{{}, s.offset, s.size, s.flags, 0, s.sum};
    std::copy(s.name.begin(), s.name.end(), entry.name);
    table.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  FileHeader header{{},
                    kBundleVersion,
                    static_cast<uint32_t>(sections_.size()),
                    file_.size(),
                    sizeof(FileHeader),
                    {},
                    {}};
  std::copy(std::begin(kBundleMagic), std::end(kBundleMagic), header.magic);
  header.sum = header_sum(header, std::as_bytes(std::span(table)));
  std::string head(reinterpret_cast<const char*>(&header), sizeof header);
  head += table;
  file_.rewrite(0, std::as_bytes(std::span(head)));
  file_.commit();
}

}  // namespace tokamak
