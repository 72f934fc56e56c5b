#include "compile/import/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compile/import/import_test_util.h"

namespace tokamak {
namespace {

using test::error_of;
using test::SafetensorsBuilder;
using testing::AllOf;
using testing::HasSubstr;

std::string index_error(const std::string& file) {
  return error_of([&] { SafetensorsFile::parse(test::as_bytes(file), "x.safetensors"); });
}
std::string header_error(const std::string& header, size_t data) {
  return index_error(SafetensorsBuilder::with_header(header, std::string(data, '\1')));
}

TEST(Safetensors, ReadsEveryType) {
  const std::pair<const char*, DType> types[] = {
      {"F64", DType::kF64},        {"F32", DType::kF32},        {"F16", DType::kF16},
      {"BF16", DType::kBF16},      {"I64", DType::kI64},        {"I32", DType::kI32},
      {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}, {"I16", DType::kI16},
      {"I8", DType::kI8},          {"U8", DType::kU8},          {"BOOL", DType::kBool}};
  SafetensorsBuilder builder;
  builder.header.set("__metadata__", Value::Object{{"format", "pt"}});
  for (const auto& [name, dtype] : types)
    builder.add(name, name, {3, 1}, std::string(dtype_bytes(dtype, 3), name[0]));
  builder.add("empty", "F32", {0, 4}, "");
  builder.add("scalar", "F32", {}, "abcd");
  builder.add("strange", "U16", {1}, "ab");
  std::string bytes = builder.file();
  auto file = SafetensorsFile::parse(test::as_bytes(bytes), "x");
  for (const auto& [name, dtype] : types) {
    const TensorView* t = file->find(name);
    ASSERT_TRUE(t) << name;
    EXPECT_EQ(t->dtype, dtype);
    EXPECT_EQ(t->dims, (std::vector<int64_t>{3, 1}));
    EXPECT_EQ(static_cast<char>(t->bytes.back()), name[0]);
  }
  EXPECT_TRUE(file->find("empty")->bytes.empty());
  EXPECT_EQ(file->find("scalar")->elements(), 1);
  EXPECT_EQ(file->find("nothing"), nullptr);
  EXPECT_THAT(error_of([&] { file->find("strange"); }),
              AllOf(HasSubstr("unsupported"), HasSubstr("U16")));
  EXPECT_EQ(file->metadata().at("format").as_string(), "pt");
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(index_error("short"), HasSubstr("not a safetensors file"));
  EXPECT_THAT(index_error(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)),
              HasSubstr("the file has 10"));
  EXPECT_THAT(index_error(std::string("\x40\0\0\0\0\0\0\0{}", 10)), HasSubstr("truncated"));
  EXPECT_THAT(header_error("[]", 0), HasSubstr("not an object"));
  EXPECT_THAT(header_error("{\"a\":", 0),
              AllOf(HasSubstr("corrupt"), HasSubstr("x.safetensors: header")));
  EXPECT_THAT(header_error("{\"a\":{\"a\":[[[[[]]]]]}}", 0), HasSubstr("nested"));
  EXPECT_EQ(header_error("{}", 0), "");
  EXPECT_THAT(header_error("{}", 1), HasSubstr("end at data byte 0"));
  std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(header_error("{" + a + "}", 8), "");
  EXPECT_THAT(header_error("{" + a + "," + a + "}", 8), HasSubstr("appears twice"));
}

TEST(Safetensors, RefusesBrokenTensors) {
  auto one = [](const char* dtype, const char* shape, const char* offsets, size_t data) {
    return header_error(fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})",
                                    dtype, shape, offsets),
                        data);
  };
  EXPECT_EQ(one("F16", "[2,2]", "[0,8]", 8), "");
  EXPECT_THAT(one("F16", "[2,2]", "[0,8]", 7), AllOf(HasSubstr("tensor w"), HasSubstr("outside")));
  EXPECT_THAT(one("F32", "[2,2]", "[0,8]", 8), HasSubstr("tensor w has 8 bytes"));
  EXPECT_THAT(one("F16", "[2,2]", "[8,0]", 8), HasSubstr("ends before it begins"));
  EXPECT_THAT(one("F16", "[2,2]", "[-8,0]", 8), HasSubstr("outside"));
  EXPECT_THAT(one("F16", "[2,2]", "[0]", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(one("F16", "[2,-2]", "[0,8]", 8), HasSubstr("shape"));
  EXPECT_THAT(one("F16", "[2.5,2]", "[0,8]", 8), HasSubstr("shape"));
  EXPECT_THAT(one("F16", "[4294967296,4294967296,4294967296]", "[0,8]", 8), HasSubstr("shape"));
  EXPECT_THAT(one("F64", "[2305843009213693953]", "[0,8]", 8), HasSubstr("tensor w"));
  EXPECT_THAT(one("F16", "[1]", "[2,4]", 4), HasSubstr("begins at data byte 2, expected 0"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                           R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                           4),
              HasSubstr("tensor b begins"));
}

TEST(Safetensors, ShardedFolder) {
  test::TempFolder folder;
  SafetensorsBuilder first, second;
  first.add_f32("a", {2});
  second.add_f32("b", {3});
  write_text_file(folder.path() / "one.safetensors", first.file());
  EXPECT_EQ(SafetensorsFolder::open(folder.path())->names(), std::vector<std::string>{"a"});
  write_text_file(folder.path() / "two.safetensors", second.file());
  EXPECT_THAT(error_of([&] { SafetensorsFolder::open(folder.path()); }),
              HasSubstr("2 safetensors files"));
  auto index = [&](const std::string& map) {
    write_text_file(folder.path() / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return error_of([&] { SafetensorsFolder::open(folder.path()); });
  };
  EXPECT_EQ(index(R"({"a":"one.safetensors","b":"two.safetensors"})"), "");
  auto both = SafetensorsFolder::open(folder.path());
  EXPECT_EQ(both->find("b")->dims, std::vector<int64_t>{3});
  EXPECT_EQ(both->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(both->file_count(), 2u);
  EXPECT_EQ(both->find("c"), nullptr);
  EXPECT_THAT(index(R"({"a":"two.safetensors"})"), HasSubstr("a is not in two.safetensors"));
  EXPECT_THAT(index(R"({"a":"three.safetensors"})"),
              AllOf(HasSubstr("not_found"), HasSubstr("shard three")));
  EXPECT_THAT(index(R"({"a":"../one.safetensors"})"), HasSubstr("not a file name"));
  EXPECT_THAT(index(R"({"a":7})"), HasSubstr("not a file name"));
  EXPECT_THAT(index("{}"), HasSubstr("empty"));
  EXPECT_THAT(index("[]"), HasSubstr("weight_map"));
}

}  // namespace
}  // namespace tokamak
