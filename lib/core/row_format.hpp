#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/platform.hpp"

// How stored entries are written (rows of a cache; docs/configuration.md, "Row formats"). The formats are defined in
// formats/; this is the choice of one, small enough to copy to a device.

namespace kvreplay {

enum class RowPart : int32_t { key, value };

// A row is multiplied by a matrix M before coding, and by its transpose when it is read back.
enum class RowRotation : int32_t {
  none,
  hadamard,         // H: Walsh-Hadamard in Sylvester order / sqrt(size), in blocks on the diagonal
  hadamard_signed,  // diag(s) H, s random signs
  haar,             // Q of the QR decomposition of a Gaussian matrix
};

// Words in configurations, in this order.
inline constexpr const char* kRowRotationWords[] = {"none", "hadamard", "hadamard_signed", "haar"};

// A format of the registry (formats/registry.hpp) with its parameters, for one part of a row (key or value).
struct PartFormat {
  static constexpr size_t kMostBytes = 48;
  static constexpr int32_t kDerivedBlock = 0;  // the largest power of two that divides the width

  int32_t which = 0;  // index in the registry; 0: source, numbers as in the trace
  alignas(8) std::byte parameters[kMostBytes] = {};
  RowRotation rotate = RowRotation::none;  // set by the configuration; formats may rotate on their own
  int32_t rotate_block = kDerivedBlock;
  bool pre_rope = false;  // keys are coded without their rotary embedding

  bool is_source() const { return which == 0; }
  template <class F>
  const F& as() const {
    static_assert(sizeof(F) <= kMostBytes && alignof(F) <= 8 && std::is_trivially_copyable_v<F>);
    return *reinterpret_cast<const F*>(parameters);
  }
  template <class F>
  void set(const F& format) {
    static_assert(sizeof(F) <= kMostBytes && alignof(F) <= 8 && std::is_trivially_copyable_v<F>);
    std::memcpy(parameters, &format, sizeof format);
  }
};

// Rows that stay exact, for a while or permanently.
struct RowProtection {
  int32_t sinks = 0;   // rows of tokens 0 .. sinks - 1 are never coded
  int32_t recent = 1;  // newest rows that are exact during a step, the step's own row included
};

struct FormatRule;

struct RowFormat {
  PartFormat key, value;
  RowProtection full_precision;
  bool own_row_coded = false;        // a row is coded before it is attended to in its own step
  std::vector<int32_t> skip_layers;  // layers that stay at source; negative numbers count from the model's end
  // Formats by age, newest rows first, in place of key and value. A row has the first entry with age < newer_than; the
  // last entry has no limit. An entry has a key and a value alone.
  std::vector<RowFormat> ages;
  std::vector<int32_t> newer_than;  // [ages - 1], ascending
  // Formats by layer and kv head, in place of everything above; the first rule that holds decides.
  std::vector<FormatRule> rules;

  bool is_source() const;
  const PartFormat& part(RowPart p) const { return p == RowPart::key ? key : value; }
  // Index of the entry of a row of this age, in tokens.
  size_t entry_at(int32_t age) const {
    size_t i = 0;
    while (i < newer_than.size() && age >= newer_than[i]) ++i;
    return i;
  }
};

struct FormatRule {
  std::vector<int32_t> layers, heads;  // empty: all; negative layers count from the model's end
  RowFormat format;
};

inline bool RowFormat::is_source() const {
  for (const RowFormat& entry : ages)
    if (!entry.is_source()) return false;
  for (const FormatRule& rule : rules)
    if (!rule.format.is_source()) return false;
  return key.is_source() && value.is_source();
}

// Counts of rows of a cache, or of the rows that a step reads.
struct RowCounts {
  int32_t rows = 0, values = 0;              // all rows, and those that store a value
  int32_t exact_keys = 0, exact_values = 0;  // keys and values that no row format has coded
  int32_t outliers = 0;                      // numbers that coded rows store besides their codes
};

// Random numbers for row formats: read from a file, or drawn (docs/configuration.md, "uniforms").
struct RowUniforms {
  uint32_t seed = 0;
  std::vector<double> signs, rotation, sketch;  // in [0, 1), from a file; empty: drawn
};
// How many of each array a format reads; 0: none.
struct RowUniformCounts {
  int64_t signs = 0, rotation = 0, sketch = 0;
  bool any() const { return signs + rotation + sketch > 0; }
};

}  // namespace kvreplay
