#include <cstdio>
#include <string>

#include <kvreplay/base/errors.hpp>
#include <kvreplay/plan/plan.hpp>
#include <kvreplay/replay/runner.hpp>
#include <kvreplay/trace/trace.hpp>

// second_tool TRACE METHOD BUDGET prints the mean relative error of each kv head, from C++.

namespace {

void print_errors(const std::string& text) {
  const kvreplay::LoadedRun run = kvreplay::load_run(text, ".", "second_tool", {}, kvreplay::registry());
  kvreplay::RunOptions options;
  options.tensors = kvreplay::open_files(run.config.traces);
  options.on_cell = [](const kvreplay::Cell& cell, const kvreplay::CellResult& result) {
    std::printf("%d,%d,%s,%.9g\n", cell.place.layer, cell.place.kv_head, cell.method().info.name,
                result.measures["rel_err_out_mean"].value_or(-1));
  };
  kvreplay::run_cells(kvreplay::plan_cells(run.config, run.traces), options);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return std::fprintf(stderr, "usage: second_tool TRACE METHOD BUDGET\n"), 2;
  try {
    print_errors(std::string("schema: 1\ntraces: ['") + words[1] + "']\nmethods: [" + words[2] +
                 "]\nbudget: {tokens: [" + words[3] + "]}\n");
  } catch (const kvreplay::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
