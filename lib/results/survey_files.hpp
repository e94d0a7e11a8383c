#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "survey/survey.hpp"

// FILE.h5 and FILE.csv of `kvreplay clusterability` (docs/formats.md).

namespace kvreplay {

struct SurveyHeader {
  std::string trace_id, model;
  uint32_t seed = 0;
};

// The table beside the HDF5 file: the same name with .csv.
std::filesystem::path survey_table(const std::filesystem::path& file);
// Publishes both files: each whole or not at all, and neither before both are written. Replaces existing ones. Throws
// OutputError, and TraceError if a number is not finite.
void write_survey(const std::filesystem::path& file, const SurveyHeader& header,
                  const std::vector<UnitSurvey>& surveys);

}  // namespace kvreplay
