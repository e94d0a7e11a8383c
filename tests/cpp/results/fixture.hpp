#pragma once
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "catalog/cell.hpp"
#include "results/store.hpp"

// A small plan and its results, for tests of lib/results.

namespace results_test {

using namespace kvreplay;
namespace fs = std::filesystem;
using nlohmann::json;

// A directory that does not exist yet and is gone after the test.
struct ScratchDir {
  fs::path path;
  ScratchDir() {
    static int count = 0;
    path = fs::temp_directory_path() / ("kvreplay-store-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    fs::remove_all(path);
  }
  ~ScratchDir() { fs::remove_all(path); }
};

inline Cell cell_of(int number) {
  static const auto trace = std::make_shared<const TraceNames>(TraceNames{"1234", "tiny, \"quoted\"", 1});
  auto variant = std::make_shared<Variant>(MethodValues(*find_method(registry(), "h2o")));
  variant->trace = trace;
  variant->params = R"({"gqa.level":"kv","recent":8})", variant->given = "{}";
  Cell cell;
  cell.key = "k00000000000000" + std::to_string(10 + number);
  cell.place = {0, "p0", 0, number};
  cell.budget = {16, 16};
  cell.extent = {5, 3};
  cell.variant = std::move(variant);
  return cell;
}

// Two heads, two scored rows, values of two numbers.
inline CellResult result_of(double error) {
  CellResult result;
  result.n_queries = 2;
  result.measures["rel_err_out_mean"] = error;
  result.measures["mean_kept_tokens"] = 16;
  result.measures["bound_holds"] = true;
  result.rows = {3, 4};
  result.heads = 2, result.v_dim = 2;
  result.rel_err = {0.5, 0.25, 0.125, 0};
  result.partition_err = {0, 0, 0, 1};
  result.out = {1, 2, 3, 4, 5, 6, 7, 8};
  result.kept = {{0, 2, 1, 2, 3}, {0, 2, 5, 5}};
  return result;
}

inline CellResult failure() {
  CellResult result;
  result.ok = false;
  result.error = "the denominator is zero\nat row 4";
  return result;
}

inline std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline fs::path only_shard(const fs::path& dir) {
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(dir / "shards")) shards.push_back(entry.path());
  REQUIRE(shards.size() == 1);
  return shards[0];
}

inline size_t index_of(const std::string& column) {
  for (size_t i = 0; i < columns().size(); ++i)
    if (column == columns()[i].name) return i;
  FAIL("no column " + column);
  return 0;
}

inline void publish_one(const fs::path& dir, int number, const SaveOptions& save = {}) {
  Store(dir, save, false).publish(cell_of(number), result_of(0.5));
}

// The row of a published cell.
inline Fields row_of(const Store& store, int number) {
  Fields row;
  store.folder().each_row({cell_of(number).key}, [&](const Fields& fields) { row = fields; });
  REQUIRE_FALSE(row.empty());
  return row;
}

// During its lifetime no file grows beyond `bytes`, which looks like a full disk to the program.
struct FullDisk {
  rlimit before{};
  explicit FullDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{bytes, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

inline std::vector<fs::path> files_in(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path().filename());
  return files;
}

}  // namespace results_test
