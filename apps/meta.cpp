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

nlohmann::json build_record() { return {{"version", version()}, {"git_commit", git_commit()}}; }

nlohmann::json cell_record(const std::string& precision, const std::string& device) {
  nlohmann::json record = build_record();
  record.update(
      {{"precision", precision}, {"device", device}, {"schema", kEngineSchema}, {"isa", isa_path()}});
  return record;
}

nlohmann::json run_record(const nlohmann::json& config, const nlohmann::json& traces,
                          const std::string& command_line) {
  return {{"config", config},
          {"traces", traces},
          {"version", version()},
          {"git_commit", git_commit()},
          {"engine_schema", kEngineSchema},
          {"hdf5", hdf5_version()},
          {"compiler", compiler()},
          {"host", host_name()},
          {"isa", isa_path()},
          {"created_utc", now_utc()},
          {"command_line", command_line}};
}

std::string version_text() {
  return fmt::format("kvreplay {} (commit {}, HDF5 {}, compiler {})", version(), git_commit(), hdf5_version(),
                     compiler());
}

}  // namespace kvreplay::app
