#include <catch2/catch.hpp>
#include <numeric>

#include "base/errors.hpp"
#include "trace/files.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

TEST_CASE("Arrays of every type and rank are read as they were written") {
  const Folder folder;
  std::vector<double> big(64 * 1000);
  std::iota(big.begin(), big.end(), 0.25);
  const std::vector<float> small = {1.5f, -2, 0};
  const std::vector<int64_t> wide = {int64_t{1} << 40, -1};
  {
    H5Output file(folder / "out.h5");
    file.write("a/b/big", std::span<const double>(big), {64, 1000});
    file.write("a/small", std::span<const float>(small), {3});
    file.write("wide", std::span<const int64_t>(wide), {2, 1}, false);
    file.write("scalar", std::span<const double>(big).first(1), {});
    file.write("empty", std::span<const int32_t>(), {0});
    file.close();
  }
  std::vector<int64_t> shape;
  CHECK(read_dataset(folder / "out.h5", "a/b/big", shape) == big);
  CHECK(shape == std::vector<int64_t>{64, 1000});
  CHECK(read_dataset(folder / "out.h5", "/a/small", shape) == std::vector<double>{1.5, -2, 0});
  CHECK(read_dataset(folder / "out.h5", "wide", shape) == std::vector<double>{0x1p40, -1});
  CHECK(shape == std::vector<int64_t>{2, 1});
  CHECK(read_dataset(folder / "out.h5", "scalar", shape) == std::vector<double>{0.25});
  CHECK(shape.empty());
  CHECK(read_dataset(folder / "out.h5", "empty", shape).empty());
  CHECK(group_members(folder / "out.h5", "/") == std::vector<std::string>{"a", "empty", "scalar", "wide"});
  CHECK(group_members(folder / "out.h5", "a") == std::vector<std::string>{"b", "small"});
  CHECK(has_dataset(folder / "out.h5", "a/b/big"));
  CHECK_FALSE(has_dataset(folder / "out.h5", "a/b"));
  CHECK_FALSE(has_dataset(folder / "out.h5", "a/x/big"));
  CHECK(std::filesystem::file_size(folder / "out.h5") < big.size() * sizeof(double) / 2);  // compressed
}

TEST_CASE("An output that is not closed leaves nothing behind") {
  const Folder folder;
  write_bytes(folder / "out.h5", "old");
  {
    H5Output file(folder / "out.h5");
    CHECK(std::filesystem::exists(folder / "out.h5.part"));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out.h5.part"));
  CHECK(read_bytes(folder / "out.h5") == "old");
}

TEST_CASE("Equal numbers make equal files") {
  const Folder folder;
  for (const char* name : {"a.h5", "b.h5"}) {
    H5Output file(folder / name);
    const std::vector<float> numbers(5000, 2.5f);
    file.write("g/x", std::span<const float>(numbers), {5000});
    file.attribute("g", "n", int64_t{1});
    file.close();
  }
  CHECK(read_bytes(folder / "a.h5") == read_bytes(folder / "b.h5"));
}

TEST_CASE("Groups are copied between files with all they hold") {
  const Folder folder;
  const std::vector<int32_t> numbers = {3, 1, 2};
  H5Output from;
  from.write("g/h/x", std::span<const int32_t>(numbers), {3});
  const std::string bytes = from.bytes();
  H5Output to(folder / "to.h5");
  to.copy_group(bytes, "g", "deep/g");
  CHECK_THROWS_WITH(to.copy_group(bytes, "none", "x"), Catch::Contains("copying none to x failed"));
  CHECK_THROWS_AS(to.copy_group(bytes.substr(0, bytes.size() / 2), "g", "y"), OutputError);
  CHECK_THROWS_AS(to.copy_group("no HDF5", "g", "z"), OutputError);
  to.close();
  std::vector<int64_t> shape;
  CHECK(read_dataset(folder / "to.h5", "deep/g/h/x", shape) == std::vector<double>{3, 1, 2});
}

TEST_CASE("An output that cannot be written is an error that names it") {
  const Folder folder;
  CHECK_THROWS_AS(H5Output(folder / "no folder/out.h5"), OutputError);
  CHECK_THROWS_WITH(H5Output(folder / "no folder/out.h5"), Catch::Contains("no folder/out.h5"));
}

TEST_CASE("Reading a missing dataset is an error that names file and dataset") {
  const Folder folder;
  const std::vector<double> numbers(100, 1.0);
  H5Output file(folder / "out.h5");
  file.write("x", std::span<const double>(numbers), {100});
  file.attribute("group", "n", int64_t{1});
  file.close();
  std::vector<int64_t> shape;
  CHECK_THROWS_AS(read_dataset(folder / "out.h5", "y", shape), ConfigError);
  CHECK_THROWS_WITH(read_dataset(folder / "out.h5", "y", shape), Catch::Contains("out.h5: /y: is missing"));
  CHECK_THROWS_WITH(read_dataset(folder / "out.h5", "group", shape),
                    Catch::Contains("out.h5: /group: is not a dataset"));
  CHECK_THROWS_WITH(read_dataset(folder / "out.h5", "x", shape, 99),
                    Catch::Contains("out.h5: /x: holds 100 numbers, at most 99"));
  CHECK_THROWS_WITH(read_dataset(folder / "none.h5", "x", shape), Catch::Contains("none.h5: no such file"));
  CHECK_THROWS_WITH(group_members(folder / "out.h5", "x"), Catch::Contains("is not a group"));
}

}  // namespace
}  // namespace kvreplay
