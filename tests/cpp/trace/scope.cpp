#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "sweep/fixture.hpp"
#include "sweep/staging.hpp"
#include "trace/trace_files.hpp"

// Large traces: one file per layer and an index of links. A reader opens only the layers it needs.

using namespace sweep_test;

namespace {

const std::string kLayer = "prompts/p0/layers/003";

// Makes `at` in a finished file a link to a layer of another file.
void link(const fs::path& file, const std::string& at, const std::string& target) {
  const hid_t h5 = H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), groups = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(groups, 1);
  REQUIRE(H5Lcreate_external(target.c_str(), kLayer.c_str(), h5, at.c_str(), groups, H5P_DEFAULT) >= 0);
  H5Pclose(groups);
  H5Fclose(h5);
}

// Layers 3, 4 and 5 of prompt p0; 4 and 5 are in separate files.
fs::path linked_trace(const Folder& folder) {
  fs::create_directories(folder / "p0");
  for (const char* name : {"four.h5", "five.h5"}) SmallTrace{}.write(folder / "p0" / name);
  SmallTrace index;
  index.more = [](H5Output& file) { file.attribute("/", "trace_id", std::string("made by hand")); };
  const fs::path file = index.write(folder / "index.h5");
  link(file, "prompts/p0/layers/004", "p0/four.h5");
  link(file, "prompts/p0/layers/005", "p0/five.h5");
  return file;
}

TraceScope layers(std::vector<int32_t> numbers) { return {std::nullopt, std::move(numbers)}; }

}  // namespace

TEST_CASE("Only the layers in scope are opened, and all are known by their numbers") {
  const Folder folder;
  const fs::path index = linked_trace(folder);
  fs::remove(folder / "p0" / "five.h5");
  const Trace trace(index, layers({4}));
  const PromptInfo& prompt = trace.info().prompts.at(0);
  CHECK(prompt.layer_numbers == std::vector<int32_t>{3, 4, 5});
  REQUIRE(prompt.layers.size() == 1);
  CHECK(prompt.layers[0].layer == 4);
  CHECK(prompt.tokens == 10);
  CHECK(trace.info().n_layers == 6);
  CHECK_THROWS_WITH(Trace(index), Catch::Contains("five.h5 is missing"));
  CHECK_THROWS_WITH(Trace(index, layers({5})), Catch::Contains("five.h5 is missing"));
}

TEST_CASE("A prompt out of scope is not opened and keeps its place among the prompts") {
  const Folder folder;
  const fs::path file = linked_trace(folder);
  link(file, "prompts/a0/layers/007", "gone.h5");
  const Trace trace(file, {std::vector<std::string>{"p0"}, std::nullopt});
  REQUIRE(trace.info().prompts.size() == 2);
  CHECK(trace.info().prompts[0].id == "a0");
  CHECK(trace.info().prompts[0].layers.empty());
  CHECK(trace.info().prompts[1].layers.size() == 3);
  CHECK(trace.info().n_layers == 8);
}

TEST_CASE("A computed trace id covers the whole trace, whatever parts are opened") {
  const Folder folder;
  small_trace(folder / "t.h5");
  SmallTrace{}.write(folder / "s.h5");
  for (const char* name : {"t.h5", "s.h5"})
    CHECK(Trace(folder / name, layers({0})).info().trace_id == Trace(folder / name).info().trace_id);
}

TEST_CASE("The files of a scope are the index and the targets of its links") {
  const Folder folder;
  const fs::path index = linked_trace(folder);
  const auto names = [&](const TraceScope& scope) {
    std::vector<std::string> found;
    for (const fs::path& file : files_of_trace(index, scope)) found.push_back(file.filename());
    return found;
  };
  CHECK(names({}) == std::vector<std::string>{"index.h5", "four.h5", "five.h5"});
  CHECK(names(layers({3, 5})) == std::vector<std::string>{"index.h5", "five.h5"});
}

TEST_CASE("A staged trace is read from the copy, which is removed with its worker") {
  const Folder folder, node;
  const fs::path index = linked_trace(folder);
  std::vector<std::string> told;
  {
    Staging staging(node / "tmp", [&](const std::string& line) { told.push_back(line); });
    const fs::path copy = staging.copy(index, layers({4}));
    CHECK(copy != index);
    fs::remove_all(folder / "p0");
    CHECK(Trace(copy, layers({4})).info().prompts.at(0).layers.size() == 1);
    CHECK_FALSE(fs::exists(copy.parent_path() / "p0" / "five.h5"));
  }
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Catch::Contains("2 files"));
  CHECK(fs::is_empty(node / "tmp"));
}

TEST_CASE("A trace that does not fit on the node is read in place") {
  const Folder folder, node;
  const fs::path trace = SmallTrace{}.write(folder / "t.h5");
  std::error_code too_large;
  fs::resize_file(trace, fs::space(node / "").available + (uintmax_t{1} << 30), too_large);  // a hole
  if (too_large) return;  // larger than this file system allows
  std::vector<std::string> told;
  Staging staging(node / "tmp", [&](const std::string& line) { told.push_back(line); });
  CHECK(staging.copy(trace, {}) == trace);
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Catch::Contains("do not fit"));
}

TEST_CASE("A trace without a recorded id is staged whole") {
  const Folder folder, node;
  fs::create_directories(folder / "p0");
  SmallTrace{}.write(folder / "p0" / "four.h5");
  const fs::path index = SmallTrace{}.write(folder / "index.h5");
  link(index, "prompts/p0/layers/004", "p0/four.h5");
  Staging staging(node / "tmp", [](const std::string&) {});
  const fs::path copy = staging.copy(index, layers({3}));
  CHECK(Trace(copy, layers({3})).info().trace_id == Trace(index).info().trace_id);
}

TEST_CASE("A trace that is a symbolic link is staged under the name of its target") {
  const Folder folder, node;
  SmallTrace{}.write(folder / "real.h5");
  fs::create_symlink(folder / "real.h5", folder / "link.h5");
  Staging staging(node / "tmp", [](const std::string&) {});
  CHECK(Trace(staging.copy(folder / "link.h5", {})).info().prompts.size() == 1);
}

TEST_CASE("A folder for copies may be given relative to where the worker runs") {
  const Folder folder, node;
  SmallTrace{}.write(folder / "t.h5");
  const fs::path here = fs::current_path();
  fs::current_path(node / "");
  {
    Staging staging("tmp", [](const std::string&) {});
    CHECK(staging.copy(folder / "t.h5", {}).is_absolute());
  }
  fs::current_path(here);
}

TEST_CASE("The next worker removes the staged files of a killed worker, but not those of a living one") {
  const Folder folder, node;
  const auto quiet = [](const std::string&) {};
  fs::create_directories(node / "tmp/kvreplay-stage.elsewhere.1/0");
  write_bytes(node / "tmp/kvreplay-stage.elsewhere.1/0/t.h5", "left behind");
  write_bytes(node / "tmp/notes.txt", "mine");
  Staging living(node / "tmp", quiet);
  CHECK_FALSE(fs::exists(node / "tmp/kvreplay-stage.elsewhere.1"));
  const fs::path copy = living.copy(linked_trace(folder), {});
  // A worker on another machine cannot see this process, nor the dead one.
  const pid_t child = ::fork();
  if (child == 0) {
    { const Staging next(node / "tmp", quiet); }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(fs::exists(copy));
  CHECK(fs::exists(node / "tmp/notes.txt"));
}

TEST_CASE("A folder for copies that cannot be made is reported with the option") {
  const Folder folder;
  write_bytes(folder / "file", "x");
  CHECK_THROWS_WITH(Staging(folder / "file" / "tmp", [](const std::string&) {}), Catch::Contains("--stage"));
}
