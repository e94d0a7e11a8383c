#include "meta.hpp"

#include <H5public.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "base/version.hpp"
#include "kernels/kernels.hpp"
#include "plan/plan.hpp"

namespace kvreplay::app {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
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

nlohmann::json cell_record(const RunConfig& config) {
  return {{"precision", config.run.double_precision ? "double" : "single"},
          {"device", config.run.device},
          {"schema", kEngineSchema},
          {"version", version()},
          {"git_commit", git_commit()},
          {"isa", isa_path()}};
}

nlohmann::json run_record(const RunConfig& config, const std::vector<TraceInfo>& traces, int jobs,
                          const std::string& command_line) {
  nlohmann::json held = nlohmann::json::array();
  for (const TraceInfo& trace : traces)
    held.push_back({{"path", trace.path.string()}, {"trace_id", trace.trace_id}, {"model", trace.model}});
  return {{"config", resolved_json(config)},
          {"traces", held},
          {"version", version()},
          {"git_commit", git_commit()},
          {"engine_schema", kEngineSchema},
          {"hdf5", hdf5_version()},
          {"compiler", compiler()},
          {"host", host_name()},
          {"isa", isa_path()},
          {"jobs", jobs},
          {"created_utc", now_utc()},
          {"command_line", command_line}};
}

std::string version_text() {
  return fmt::format("kvreplay {} (commit {}, HDF5 {}, compiler {})", version(), git_commit(), hdf5_version(),
                     compiler());
}

}  // namespace kvreplay::app
