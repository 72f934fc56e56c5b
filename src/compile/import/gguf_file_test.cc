#include "compile/import/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compile/import/import_test_util.h"

namespace tokamak {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}
std::string head(uint64_t tensors, uint64_t metas, uint32_t version = 3) {
  std::string out = "GGUF";
  put(out, version);
  put(out, tensors);
  put(out, metas);
  return out;
}
std::string tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type,
                   uint64_t offset) {
  std::string out;
  put_text(out, name);
  put<uint32_t>(out, static_cast<uint32_t>(dims.size()));
  for (uint64_t d : dims) put(out, d);
  put(out, type);
  put(out, offset);
  return out;
}
// One or more tensor entries, followed by `data` bytes of tensor data.
std::string with_data(std::string head_and_tensors, size_t data) {
  head_and_tensors.resize((head_and_tensors.size() + 31) / 32 * 32);
  return head_and_tensors + std::string(data, '\1');
}
std::string parse_error(const std::string& file) {
  return error_of([&] { GgufFile::parse(test::as_bytes(file), "x.gguf"); });
}

TEST(GgufFile, ReadsBackWhatTheWriterWrote) {
  GgufWriter writer;
  writer.set_string("general.architecture", "llama");
  writer.set_u32("a.u32", 4000000000u);
  writer.set_i32("a.i32", -7);
  writer.set_u64("a.u64", UINT64_MAX);
  writer.set_f32("a.f32", 0.5f);
  writer.set_bool("a.bool", true);
  writer.set_strings("a.strings", std::vector<std::string>{"one", "", std::string("a\0b", 3)});
  writer.set_floats("a.floats", std::vector<float>{1.5f, -2.0f});
  writer.set_i32s("a.ints", std::vector<int32_t>{3, -4});
  writer.set_bools("a.bools", {true, false, true});
  writer.set_alignment(64);
  writer.add_f32("first", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.add_tensor("second", DType::kQ8_0, {1, 64}, std::vector<std::byte>(68, std::byte{7}));
  std::vector<std::byte> bytes = writer.to_bytes();
  auto file = GgufFile::parse(bytes, "memory");
  EXPECT_EQ(file->get_string("general.architecture", ""), "llama");
  EXPECT_EQ(file->get_int("a.u32", 0), 4000000000);
  EXPECT_EQ(file->get_int("a.i32", 0), -7);
  EXPECT_EQ(file->get_double("a.u64", 0), 18446744073709551616.0);
  EXPECT_EQ(file->get_double("a.f32", 0), 0.5);
  EXPECT_TRUE(file->get_bool("a.bool", false));
  EXPECT_EQ(file->get_int("absent", 5), 5);
  EXPECT_EQ(file->strings("a.strings"), (std::vector<std::string_view>{"one", "", {"a\0b", 3}}));
  EXPECT_EQ(file->floats("a.floats"), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(file->ints("a.ints"), (std::vector<int64_t>{3, -4}));
  EXPECT_EQ(file->ints("a.bools"), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_TRUE(file->strings("absent").empty());
  EXPECT_EQ(file->array_size("a.strings"), 3u);
  EXPECT_EQ(file->alignment(), 64u);
  EXPECT_EQ(file->names(), (std::vector<std::string>{"first", "second"}));
  const TensorView* first = file->find("first");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->dims, (std::vector<int64_t>{2, 3}));
  float value;
  std::memcpy(&value, first->bytes.data() + 20, 4);
  EXPECT_EQ(value, 6.0f);
  EXPECT_EQ(file->find("second")->dtype, DType::kQ8_0);
  EXPECT_EQ(file->find("second")->bytes[67], std::byte{7});
  EXPECT_EQ(file->find("third"), nullptr);
  EXPECT_EQ(file->metadata().at("a.strings").at("length").as_int(), 3);
  EXPECT_EQ(file->data_bytes(), 24u + 68u);
}

TEST(GgufFile, WrongTypeOfAKeyNamesIt) {
  GgufWriter writer;
  writer.set_string("a", "text");
  writer.set_floats("b", std::vector<float>{1});
  std::vector<std::byte> bytes = writer.to_bytes();
  auto file = GgufFile::parse(bytes, "x.gguf");
  EXPECT_THAT(error_of([&] { file->get_int("a", 0); }),
              AllOf(HasSubstr("x.gguf"), HasSubstr("metadata a")));
  EXPECT_THAT(error_of([&] { file->get_string("b", ""); }), HasSubstr("metadata b"));
  EXPECT_THAT(error_of([&] { file->ints("b"); }), HasSubstr("metadata b"));
  EXPECT_THAT(error_of([&] { file->strings("a"); }), HasSubstr("not an array"));
}

TEST(GgufFile, RefusesWhatIsNotGguf) {
  EXPECT_THAT(parse_error(""), HasSubstr("not a GGUF file"));
  EXPECT_THAT(parse_error("PK\3\4 something else"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(parse_error(std::string("GGUF\0\0\0\3", 8) + std::string(16, '\0')),
              HasSubstr("big-endian"));
  EXPECT_THAT(parse_error(head(0, 0, 9)), HasSubstr("version 9"));
  EXPECT_EQ(parse_error(head(0, 0)), "");
  EXPECT_EQ(parse_error(head(0, 0, 2)), "");
}

TEST(GgufFile, VersionOneHasShortLengths) {
  std::string bytes = "GGUF";
  for (uint32_t v : {1u, 1u, 1u}) put(bytes, v);  // version, one tensor, one entry
  put<uint32_t>(bytes, 1);
  bytes += "k";
  for (uint32_t v : {9u, 8u, 2u, 1u})
    put(bytes, v);  // an array of two strings, the first of length 1
  bytes += "x";
  put<uint32_t>(bytes, 2);
  bytes += "yz";
  put<uint32_t>(bytes, 1);
  bytes += "w";
  for (uint32_t v : {1u, 2u, 0u}) put(bytes, v);  // one dimension of 2, f32
  put<uint64_t>(bytes, 0);
  bytes = with_data(bytes, 8);
  auto file = GgufFile::parse(test::as_bytes(bytes), "x.gguf");
  EXPECT_EQ(file->strings("k"), (std::vector<std::string_view>{"x", "yz"}));
  EXPECT_EQ(file->find("w")->dims, std::vector<int64_t>{2});
}

TEST(GgufFile, RefusesLies) {
  EXPECT_THAT(parse_error(head(UINT64_MAX, 0)), HasSubstr("claims"));
  EXPECT_THAT(parse_error(head(0, 1ull << 60)), HasSubstr("claims"));
  std::string key = head(0, 1);
  put<uint64_t>(key, 1ull << 62);
  EXPECT_THAT(parse_error(key + "abcdefgh"), HasSubstr("truncated"));
  std::string list = head(0, 1);
  put_text(list, "list");
  put<uint32_t>(list, 9);
  std::string huge = list;
  put<uint32_t>(huge, 6);
  put<uint64_t>(huge, UINT64_MAX / 2);
  EXPECT_THAT(parse_error(huge + "1234"), HasSubstr("metadata list claims"));
  std::string nested = list;
  put<uint32_t>(nested, 9);
  put<uint64_t>(nested, 1);
  EXPECT_EQ(parse_error(nested + std::string(32, '\0')), "");  // one empty list of u8
  for (int i = 0; i < 9; ++i) {
    put<uint32_t>(nested, 9);
    put<uint64_t>(nested, 1);
  }
  EXPECT_THAT(parse_error(nested + std::string(32, '\0')), HasSubstr("nests arrays 9 deep"));
  std::string unknown = list;
  put<uint32_t>(unknown, 77);
  put<uint64_t>(unknown, 1);
  EXPECT_THAT(parse_error(unknown), HasSubstr("unknown type 77"));
}

TEST(GgufFile, RefusesBadTensors) {
  auto one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset, size_t data) {
    return parse_error(with_data(head(1, 0) + tensor("w", std::move(dims), type, offset), data));
  };
  EXPECT_EQ(one({8}, 0, 0, 32), "");
  EXPECT_THAT(one({8}, 0, 0, 31),
              AllOf(HasSubstr("corrupt"), HasSubstr("tensor w"), HasSubstr("ends after 31")));
  EXPECT_THAT(one({8}, 0, 32, 32), HasSubstr("tensor w"));
  EXPECT_THAT(one({8}, 0, 7, 64), HasSubstr("offset 7"));
  EXPECT_THAT(one({8}, 0, UINT64_MAX - 31, 64), HasSubstr("offset"));
  EXPECT_EQ(one({0, 4}, 0, 0, 64), "");  // odd, but legal
  EXPECT_THAT(one({0, 1ull << 62, 4}, 0, 0, 64), HasSubstr("impossible extent"));
  EXPECT_THAT(one({1ull << 40, 1ull << 40}, 0, 0, 64), HasSubstr("impossible extent"));
  EXPECT_THAT(one({1ull << 62}, 0, 0, 64), HasSubstr("tensor w"));
  EXPECT_THAT(one({31}, 2, 0, 64), HasSubstr("multiple of 32"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0, 64), HasSubstr("5 dimensions"));
  EXPECT_THAT(
      parse_error(with_data(head(2, 0) + tensor("w", {8}, 0, 0) + tensor("w", {8}, 0, 32), 64)),
      HasSubstr("w appears twice"));
  EXPECT_THAT(parse_error(with_data(head(1, 0) + tensor(std::string("w\0x", 3), {8}, 0, 0), 32)),
              HasSubstr("the name of tensor 0 contains control characters"));
  EXPECT_THAT(
      parse_error(with_data(head(2, 0) + tensor("v", {16}, 0, 0) + tensor("w", {8}, 0, 32), 64)),
      HasSubstr("v and w overlap"));
  std::string many = head(40, 0);  // empty tensors share their offset with the next one
  for (int i = 0; i < 40; ++i)
    many += tensor(std::to_string(i), {i % 2 ? 0ull : 8ull}, 0,
                   static_cast<uint64_t>((i + 1) / 2) * 32);
  EXPECT_EQ(parse_error(with_data(many, 20 * 32)), "");
}

TEST(GgufFile, UnknownTensorTypeOpensButCannotBeUsed) {
  std::string bytes = with_data(head(1, 0) + tensor("w", {8}, 4242, 0), 32);
  auto file = GgufFile::parse(test::as_bytes(bytes), "x.gguf");
  EXPECT_EQ(file->tensors()[0].type_id, 4242u);
  EXPECT_EQ(file->tensors()[0].view, nullptr);
  EXPECT_THAT(error_of([&] { file->find("w"); }),
              AllOf(HasSubstr("unsupported"), HasSubstr("type id 4242")));
  bytes = with_data(head(1, 0) + tensor("w", {8}, 31, 0), 32);
  file = GgufFile::parse(test::as_bytes(bytes), "x.gguf");
  EXPECT_THAT(error_of([&] { file->find("w"); }),
              AllOf(HasSubstr("q4_0_4_4"), HasSubstr("newer tools")));
}

TEST(GgufFile, RepeatedKeysAndBadAlignmentAreRefused) {
  GgufWriter twice;
  twice.set_u32("k", 1);
  twice.set_u32("k", 2);
  std::vector<std::byte> bytes = twice.to_bytes();
  EXPECT_THAT(error_of([&] { GgufFile::parse(bytes, "x"); }), HasSubstr("k appears twice"));
  for (uint32_t bad : {0u, 4u, 33u, 1u << 30}) {
    GgufWriter writer;
    writer.set_u32("general.alignment", bad);
    bytes = writer.to_bytes();
    EXPECT_THAT(error_of([&] { GgufFile::parse(bytes, "x"); }), HasSubstr("general.alignment"))
        << bad;
  }
}

TEST(GgufFile, SplitFilesOpenTogether) {
  test::TempFolder folder;
  auto path = [&](int i) { return folder.path() / fmt::format("m-{:05}-of-00003.gguf", i + 1); };
  auto part = [&](int i) {
    GgufWriter writer;
    if (i == 0) writer.set_string("general.architecture", "llama");
    writer.set_u32("split.no", static_cast<uint32_t>(i));
    writer.set_u32("split.count", 3);
    writer.set_i32("split.tensors.count", 2);
    if (i > 0)
      writer.add_f32(fmt::format("t{}", i), {1}, std::vector<float>{static_cast<float>(i)});
    writer.write(path(i));
  };
  for (int i = 0; i < 3; ++i) part(i);
  {
    auto file = GgufFile::open(path(0));
    EXPECT_EQ(file->part_count(), 3u);
    EXPECT_EQ(file->names(), (std::vector<std::string>{"t1", "t2"}));
    float value;
    std::memcpy(&value, file->find("t2")->bytes.data(), 4);
    EXPECT_EQ(value, 2.0f);
  }
  EXPECT_THAT(error_of([&] { GgufFile::open(path(1)); }), HasSubstr("open the first part"));
  std::filesystem::copy(path(0), folder.path() / "renamed.gguf");
  EXPECT_THAT(error_of([&] { GgufFile::open(folder.path() / "renamed.gguf"); }),
              HasSubstr("-00001-of-00003.gguf"));
  std::filesystem::remove(path(2));
  EXPECT_THAT(error_of([&] { GgufFile::open(path(0)); }),
              AllOf(HasSubstr("not_found"), HasSubstr("part 3 of 3 is missing")));
  std::filesystem::copy(path(1), path(2));
  EXPECT_THAT(error_of([&] { GgufFile::open(path(0)); }), HasSubstr("t1 appears twice"));
}

}  // namespace
}  // namespace tokamak
