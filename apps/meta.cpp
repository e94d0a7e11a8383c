#include "apps/meta.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "base/version.hpp"
#include "kernels/kernels.hpp"
#include "plan/plan.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay::app {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

ProcessRecord build_record() { return {version(), git_commit(), "", "", "", "", kEngineSchema}; }

ProcessRecord process_record(const std::string& precision, const std::string& device) {
  ProcessRecord record = build_record();
  record.precision = precision, record.device = device, record.isa = isa_path();
  return record;
}

JsonObject run_record(const std::string& config, const std::string& traces, const std::string& command_line) {
  JsonObject all;
  all.add_json("config", config).add_json("traces", traces);
  all.add("version", std::string(version())).add("git_commit", std::string(git_commit()));
  all.add("engine_schema", kEngineSchema).add("hdf5", hdf5_version()).add("compiler", std::string(compiler()));
  all.add("host", host_name()).add("isa", std::string(isa_path())).add("created_utc", now_utc());
  return all.add("command_line", command_line);
}

std::string version_text() {
  return fmt::format("kvreplay {} (commit {}, HDF5 {}, compiler {})", version(), git_commit(), hdf5_version(),
                     compiler());
}

}  // namespace kvreplay::app
