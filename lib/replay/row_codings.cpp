#include "replay/row_codings.hpp"

#include "trace/uniforms.hpp"

namespace kvreplay {

template <class Real>
RowCoding::Stream coding_stream(const HeadStream<Real>& s) {
  const RopeView rope{s.inv_freq.data(), int32_t(s.inv_freq.size()), s.interleaved, s.attention_factor};
  const auto read = [&s](RowPart part, int32_t block, int32_t token, std::span<double> row) {
    const Real* from = part == RowPart::key ? s.block_keys(block) : s.block_values(block);
    std::copy_n(from + int64_t(token) * int64_t(row.size()), row.size(), row.begin());
  };
  return {s.shape, s.prompt, rope, s.positions.data(), read};
}
template RowCoding::Stream coding_stream(const HeadStream<float>&);
template RowCoding::Stream coding_stream(const HeadStream<double>&);

template <class Real>
auto RowCodings<Real>::of(const Cell& cell, const RowFormat& format, const HeadStream<Real>& stream, bool shares)
    -> Shared {
  if (format.is_source()) return {};
  const bool random = is_random(format);
  const std::string file = random ? cell.variant->uniforms : "";
  const uint32_t seed = random ? cell.seed.value_or(0) : 0;
  Shared& made = made_[{row_format_json(format), seed, file}];
  if (made.coding != nullptr) return made;
  RowUniforms uniforms;
  if (!file.empty()) uniforms = read_row_uniforms(file, uniforms_of(format, stream.shape.dim, stream.shape.v_dim));
  uniforms.seed = seed;
  made.coding = std::make_shared<RowCoding>(format, coding_stream(stream), uniforms);
  if (shares && !has_blocks(format))
    made.tokens = std::make_shared<CodedTokens<Real>>(made.coding, stream.shape, stream.tokens, stream.keys.data(),
                                                      stream.values.data());
  return made;
}

template class RowCodings<float>;
template class RowCodings<double>;

}  // namespace kvreplay
