#include "formats/row_coding.hpp"

#include <cmath>

#include "base/matrices.hpp"
#include "core/replay_error.hpp"

namespace kvreplay {
namespace {

struct Uniforms {
  const std::vector<double>& given;
  RngStream stream;
  uint32_t seed;
  double operator()(int64_t i) const { return given.empty() ? Rng{seed}.uniform(stream, 0, i) : given[size_t(i)]; }
};

// Standard normal numbers [width, width], row by row. Two uniforms make two of them, the cosine first (Box-Muller).
std::vector<double> gaussian_matrix(const Uniforms& uniform, int32_t width) {
  constexpr double kLeast = 0x1p-53, kTurn = 6.283185307179586;
  std::vector<double> m(size_t(width) * size_t(width));
  for (int64_t i = 0; i < int64_t(m.size()); ++i) {
    const double u = uniform(i - i % 2), angle = kTurn * uniform(i - i % 2 + 1);
    const double radius = std::sqrt(-2 * std::log(u > kLeast ? u : kLeast));
    m[size_t(i)] = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
  return m;
}

// Returns the offset of the appended numbers.
int32_t append(std::vector<double>& to, const std::vector<double>& numbers) {
  const size_t at = to.size();
  to.insert(to.end(), numbers.begin(), numbers.end());
  return int32_t(at);
}

// One part of the prompt's rows as recorded, [rows, width].
std::vector<double> prompt_rows(RowPart part, const RowCoding::Stream& stream, int32_t block) {
  const size_t width = size_t(part == RowPart::key ? stream.shape.dim : stream.shape.v_dim);
  std::vector<double> rows(size_t(stream.prompt) * width);
  for (int32_t t = 0; t < stream.prompt; ++t)
    stream.read(part, block, t, std::span(rows).subspan(size_t(t) * width, width));
  return rows;
}

}  // namespace

RowUniformCounts uniforms_of(const RowFormat& format, int32_t dim, int32_t v_dim) {
  RowUniformCounts counts;
  const auto add = [&](const RowFormat& one) {
    const RowUniformCounts own = uniforms_of(one, dim, v_dim);
    counts = {std::max(counts.signs, own.signs), std::max(counts.rotation, own.rotation),
              std::max(counts.sketch, own.sketch)};
  };
  for (const RowFormat& entry : format.ages) add(entry);
  for (const FormatRule& rule : format.rules) add(rule.format);
  for (const RowPart part : {RowPart::key, RowPart::value}) {
    const PartFormat& f = format.part(part);
    const int64_t width = part == RowPart::key ? dim : v_dim, all = width * width + width * width % 2;
    const RowRotation r = rotation_of(f, part);
    if (r == RowRotation::hadamard_signed) counts.signs = std::max(counts.signs, width);
    if (r == RowRotation::haar) counts.rotation = std::max(counts.rotation, all);
    if (entry_of(f).sketches(f)) counts.sketch = std::max(counts.sketch, all);
  }
  return counts;
}

RowCoding::RowCoding(const RowFormat& format, const Stream& stream, const RowUniforms& uniforms)
    : format_(format), shape_(stream.shape) {
  coder_.full_precision = format.full_precision;
  coder_.own_row = format.own_row_coded;
  coder_.rope = stream.rope, coder_.positions = stream.positions;
  for (const RowFormat& entry : format.ages)
    ages_.push_back(std::make_unique<const RowCoding>(entry, stream, uniforms));
  static_bytes_ = kvreplay::static_bytes(format, stream.shape.dim, stream.shape.stored_v_dim());
  for (const RowPart part : {RowPart::key, RowPart::value}) {
    if (part == RowPart::value && stream.shape.value_in_key) {
      coder_.value.by_row = coder_.key.by_row;  // coded with the key, of which it is a part
      break;
    }
    make_part(part, stream, uniforms);
    calibrate(part, stream);
    PartCoder& p = coder_of(part);
    p.numbers = numbers_[int32_t(part)].data(), p.count = int64_t(numbers_[int32_t(part)].size());
  }
}

void RowCoding::make_part(RowPart part, const Stream& stream, const RowUniforms& uniforms) {
  PartCoder& p = coder_of(part);
  std::vector<double>& numbers = numbers_[int32_t(part)];
  const int32_t width = part == RowPart::key ? stream.shape.dim : stream.shape.v_dim;
  p.format = format_.part(part);
  const RowFormatEntry& entry = entry_of(p.format);
  p.by_row = !p.format.is_source() && !entry.info.by_block;
  p.has_outliers = entry.outlier_bytes > 0;
  p.rotation = rotation_of(p.format, part);
  p.rotate_block = rotate_block_of(p.format, width);
  if (p.rotation == RowRotation::hadamard_signed) {
    const Uniforms uniform{uniforms.signs, RngStream::row_signs, uniforms.seed};
    std::vector<double> signs;
    for (int32_t i = 0; i < width; ++i) signs.push_back(uniform(i) < 0.5 ? -1 : 1);
    p.matrix_at = append(numbers, signs);
  }
  if (p.rotation == RowRotation::haar) {
    const Uniforms uniform{uniforms.rotation, RngStream::row_rotation, uniforms.seed};
    p.matrix_at = append(numbers, orthogonal_factor(gaussian_matrix(uniform, width), width));
  }
  if (entry.sketches(p.format)) {
    const Uniforms uniform{uniforms.sketch, RngStream::row_sketch, uniforms.seed};
    const std::vector<double> sketch = gaussian_matrix(uniform, width);
    p.sketch_at = append(numbers, sketch);
    for (int32_t i = 0; i < width; ++i)
      for (int32_t j = 0; j < width; ++j) numbers.push_back(sketch[size_t(j) * size_t(width) + size_t(i)]);
  }
  p.tables_at = append(numbers, entry.tables(p.format, part, width));
}

// Calibrates from all rows of the prompt.
void RowCoding::calibrate(RowPart part, const Stream& stream) {
  PartCoder& p = coder_of(part);
  const RowFormatEntry& entry = entry_of(p.format);
  if (!entry.is_calibrated(p.format)) return;
  std::vector<double> constants;
  p.numbers = numbers_[int32_t(part)].data();  // RowCoder::prepare() needs the rotation's matrix
  for (int32_t b = 0; b < stream.shape.blocks; ++b) {
    const std::vector<double> own =
        entry.calibrate_jointly != nullptr ? joint_constants_of(part, stream, b) : constants_of(part, stream, b);
    p.calibrated_size = int32_t(own.size());
    constants.insert(constants.end(), own.begin(), own.end());
  }
  p.calibrated_at = append(numbers_[int32_t(part)], constants);
}

// From the part's rows, in the form in which they are coded.
std::vector<double> RowCoding::constants_of(RowPart part, const Stream& stream, int32_t block) {
  const PartFormat& format = coder_of(part).format;
  const int32_t width = part == RowPart::key ? stream.shape.dim : stream.shape.v_dim;
  std::vector<double> rows = prompt_rows(part, stream, block), work(size_t(width), 0);
  for (int32_t t = 0; t < stream.prompt; ++t)
    (void)coder_.prepare(SerialTeam{}, part, t, std::span(rows).subspan(size_t(t) * size_t(width), size_t(width)),
                         work.data());
  return entry_of(format).calibrate(format, part, width, rows);
}

// From rows and queries as recorded.
std::vector<double> RowCoding::joint_constants_of(RowPart part, const Stream& stream, int32_t block) {
  const PartFormat& format = coder_of(part).format;
  if (!stream.query_moment)
    throw ReplayError(std::string(entry_of(format).info.name) +
                      " takes its constants from the prompt's queries, which are not given: take another row_format");
  const std::vector<double> keys = prompt_rows(RowPart::key, stream, block),
                            values = prompt_rows(RowPart::value, stream, block), moment = stream.query_moment(block);
  return entry_of(format).calibrate_jointly(format, part, {stream.shape.dim, stream.shape.v_dim, keys, values, moment});
}

void RowCoding::report(std::map<std::string, double>& extras) const {
  for (const RowPart part : {RowPart::key, RowPart::value}) {
    const PartCoder& p = part == RowPart::key ? coder_.key : coder_.value;
    const auto tell = entry_of(p.format).report;
    if (tell == nullptr || p.calibrated_size == 0) continue;
    for (int32_t b = 0; b < shape_.blocks; ++b)
      tell(p.format, part, part == RowPart::key ? shape_.dim : shape_.v_dim,
           p.numbers + p.calibrated_at + int64_t(b) * p.calibrated_size, extras);
  }
}

}  // namespace kvreplay
