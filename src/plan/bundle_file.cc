#include "plan/bundle_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
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
    fail(ErrorCode::kCorrupt, "{} is not a bundle: its first bytes are others", name_);
  if (size < sizeof(FileHeader)) damaged(fmt::format("{} bytes are not even a header", size));
  auto header = load<FileHeader>(bytes_, 0);
  if (header.version != kBundleVersion)
    fail(ErrorCode::kUnsupported,
         "{} is a bundle of version {}, this program reads version {}: compile the model again",
         name_, header.version, kBundleVersion);
  uint64_t room = header.table <= size ? (size - header.table) / sizeof(TableEntry) : 0;
  if (header.sections > room || header.table < sizeof(FileHeader))
    damaged(fmt::format("its table of {} sections does not lie in the file", header.sections));
  auto table = bytes_.subspan(header.table, header.sections * sizeof(TableEntry));
  if (header_sum(header, table) != header.sum) damaged("the checksum of its header differs");
  if (header.file_size != size)
    damaged(fmt::format("it has {} bytes, {} were written", size, header.file_size));
  for (uint32_t i = 0; i < header.sections; ++i) {
    auto entry = load<TableEntry>(table, i * sizeof(TableEntry));
    BundleSection s{std::string(entry.name, strnlen(entry.name, kNameBytes)), entry.offset,
                    entry.size, entry.flags, entry.sum};
    if (s.offset > size || s.size > size - s.offset || s.offset % kBundleAlignment != 0)
      damaged(fmt::format("section {} does not lie in the file", i));
    if (find(s.name)) damaged(fmt::format("section {} is there twice", s.name));
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

namespace {

// NAME.<process>-<number>.tmp
bool is_temporary(std::string_view name) {
  if (!name.ends_with(".tmp")) return false;
  name.remove_suffix(4);
  std::string_view tail = name.substr(name.rfind('.') + 1);
  size_t dash = tail.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < tail.size() &&
         tail.find_first_not_of("0123456789") == dash &&
         tail.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

}  // namespace

void remove_orphaned_temporaries(const std::filesystem::path& folder, std::string_view prefix) {
  std::error_code ec;
  std::filesystem::directory_iterator it(folder.empty() ? "." : folder, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with(prefix) || !is_temporary(name)) continue;
    int fd = ::open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    ::close(fd);
  }
}

// The lock tells others that the writer is alive: the kernel drops it when the process ends,
// however it ends. One that takes the file for an orphan before it is locked makes us try again.
void BundleFileWriter::create_temporary() {
  static std::atomic<unsigned> number{0};
  struct stat st {};
  do {
    if (fd_ >= 0) ::close(fd_);
    temporary_ = path_;
    temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), number++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) fail_io("create");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno != EWOULDBLOCK) return;  // no locks here
  } while (::fstat(fd_, &st) == 0 && st.st_nlink == 0);
}

BundleFileWriter::BundleFileWriter(std::filesystem::path path) : path_(std::move(path)) {
  remove_orphaned_temporaries(path_.parent_path(), path_.filename().string() + ".");
  create_temporary();
  std::vector<std::byte> room(sizeof(FileHeader) + kMaxSections * sizeof(TableEntry));
  write(room);  // filled in by finish(): a file without its header is no bundle
}

BundleFileWriter::~BundleFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void BundleFileWriter::fail_io(const char* what) const {
  fail(ErrorCode::kUnavailable, "cannot {} {}: {}", what, path_.string(), std::strerror(errno));
}

void BundleFileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("write");
    at_ += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void BundleFileWriter::pad_to(uint64_t alignment) {
  static constexpr std::byte kZeros[kBundlePage] = {};
  uint64_t over = at_ % alignment;
  if (over > 0) write(std::span(kZeros).first(alignment - over));
}

void BundleFileWriter::begin_section(std::string name, uint64_t alignment, uint64_t flags) {
  end_section();
  TK_CHECK(sections_.size() < kMaxSections && name.size() < kNameBytes);
  pad_to(alignment);
  sections_.push_back({std::move(name), at_, 0, flags, {}});
  open_ = true;
}

uint64_t BundleFileWriter::append(std::span<const std::byte> bytes, uint64_t alignment) {
  TK_CHECK(open_ && alignment <= kBundlePage);
  pad_to(alignment);
  uint64_t offset = at_ - sections_.back().offset;
  write(bytes);
  return offset;
}

void BundleFileWriter::end_section() {
  if (!open_) return;
  sections_.back().size = at_ - sections_.back().offset;
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
  FileHeader header{
      {}, kBundleVersion, static_cast<uint32_t>(sections_.size()), at_, sizeof(FileHeader), {}, {}};
  std::copy(std::begin(kBundleMagic), std::end(kBundleMagic), header.magic);
  header.sum = header_sum(header, std::as_bytes(std::span(table)));
  std::string head(reinterpret_cast<const char*>(&header), sizeof header);
  head += table;
  if (::pwrite(fd_, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
    fail_io("write");
  if (::fsync(fd_) != 0) fail_io("write");
  // Renamed while it is locked: no process can take it for an orphan.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("write");
  ::close(std::exchange(fd_, -1));
  // The rename itself reaches the disk with the folder; a folder that cannot be synced loses at
  // most the name.
  std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  if (int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

}  // namespace tokamak
