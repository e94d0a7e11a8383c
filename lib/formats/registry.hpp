#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json_text.hpp"
#include "formats/row_text.hpp"
#include "parameters/parameter.hpp"

// The registry of row formats: name, parameters and type-erased functions of each. formats/row_text.hpp defines the
// interface of a format, formats/all.hpp lists the formats.

namespace kvreplay {

struct RowFormatEntry {
  FormatInfo info;
  int32_t which = 0;  // index in the registry
  std::vector<ParameterSpec> parameters;
  PartFormat defaults;
  bool own_rotation = false;
  int64_t outlier_bytes = 0;  // bytes of each number that a row stores beside its codes
  int32_t slot = 1;           // both parts of a row together are padded to a multiple of this many bytes

  CodedBytes (*bytes)(const PartFormat&, RowPart, int32_t width) = nullptr;
  int64_t (*static_bytes)(const PartFormat&, RowPart, int32_t width) = nullptr;
  // Average number of outliers that a row stores beside its codes.
  double (*expected_outliers)(const PartFormat&, RowPart, int32_t width) = nullptr;
  RowRotation (*rotation)(const PartFormat&, RowPart) = nullptr;  // fixed by the format or set by the configuration
  bool (*sketches)(const PartFormat&) = nullptr;
  bool (*is_calibrated)(const PartFormat&) = nullptr;
  std::vector<double> (*tables)(const PartFormat&, RowPart, int32_t width) = nullptr;
  std::vector<double> (*calibrate)(const PartFormat&, RowPart, int32_t width, std::span<const double> rows) = nullptr;
  std::vector<double> (*calibrate_jointly)(const PartFormat&, RowPart, const PromptRows&) = nullptr;  // or null
  int64_t (*model_numbers)(const PartFormat&, RowPart, int32_t width) = nullptr;
  void (*report)(const PartFormat&, RowPart, int32_t width, const double* constants,
                 std::map<std::string, double>& extras) = nullptr;  // or null
};

// In the order of RowFormats; the first is source.
const std::vector<RowFormatEntry>& row_formats();
inline const RowFormatEntry& entry_of(const PartFormat& format) { return row_formats()[size_t(format.which)]; }
const RowFormatEntry* find_row_format(const std::string& name);  // null if there is none
// A format with its default parameters. Throws std::logic_error for an unknown name.
PartFormat part_format(const std::string& name);
RowFormat row_format(const std::string& name);  // same format for keys and values
RowFormat row_format(const PartFormat& both);
// Sets a parameter from JSON text (parameters/parameter.hpp). Throws std::logic_error for an unknown name.
void set_parameter(PartFormat& format, const std::string& name, const std::string& json);

// The rotation of a row, fixed by the format or configured, and the block size of its Hadamard matrix.
inline RowRotation rotation_of(const PartFormat& f, RowPart part) { return entry_of(f).rotation(f, part); }
int32_t rotate_block_of(const PartFormat& f, int32_t width);
// Whether the decoded numbers depend on random numbers.
bool is_random(const PartFormat& f, RowPart part);
bool is_random(const RowFormat& f);
bool may_draw(const RowFormat& f);  // with these or other parameters
bool is_calibrated(const RowFormat& f);
bool has_blocks(const RowFormat& f);      // a part codes several rows together
bool codes_again(const RowFormat& f);     // a coded row may be coded again
bool waits(const RowFormat& f);           // a row may stay exact until later rows arrive
bool has_outliers(const RowFormat& f);    // the bytes of a row depend on its numbers
int32_t residual_of(const RowFormat& f);  // most rows that stay exact until a block of them is coded, or 0
bool quantises(const RowFormat& f);
// The format that a layer uses: source for a skipped layer.
RowFormat at_layer(const RowFormat& f, int32_t layer, int32_t n_layers);
// The format that the first rule gives to a kv head, or the format itself if it has no rules; null: no rule holds.
const RowFormat* at_head(const RowFormat& f, int32_t layer, int32_t n_layers, int32_t kv_head);
// Whether the decoded numbers of an unmodified token depend on nothing but the token, so that caches may share them.
inline bool codes_by_token(const RowFormat& f) { return !has_blocks(f) && !codes_again(f); }

// Bytes of one coded row, both parts; the slot's padding counts as scales. v_dim: 0 where the value is part of the key
// (HeadShape::stored_v_dim).
CodedBytes row_bytes_of(const RowFormat& f, int32_t dim, int32_t v_dim);
// Bytes of one stored row (key and value), as budgets in bytes count it; by age, the most of all entries. Not a whole
// number where several rows share offsets and steps. source_bytes: bytes of one number in the trace. Excludes
// static_bytes().
double row_bytes(const RowFormat& f, int32_t dim, int32_t v_dim, int32_t source_bytes);
int64_t static_bytes(const RowFormat& f, int32_t dim, int32_t v_dim);  // stored once for a kv head
// Calibrated numbers of one kv head that belong to the model: no cache stores them.
int64_t model_numbers(const RowFormat& f, int32_t dim, int32_t v_dim);

// The format's name if nothing else was chosen, otherwise a JSON map; keys and values separately where they differ.
std::string row_format_json(const RowFormat& f);

}  // namespace kvreplay
