#include "results/arrays.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "results/output_files.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

template <class T>
void write_flat(H5Output& file, const std::string& name, const std::vector<T>& data) {
  file.write(name, std::span<const T>(data), {int64_t(data.size())});
}

// Numbers are stored in the precision in which they were computed.
void write_reals(H5Output& file, const std::string& name, const std::vector<double>& data,
                 const std::vector<int64_t>& shape, bool double_precision) {
  if (double_precision) return file.write(name, std::span<const double>(data), shape);
  const std::vector<float> narrow(data.begin(), data.end());
  file.write(name, std::span<const float>(narrow), shape);
}

void write_curves(H5Output& file, const Cell&, const CellResult& result) {
  const std::vector<int64_t> shape = {result.heads, int64_t(result.rows.size())};
  assert(int64_t(result.rel_err.size()) == shape[0] * shape[1]);
  write_flat(file, "curves/rows", result.rows);
  write_reals(file, "curves/rel_err", result.rel_err, shape, result.double_precision);
  if (result.partition_err.empty() && !result.rel_err.empty()) return;  // does not apply
  write_reals(file, "curves/partition_err", result.partition_err, shape, result.double_precision);
}

void write_outputs(H5Output& file, const Cell&, const CellResult& result) {
  const std::vector<int64_t> shape = {result.heads, int64_t(result.rows.size()), result.v_dim};
  assert(int64_t(result.out.size()) == shape[0] * shape[1] * shape[2]);
  write_flat(file, "outputs/rows", result.rows);
  write_reals(file, "outputs/out", result.out, shape, result.double_precision);
}

void write_projections(H5Output& file, const Cell&, const CellResult& result) {
  const Projected& on = result.projected;
  const std::vector<int64_t> shape = {result.heads, int64_t(result.rows.size()), on.samples};
  assert(int64_t(result.projections.size()) == shape[0] * shape[1] * shape[2]);
  write_flat(file, "projections/rows", result.rows);
  std::vector<float> drawn, recorded, answer;
  for (auto row = result.projections.begin(); row != result.projections.end(); row += on.samples) {
    drawn.insert(drawn.end(), row, row + on.drawn);
    if (on.recorded()) recorded.push_back(row[on.drawn]);
    if (on.answer) answer.push_back(row[on.samples - 1]);
  }
  // Compression would take a fifth of a run's time and save a twelfth of these bytes.
  const bool compress = false;
  file.write("projections/a", std::span<const float>(drawn), {shape[0], shape[1], on.drawn}, compress);
  file.write("projections/cosine_distance", std::span<const float>(result.distances), {shape[0], shape[1]}, compress);
  if (on.recorded())
    file.write("projections/a_recorded", std::span<const float>(recorded), {shape[0], shape[1]}, compress);
  if (on.answer) file.write("projections/a_answer", std::span<const float>(answer), {shape[0], shape[1]}, compress);
}

void write_series(H5Output& file, const std::string& name, const TokenLists& lists) {
  assert(lists.off.back() == int64_t(lists.flat.size()));
  write_flat(file, name + "_flat", lists.flat);
  write_flat(file, name + "_off", lists.off);
}

void write_lists(H5Output& file, const std::string& group, const TokensHeld& lists, bool double_precision) {
  const bool query_time = lists.attended.off.size() > 1;
  if (query_time) write_series(file, group + "/attended", lists.attended);
  if (!query_time || lists.kept.off.size() > 1) write_series(file, group + "/kept", lists.kept);
  const std::vector<int64_t> weights = {int64_t(lists.kept.flat.size())};
  if (!lists.num.empty()) write_reals(file, group + "/num", lists.num, weights, double_precision);
  if (!lists.den.empty()) write_reals(file, group + "/den", lists.den, weights, double_precision);
}

// Identifies the lists in the terms of results.csv, so that the file is complete without its table.
void write_label(H5Output& file, const Cell& cell) {
  file.attribute("kept", "method", cell.method_name());
  file.attribute("kept", "given", cell.variant->given);
  if (!cell.budget.none()) file.attribute("kept", "budget_tokens", int64_t{cell.budget.tokens});
  if (cell.budget.share) file.attribute("kept", "allocated_tokens", int64_t{*cell.budget.share});
}

void write_kept(H5Output& file, const Cell& cell, const CellResult& result) {
  for (const auto& [branch, lists] : result.branches)
    write_lists(file, fmt::format("kept/branches/{:03}", branch), lists, result.double_precision);
  if (result.branches.empty()) write_lists(file, "kept", result, result.double_precision);
  const std::pair<const char*, bool> marks[] = {
      {"oneshot", result.oneshot}, {"attends", result.attends}, {"partial", result.partial}};
  for (const auto& [name, holds] : marks)
    if (holds) file.attribute("kept", name, int64_t{1});
  write_label(file, cell);
}

void write_consensus(H5Output& file, const Cell&, const CellResult& result) {
  write_series(file, "consensus/kept", result.after_prompt);
  write_flat(file, "consensus/n_prompt", std::vector<int32_t>{result.prompt});
  write_flat(file, "consensus/needles", result.needle_tokens);
}

struct ArrayKind {
  const char* name;
  bool SaveOptions::*wanted;
  void (*write)(H5Output&, const Cell&, const CellResult&);
};
constexpr ArrayKind kKinds[] = {{"curves", &SaveOptions::curves, write_curves},
                                {"kept", &SaveOptions::kept, write_kept},
                                {"outputs", &SaveOptions::outputs, write_outputs},
                                {"projections", &SaveOptions::projections, write_projections},
                                {"consensus", &SaveOptions::consensus, write_consensus}};

// H5Output publishes under the name that it gets. Two processes may gather at the same time, so the name must belong to
// this process alone.
template <class Fill>
void publish_h5(const fs::path& file, Fill fill) {
  const fs::path temporary = temporary_name(file);
  try {
    H5Output out(temporary);
    fill(out);
    out.close();
    std::error_code error;
    fs::rename(temporary, file, error);
    if (error) throw OutputError(file.string() + ": cannot be written: " + error.message());
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

constexpr size_t kSumDigits = 16;
std::string sum_of(const std::string& bytes) { return sha256_hex(bytes).substr(0, kSumDigits); }

}  // namespace

std::vector<std::string> kinds_of(const SaveOptions& save) {
  std::vector<std::string> kinds;
  for (const ArrayKind& kind : kKinds)
    if (save.*kind.wanted) kinds.emplace_back(kind.name);
  return kinds;
}

std::vector<std::string> all_kinds() { return kinds_of({true, true, true, true, true}); }

std::string arrays_of(const Cell& cell, const CellResult& result, const SaveOptions& save) {
  H5Output out;
  for (const ArrayKind& kind : kKinds)
    if (save.*kind.wanted) kind.write(out, cell, result);
  return out.bytes();
}

std::string ArraysAt::text() const { return fmt::format("{}@{}+{} {} {}", file, offset, bytes, sum, join(kinds, " ")); }

std::optional<ArraysAt> ArraysAt::parse(const std::string& text) {
  const size_t space = text.find(' '), at = text.rfind('@', space), plus = text.find('+', at);
  if (space == text.npos || at == text.npos || plus > space) return std::nullopt;
  const std::string_view all = text;
  const auto offset = parse_number<uint64_t>(all.substr(at + 1, plus - at - 1));
  const auto bytes = parse_number<uint64_t>(all.substr(plus + 1, space - plus - 1));
  std::vector<std::string> words = split_words(all.substr(space));
  if (!offset || !bytes || words.empty()) return std::nullopt;
  ArraysAt arrays{text.substr(0, at), *offset, *bytes, std::move(words.front()), {}};
  arrays.kinds.assign(std::make_move_iterator(words.begin() + 1), std::make_move_iterator(words.end()));
  return arrays;
}

ArraysAt arrays_at(const std::string& file, uint64_t offset, const std::string& arrays, const SaveOptions& save) {
  return {file, offset, arrays.size(), sum_of(arrays), kinds_of(save)};
}

void ArraysReader::open(const std::string& file) {
  if (open_ == file) return;
  open_ = file;
  in_ = std::ifstream(dir_ / file, std::ios::binary);
  std::error_code missing;
  const auto size = fs::file_size(dir_ / file, missing);
  size_ = missing ? 0 : size;
}

bool ArraysReader::holds(const ArraysAt& at, const std::vector<std::string>& kinds) {
  open(at.file);
  return at.bytes <= size_ && at.offset <= size_ - at.bytes &&
         std::all_of(kinds.begin(), kinds.end(), [&](const std::string& kind) {
           return std::find(at.kinds.begin(), at.kinds.end(), kind) != at.kinds.end();
         });
}

std::string ArraysReader::read(const ArraysAt& at) {
  std::string bytes;
  if (holds(at, {})) {
    bytes.resize(at.bytes);
    in_.clear();
    in_.seekg(std::streamoff(at.offset));
    in_.read(bytes.data(), std::streamsize(at.bytes));
  }
  if (in_ && sum_of(bytes) == at.sum) return bytes;
  throw OutputError(
      fmt::format("{}: the arrays at byte {} were changed or damaged. Remove the file, and replay "
                  "the cells that it held",
                  (dir_ / at.file).string(), at.offset));
}

void gather_arrays(const fs::path& to, const std::string& kind, const std::vector<CellArrays>& cells,
                   ArraysReader& from) {
  publish_h5(to, [&](H5Output& out) {
    for (const CellArrays& cell : cells) out.copy_group(from.read(cell.at), kind, cell.key);
  });
}

}  // namespace kvreplay
