#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json_text.hpp"
#include "formats/row_text.hpp"
#include "parameters/parameter.hpp"

// The row formats: for each its name, its parameters, and what it can be asked without knowing its type. What a format
// is stands in formats/row_text.hpp, the list of them in formats/all.hpp.

namespace kvreplay {

struct RowFormatEntry {
  FormatInfo info;
  int32_t which = 0;  // place in the registry
  std::vector<ParameterSpec> parameters;
  PartFormat defaults;
  bool own_rotation = false;
  int64_t outlier_bytes = 0;  // of each number that a row stores beside its codes
  int32_t slot = 1;           // both parts of a row together take a multiple of so many bytes

  CodedBytes (*bytes)(const PartFormat&, RowPart, int32_t width) = nullptr;
  int64_t (*static_bytes)(const PartFormat&, RowPart, int32_t width) = nullptr;
  // Numbers that a row stores beside its codes, on average.
  double (*expected_outliers)(const PartFormat&, RowPart, int32_t width) = nullptr;
  RowRotation (*rotation)(const PartFormat&, RowPart) = nullptr;  // its own or the configuration's
  bool (*sketches)(const PartFormat&) = nullptr;
  bool (*is_calibrated)(const PartFormat&) = nullptr;
  std::vector<double> (*tables)(const PartFormat&, RowPart, int32_t width) = nullptr;
  std::vector<double> (*calibrate)(const PartFormat&, RowPart, int32_t width, std::span<const double> rows) = nullptr;
};

// In the order of the list; the first is source.
const std::vector<RowFormatEntry>& row_formats();
inline const RowFormatEntry& entry_of(const PartFormat& format) { return row_formats()[size_t(format.which)]; }
const RowFormatEntry* find_row_format(const std::string& name);  // or null
// A format with its defaults. Throws std::logic_error for a name that no format has.
PartFormat part_format(const std::string& name);
RowFormat row_format(const std::string& name);  // both parts
RowFormat row_format(const PartFormat& both);
// Sets a parameter; json: as parameters/parameter.hpp says.
void set_parameter(PartFormat& format, const std::string& name, const std::string& json);

// Whether a row's rotation is its format's, or was asked for; and how the blocks of a Hadamard matrix come out.
inline RowRotation rotation_of(const PartFormat& f, RowPart part) { return entry_of(f).rotation(f, part); }
int32_t rotate_block_of(const PartFormat& f, int32_t width);
// Whether what is read back depends on random numbers.
bool is_random(const PartFormat& f, RowPart part);
bool is_random(const RowFormat& f);
bool may_draw(const RowFormat& f);  // with these or other parameters
bool is_calibrated(const RowFormat& f);
bool has_blocks(const RowFormat& f);      // a part codes several rows together
bool waits(const RowFormat& f);           // a row may stay exact until others have come
bool has_outliers(const RowFormat& f);    // what a row takes depends on its numbers
int32_t residual_of(const RowFormat& f);  // newest rows that stay exact until a block of them is coded, or 0
bool quantises(const RowFormat& f);
// As a layer stores its rows: source where it is skipped.
RowFormat at_layer(const RowFormat& f, int32_t layer, int32_t n_layers);

// Of one coded row of both parts; a slot's padding is with the scales.
CodedBytes row_bytes_of(const RowFormat& f, int32_t dim, int32_t v_dim);
// Bytes of one stored row (key and value), as budgets in bytes count it: not a whole number where several rows share
// offsets and steps. source_bytes: of one number in the trace. Without what is stored once for a kv head.
double row_bytes(const RowFormat& f, int32_t dim, int32_t v_dim, int32_t source_bytes);
int64_t static_bytes(const RowFormat& f, int32_t dim, int32_t v_dim);  // of a kv head

// A word where nothing but the name was chosen or applies, else a map; parts apart where they differ.
std::string row_format_json(const RowFormat& f);

}  // namespace kvreplay
