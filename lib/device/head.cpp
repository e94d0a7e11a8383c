#include "device/head.hpp"

#include <algorithm>
#include <numeric>

#include "device/kernels_of.hpp"

namespace kvreplay {
namespace {

bool all_bf16(const std::vector<float>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return from_bf16(to_bf16(x)) == x; });
}

// Whether every number fits 16 bits; only held queries are checked.
bool is_bf16(const HeadStream<float>& stream) {
  return stream.stored_bytes == 2 && all_bf16(stream.keys) && all_bf16(stream.values) && all_bf16(stream.queries);
}

// Width of the kernels for the stream's heads; 0: there are none.
int32_t width_of(const HeadStream<float>& stream) {
  return padded_width(std::max(stream.shape.dim, stream.shape.v_dim));
}

// Queries of these tokens, which must all have one: [heads, tokens, dim].
std::vector<float> queries_of(const HeadStream<float>& stream, const std::vector<int32_t>& tokens) {
  const size_t dim = size_t(stream.shape.dim), count = tokens.size();
  std::vector<float> numbers(size_t(stream.shape.heads) * count * dim);
  for (size_t r = 0; r < count; ++r) {
    stream.hold_queries(tokens[r], tokens[r]);
    for (int32_t h = 0; h < stream.shape.heads; ++h)
      std::copy_n(stream.query(h, tokens[r]), dim, numbers.data() + (size_t(h) * count + r) * dim);
  }
  return numbers;
}

RowsInPlace rows_in_place(const DeviceTensor& tensor, const int32_t* row, int64_t heads, int64_t rows, int32_t dim) {
  const int64_t* const s = tensor.strides;
  return {tensor.data, tensor.type, {s[0], s[1], s[2]}, row, heads, rows, dim};
}

}  // namespace

DeviceHead::DeviceHead(Runtime& runtime, const HeadStream<float>& stream, Grade grade, Portion most)
    : runtime_(runtime), stream_(stream), most_(most), width_(width_of(stream)), grade_(grade) {
  const int64_t rows = int64_t(stream.shape.blocks) * stream.tokens;
  keys_ = block_rows(stream.keys, stream.on_device.k, stream.shape.dim);
  key_planes_ = pack(keys_, rows, stream.shape.dim);
  const DeviceArray<float> values = block_rows(stream.values, stream.on_device.v, stream.shape.v_dim);
  value_planes_ = pack(values, rows, stream.shape.v_dim);
  if (!stream.sink_logits.empty()) sink_logits_ = DeviceArray<float>(runtime, std::span(stream.sink_logits));
  if (holds(stream.on_device.q)) expect_usable_queries();
  runtime.wait();  // `values` is freed next
}

std::optional<Grade> DeviceHead::grade_for(const Runtime& runtime, const HeadStream<float>& stream) {
  const int32_t width = width_of(stream);
  if (width == 0 || stream.shape.value_in_key) return std::nullopt;
  const Grade grade = is_bf16(stream) ? Grade::recorded : Grade::single;
  return shared_bytes_needed(width, grade) <= runtime.most_shared_bytes() ? std::optional(grade) : std::nullopt;
}

auto DeviceHead::pack(const DeviceArray<float>& numbers, int64_t rows, int32_t dim) -> Planes {
  Planes planes;
  const size_t count = size_t(rows) * size_t(width_);
  planes.high = DeviceArray<uint16_t>(runtime_, count);
  if (grade_ == Grade::single) planes.low = DeviceArray<uint16_t>(runtime_, count);
  runtime_.run(PackKernel{numbers.data(), planes.high.data(), planes.low.data(), rows, dim, width_});
  return planes;
}

DeviceArray<float> DeviceHead::gathered(const RowsInPlace& from) {
  DeviceArray<float> numbers(runtime_, size_t(from.count()));
  runtime_.run(GatherKernel{from, numbers.data()});
  return numbers;
}

// Numbers that are read in place pass no reader on the host, which would refuse NaN.
void DeviceHead::expect_usable_queries() {
  const DeviceArray<int32_t> found(runtime_, std::vector<int32_t>{0});
  const RowsInPlace all =
      rows_in_place(stream_.on_device.q, nullptr, heads(), stream_.all_query_rows, stream_.shape.dim);
  runtime_.run(UnusableKernel{all, found.data()});
  int32_t any = 0;
  found.download(std::span(&any, 1));
  runtime_.wait();
  if (any == 0) return;
  for (int32_t t = 0; t < stream_.tokens; ++t) stream_.hold_queries(t, t);  // throws an error that names the number
}

// Keys or values, [blocks, tokens, dim].
DeviceArray<float> DeviceHead::block_rows(const std::vector<float>& numbers, const DeviceTensor& there, int32_t dim) {
  if (!holds(there)) return {runtime_, std::span(numbers)};
  return gathered(rows_in_place(there, nullptr, stream_.shape.blocks, stream_.tokens, dim));
}

// Queries of these tokens, which must all have one: [heads, tokens, dim].
DeviceArray<float> DeviceHead::query_rows(const std::vector<int32_t>& tokens) {
  if (!holds(stream_.on_device.q)) {
    const std::vector<float> numbers = queries_of(stream_, tokens);
    return {runtime_, std::span(numbers)};
  }
  std::vector<int32_t> rows;
  for (const int32_t token : tokens) rows.push_back(stream_.query_row[size_t(token)]);
  const DeviceArray<int32_t> row(runtime_, std::span<const int32_t>(rows));
  return gathered(rows_in_place(stream_.on_device.q, row.data(), heads(), int64_t(rows.size()), stream_.shape.dim));
}

auto DeviceHead::load_rows(std::vector<int32_t> tokens) -> const Rows& {
  if (loaded_.tokens == tokens) return loaded_;
  loaded_ = {};
  Rows& rows = loaded_;
  rows.token = DeviceArray<int32_t>(runtime_, std::span<const int32_t>(tokens));
  rows.numbers = query_rows(tokens);
  rows.planes = pack(rows.numbers, int64_t(heads()) * int64_t(tokens.size()), stream_.shape.dim);
  rows.tokens = std::move(tokens);
  return loaded_;
}

auto DeviceHead::make_sums(size_t parts, size_t rows, bool values) -> Sums {
  const size_t cells = parts * size_t(heads()) * rows;
  const auto array = [&](size_t count) { return DeviceArray<float>(runtime_, count); };
  Sums sums{array(cells), array(cells), array(cells), array(cells), {}};
  if (values) sums.out = array(cells * size_t(width_));
  return sums;
}

auto DeviceHead::make_exact(size_t rows, bool values) -> Exact {
  const size_t cells = size_t(heads()) * rows;
  const auto array = [&](size_t count) { return DeviceArray<float>(runtime_, count); };
  Exact exact{array(cells), array(cells), array(cells), {}};
  if (values) exact.out = array(cells * size_t(width_));
  return exact;
}

AttendArgs DeviceHead::attend_args(const Rows& rows, const DeviceArray<AttendPart>& parts, const Sums& sums) const {
  return {rows.planes.high.data(),
          rows.planes.low.data(),
          key_planes_.high.data(),
          key_planes_.low.data(),
          value_planes_.high.data(),
          value_planes_.low.data(),
          rows.token.data(),
          parts.data(),
          sums.view(),
          nullptr,
          0,
          int32_t(rows.tokens.size()),
          stream_.tokens,
          heads(),
          heads() / stream_.shape.blocks,
          int32_t(parts.size()),
          stream_.rule.scale,
          stream_.rule.softcap,
          stream_.window};
}

MergeInput DeviceHead::merge_input(const Rows& rows, const Sums& sums) const {
  return {sums.view(), sink_logits_.data(), heads(), int32_t(rows.tokens.size()), width_, stream_.shape.v_dim};
}

// Sums over the lists, and from them the exact rows.
auto DeviceHead::attend(const Rows& rows, const KeyLists::OnDevice& keys, const Sums& sums, bool values) -> Exact {
  runtime_.attend(attend_args(rows, keys.parts, sums), width_, grade_, values);
  Exact exact = make_exact(rows.tokens.size(), values);
  runtime_.run(ExactMergeKernel{merge_input(rows, sums), exact.view(), keys.refs.data(), KeyLists::kExactRefs});
  return exact;
}

// Largest logit and normaliser of every row.
auto DeviceHead::find_normalisers(const Rows& rows) -> Exact {
  const KeyLists lists({}, rows.tokens, stream_.prompt, heads());
  const KeyLists::OnDevice keys = lists.upload(runtime_);
  const Sums sums = make_sums(lists.parts(), rows.tokens.size(), false);
  return attend(rows, keys, sums, false);
}

ColumnArgs DeviceHead::column_args(const Rows& rows, const Exact& exact, int32_t columns) const {
  return {rows.planes.high.data(),
          rows.planes.low.data(),
          key_planes_.high.data(),
          key_planes_.low.data(),
          rows.token.data(),
          exact.top.data(),
          exact.z.data(),
          nullptr,
          int32_t(rows.tokens.size()),
          stream_.tokens,
          heads(),
          heads() / stream_.shape.blocks,
          columns,
          0,
          stream_.rule.scale,
          stream_.rule.softcap,
          stream_.window};
}

std::vector<std::vector<double>> DeviceHead::prompt_sums(const std::vector<int32_t>& from, bool maxima) {
  const int32_t first = from.front();  // ascending
  std::vector<int32_t> tokens(size_t(stream_.prompt - first));
  std::iota(tokens.begin(), tokens.end(), first);
  const Rows& rows = load_rows(std::move(tokens));
  const Exact exact = find_normalisers(rows);
  ColumnArgs args = column_args(rows, exact, stream_.prompt);
  const size_t columns = size_t(stream_.prompt), cells = size_t(heads() + 1) * columns;
  const DeviceArray<double> sums(runtime_, from.size() * cells);
  for (size_t i = 0; i < from.size(); ++i) {
    args.first_row = from[i];
    args.sums = sums.data() + i * cells;
    runtime_.columns(args, width_, grade_, false);
    args.sums += size_t(heads()) * columns;
    if (maxima) runtime_.columns(args, width_, grade_, true);
  }
  std::vector<std::vector<double>> all(from.size(), std::vector<double>(cells, 0.0));
  for (size_t i = 0; i < from.size(); ++i)
    sums.download(std::span(all[i]).first(maxima ? cells : cells - columns), i * cells);
  runtime_.wait();
  loaded_ = {};  // no later call asks for these rows
  return all;
}

std::vector<double> DeviceHead::future_sums(const std::vector<int32_t>& tokens) {
  std::vector<double> all(size_t(heads()) * size_t(stream_.tokens), 0.0);
  if (tokens.empty()) return all;
  const Rows& rows = load_rows(tokens);
  const Exact exact = find_normalisers(rows);
  const DeviceArray<double> sums(runtime_, all.size());
  ColumnArgs args = column_args(rows, exact, stream_.tokens);
  args.sums = sums.data();
  runtime_.columns(args, width_, grade_, false);
  sums.download(all);
  runtime_.wait();
  return all;
}

}  // namespace kvreplay
