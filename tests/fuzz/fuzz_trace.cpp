#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/errors.hpp"
#include "finding.hpp"
#include "survey/recorded_output.hpp"
#include "survey/suspicious_numbers.hpp"
#include "trace/inspect.hpp"
#include "trace/suspicious_facts.hpp"
#include "trace/trace.hpp"
#include "trace/trace_metadata.hpp"

// Takes any bytes as a trace file. Either it is refused with a message that names it, or all of it can be read and all
// numbers are finite.

using namespace kvreplay;
namespace fs = std::filesystem;

namespace {

// In memory if there is such a folder, because every input is written to a file and read again.
fs::path scratch() {
  const fs::path memory = "/dev/shm";
  const fs::path folder = fs::exists(memory) ? memory : fs::temp_directory_path();
  return folder / ("kvreplay-fuzz-" + std::to_string(::getpid()) + ".h5");
}

// The reader tries every file in a child process first (trace/sandbox.hpp). Crashes of HDF5 there are not findings, and
// the child may run for one second.
void limit_child_time() {
  __sanitizer_set_death_callback(nullptr);
  const itimerval second{{}, {1, 0}};
  ::setitimer(ITIMER_VIRTUAL, &second, nullptr);
}

void check_finite(const std::vector<float>& read) {
  if (!std::all_of(read.begin(), read.end(), [](float x) { return std::isfinite(x); }))
    finding("a number that is not finite was read");
}

void read_layer(const Trace& trace, const PromptInfo& prompt, const LayerInfo& layer) {
  std::vector<float> keys(static_cast<size_t>(layer.tokens * layer.head_dim));
  std::vector<float> values(static_cast<size_t>(layer.tokens * layer.v_head_dim));
  for (int32_t h = 0; h < layer.kv_heads; ++h) {
    trace.read_keys(prompt.id, layer.layer, h, layer.tokens, keys);
    trace.read_values(prompt.id, layer.layer, h, layer.tokens, values);
    check_finite(keys);
    check_finite(values);
  }
  std::vector<float> queries(static_cast<size_t>(layer.query_rows * layer.head_dim));
  for (int32_t h = 0; h < layer.q_heads; ++h) {
    trace.read_queries(prompt.id, layer.layer, h, 0, layer.query_rows, queries);
    check_finite(queries);
  }
  trace.query_positions(prompt.id, layer.layer);
  check_finite(trace.sink_logits(prompt.id, layer.layer));
}

void read_all(const fs::path& path) {
  const Trace trace(path);
  for (const PromptInfo& prompt : trace.info().prompts) {
    trace.token_ids(prompt.id);
    trace.token_classes(prompt.id);
    trace.position_ids(prompt.id);
    for (const LayerInfo& layer : prompt.layers) read_layer(trace, prompt, layer);
  }
  inspect_text(trace);
  if (!deep_check(trace).empty()) return;
  wrong_outputs(trace);
  unknown_names(trace);
  suspicious_numbers(trace);
}

// The reader relied on a child process; reading again here shows the fuzzer which lines ran.
void read_without_sandbox(const fs::path& path) {
  const h5::Lock lock;
  try {
    read_info(h5::open_root(path), path, {});
  } catch (const h5::Problem&) {
  }
}

void check_message(const std::string& message, const fs::path& path) {
  if (message.find(path.filename()) == std::string::npos && message.find("/prompts") == std::string::npos)
    finding("a message without its place: " + message);
  if (message.find('\n') != std::string::npos) finding("a message of several lines: " + message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int handled = ::pthread_atfork(nullptr, nullptr, limit_child_time);
  static const fs::path path = scratch();
  if (handled != 0) finding("no handler for children");
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    read_all(path);
  } catch (const UserError& error) {
    const std::string message = error.what();
    check_message(message, path);
    if (message.find("damaged beyond reading") == std::string::npos) read_without_sandbox(path);
  }
  fs::remove(path);
  return 0;
}
