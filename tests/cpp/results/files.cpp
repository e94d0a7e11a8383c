#include <cmath>

#include "base/errors.hpp"
#include "results/fixture.hpp"
#include "results/output_files.hpp"
#include "trace/h5_file.hpp"

using namespace results_test;

namespace {

const std::string kContractColumns =
    "key,trace_id,model,prompt,layer,kv_head,method,params,budget_tokens,seed,n_prefill,n_tokens,n_queries,"
    "rel_err_out_mean,rel_err_out_p50,rel_err_out_p95,rel_err_out_max,rel_err_fro,cosine_mean,eps_spectral_"
    "mean,"
    "eps_spectral_max,eps_frobenius_mean,eps_frobenius_max,partition_err_mean,partition_err_max,kept_mass_"
    "mean,"
    "mass_recall,index_recall,peak_kept_tokens,mean_kept_tokens,peak_attended_tokens,peak_bytes,aux_bytes,"
    "total_bytes,full_bytes,n_evictions,bound_log10_tokens,bound_holds,select_s,attend_s,status,error";

}  // namespace

TEST_CASE("A number that is not finite fails its cell instead of reaching a file") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  CHECK_FALSE(store.publish(cell_of(0), result_of(std::nan(""))));
  CHECK(store.folder().done().empty());
  CHECK_THAT(row_of(store, 0)[index_of("error")], Catch::Contains("rel_err_out_mean"));
  CellResult curve = result_of(0.5);
  curve.rel_err[1] = INFINITY;
  store.publish(cell_of(1), curve);
  CHECK(store.folder().done().empty());
}

TEST_CASE("results.csv starts with the columns of the contract, in their order") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.finish({});
  CHECK_THAT(lines_of(dir.path / "results.csv").at(0), Catch::StartsWith(kContractColumns));
}

TEST_CASE("results.csv has the plan's published cells in the plan's order, quoted where needed") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(cell_of(1), result_of(0.1));
  store.publish(cell_of(0), result_of(1.0 / 3));
  store.finish(keys_of({cell_of(0), cell_of(2), cell_of(1)}));
  const std::vector<std::string> lines = lines_of(dir.path / "results.csv");
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[1],
             Catch::StartsWith("k0000000000000010,1234,\"tiny, \"\"quoted\"\"\",p0,0,0,h2o,"
                               "\"{\"\"gqa.level\"\":\"\"kv\"\",\"\"recent\"\":8}\",16,,3,5,2,0.3333333333333333,,"));
  CHECK_THAT(lines[2], Catch::StartsWith("k0000000000000011,"));
  CHECK_THAT(lines[2], Catch::Contains(",2,0.1,,"));
}

TEST_CASE("Numbers survive the shard file to the last bit") {
  const ScratchDir dir;
  const double error = 0.1 + 0.2;
  { Store(dir.path, {}, false).publish(cell_of(0), result_of(error)); }
  const auto row = row_of(Store(dir.path, {}, false), 0);
  CHECK(std::stod(row[index_of("rel_err_out_mean")]) == error);
  CHECK(row[index_of("mean_kept_tokens")] == "16");
  CHECK(row[index_of("bound_holds")] == "1");
}

TEST_CASE("Facts common to all cells of a process are written with each cell") {
  const ScratchDir dir;
  ProcessRecord process;
  process.precision = "double", process.device = "cpu", process.isa = "avx2", process.version = "0.1";
  { Store(dir.path, {}, false, process).publish(cell_of(0), result_of(0.5)); }
  const json line = json::parse(lines_of(only_shard(dir.path)).at(0));
  CHECK(line.at("isa") == "avx2");
  CHECK(line.at("version") == "0.1");
  CHECK(line.contains("host"));
  const auto row = row_of(Store(dir.path, {}, false), 0);
  CHECK(row[index_of("precision")] == "double");
  CHECK(row[index_of("device")] == "cpu");
}

TEST_CASE("results.meta.json holds the given facts, the units and the counts") {
  const ScratchDir dir;
  Store store(dir.path, {}, false);
  store.publish(cell_of(0), result_of(0.5));
  store.publish(cell_of(1), failure());
  store.finish(keys_of({cell_of(0), cell_of(1), cell_of(2)}), R"({"git": "abc"})");
  const json meta = json::parse(text_of(dir.path / "results.meta.json"));
  CHECK(meta.at("git") == "abc");
  CHECK(meta.at("columns").at("peak_bytes").at("unit") == "bytes");
  CHECK(meta.at("cells") == json{{"planned", 3}, {"ok", 1}, {"failed", 1}, {"missing", 1}});
}

TEST_CASE("Arrays are gathered under the keys of their cells") {
  const ScratchDir dir;
  Store store(dir.path, {true, true, true}, false);
  store.publish(cell_of(0), result_of(0.5));
  CellResult oneshot = result_of(0.25);
  oneshot.double_precision = oneshot.oneshot = true;
  oneshot.num = oneshot.den = {1, 1, 2, 2, 1};
  oneshot.attended = {{7}, {0, 1}};
  store.publish(cell_of(1), oneshot);
  store.publish(cell_of(2), failure());
  store.finish(keys_of({cell_of(0), cell_of(1), cell_of(2)}));

  std::vector<int64_t> shape;
  const std::string first = cell_of(0).key + "/", second = cell_of(1).key + "/";
  CHECK(group_members(dir.path / "curves.h5", "/") == std::vector<std::string>{cell_of(0).key, cell_of(1).key});
  CHECK(read_dataset(dir.path / "curves.h5", first + "rows", shape) == std::vector<double>{3, 4});
  CHECK(read_dataset(dir.path / "curves.h5", first + "rel_err", shape) == std::vector<double>{0.5, 0.25, 0.125, 0});
  CHECK(shape == std::vector<int64_t>{2, 2});
  CHECK(read_dataset(dir.path / "curves.h5", first + "partition_err", shape).size() == 4);
  CHECK(read_dataset(dir.path / "outputs.h5", first + "out", shape) == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(shape == std::vector<int64_t>{2, 2, 2});
  CHECK(group_members(dir.path / "kept.h5", first) == std::vector<std::string>{"kept_flat", "kept_off"});
  CHECK(read_dataset(dir.path / "kept.h5", first + "kept_flat", shape) == std::vector<double>{0, 2, 1, 2, 3});
  CHECK(read_dataset(dir.path / "kept.h5", first + "kept_off", shape) == std::vector<double>{0, 2, 5, 5});
  CHECK(read_dataset(dir.path / "kept.h5", second + "den", shape) == std::vector<double>{1, 1, 2, 2, 1});
  CHECK(read_dataset(dir.path / "kept.h5", second + "attended_off", shape) == std::vector<double>{0, 1});
}

TEST_CASE("Temporary files of a killed process with equal name and number disturb no other process") {
  const ScratchDir dir;
  fs::create_directories(dir.path);
  const std::string next = temporary_name(dir.path / "t.csv").filename();
  const int number = std::stoi(next.substr(next.rfind('.') + 1));
  for (int i = 1; i <= 3; ++i)
    std::ofstream(dir.path / (next.substr(0, next.rfind('.') + 1) + std::to_string(number + i))) << "left";
  publish_text(dir.path / "t.csv", "whole");
  CHECK(text_of(dir.path / "t.csv") == "whole");
}

TEST_CASE("Finishing leaves no temporary file") {
  const ScratchDir dir;
  Store store(dir.path, {true, false, false}, false);
  store.publish(cell_of(0), result_of(0.5));
  store.finish(keys_of({cell_of(0)}));
  for (const auto& entry : fs::recursive_directory_iterator(dir.path))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("A final name that something else occupies is an output error without litter") {
  const ScratchDir dir;
  Store store(dir.path, {true, false, false}, false);
  store.publish(cell_of(0), result_of(0.5));
  fs::create_directories(dir.path / "curves.h5" / "taken");
  const size_t files = files_in(dir.path).size();
  CHECK_THROWS_AS(store.finish(keys_of({cell_of(0)})), OutputError);
  CHECK(files_in(dir.path).size() == files);
}
