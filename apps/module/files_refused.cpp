#include "base/errors.hpp"
#include "trace/calibration_file.hpp"
#include "trace/kept_lists.hpp"
#include "trace/uniforms.hpp"

// The module is built without HDF5. These functions replace the library's readers of other HDF5 files.

namespace kvreplay {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file) {
  throw ConfigError(
      file.string() +
      ": HDF5 files of lists, uniforms and calibrations are read by the program only: take `kvreplay run`, or write a "
      "kvreplay.scorer or kvreplay.Policy");
}

}  // namespace

CalibrationOrigin read_calibration_origin(const std::filesystem::path& file) { refuse(file); }
CalibrationLayer read_calibration_layer(const std::filesystem::path& file, const LayerInfo&, StatisticsNeeds) {
  refuse(file);
}
void write_calibration_file(const std::filesystem::path& file, const CalibrationOrigin&,
                            const std::vector<std::pair<LayerInfo, CalibrationLayer>>&) {
  refuse(file);
}
std::string calibration_file_problem(const std::filesystem::path& file, const LayerInfo&, StatisticsNeeds) {
  refuse(file);
}
KeptLists read_kept_lists(const std::filesystem::path& file, const KeptScope&) { refuse(file); }
std::string kept_lists_problem(const std::filesystem::path& file, const std::vector<KeptScope>&) { refuse(file); }
InjectedUniforms read_uniforms(const std::filesystem::path& file, const std::string&, int32_t, int32_t,
                               const UniformsRequest&) {
  refuse(file);
}
RowUniforms read_row_uniforms(const std::filesystem::path& file, const RowUniformCounts&) { refuse(file); }

}  // namespace kvreplay
