#include "results/arrays.hpp"

#include <algorithm>
#include <cassert>

#include "base/errors.hpp"
#include "results/output_files.hpp"
#include "trace/h5_file.hpp"

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

template <class T>
void write_flat(H5Output& file, const std::string& name, const std::vector<T>& data) {
  file.write(name, std::span<const T>(data), {int64_t(data.size())});
}

// Numbers are stored as wide as they were computed.
void write_reals(H5Output& file, const std::string& name, const std::vector<double>& data,
                 const std::vector<int64_t>& shape, bool double_precision) {
  if (double_precision) return file.write(name, std::span<const double>(data), shape);
  const std::vector<float> narrow(data.begin(), data.end());
  file.write(name, std::span<const float>(narrow), shape);
}

void write_curves(H5Output& file, const CellResult& result) {
  const std::vector<int64_t> shape = {result.heads, int64_t(result.rows.size())};
  assert(int64_t(result.rel_err.size()) == shape[0] * shape[1]);
  write_flat(file, "curves/rows", result.rows);
  write_reals(file, "curves/rel_err", result.rel_err, shape, result.double_precision);
  if (result.partition_err.empty() && !result.rel_err.empty()) return;  // does not apply
  write_reals(file, "curves/partition_err", result.partition_err, shape, result.double_precision);
}

void write_outputs(H5Output& file, const CellResult& result) {
  const std::vector<int64_t> shape = {result.heads, int64_t(result.rows.size()), result.v_dim};
  assert(int64_t(result.out.size()) == shape[0] * shape[1] * shape[2]);
  write_flat(file, "outputs/rows", result.rows);
  write_reals(file, "outputs/out", result.out, shape, result.double_precision);
}

void write_lists(H5Output& file, const std::string& name, const TokenLists& lists) {
  assert(lists.off.back() == int64_t(lists.flat.size()));
  write_flat(file, "kept/" + name + "_flat", lists.flat);
  write_flat(file, "kept/" + name + "_off", lists.off);
}

void write_kept(H5Output& file, const CellResult& result) {
  const bool query_time = result.attended.off.size() > 1;
  if (query_time) write_lists(file, "attended", result.attended);
  if (!query_time || result.kept.off.size() > 1) write_lists(file, "kept", result.kept);
  const std::vector<int64_t> weights = {int64_t(result.kept.flat.size())};
  if (!result.num.empty()) write_reals(file, "kept/num", result.num, weights, result.double_precision);
  if (!result.den.empty()) write_reals(file, "kept/den", result.den, weights, result.double_precision);
  const std::pair<const char*, bool> marks[] = {
      {"oneshot", result.oneshot}, {"attends", result.attends}, {"partial", result.partial}};
  for (const auto& [name, holds] : marks)
    if (holds) file.attribute("kept", name, int64_t{1});
}

struct Kind {
  const char* name;
  bool SaveOptions::*wanted;
  void (*write)(H5Output&, const CellResult&);
};
constexpr Kind kKinds[] = {{"curves", &SaveOptions::curves, write_curves},
                           {"kept", &SaveOptions::kept, write_kept},
                           {"outputs", &SaveOptions::outputs, write_outputs}};

// H5Output publishes under the name it is given, for good; two processes may work on one cell, so that
// name is ours alone. A rename that a power failure takes back makes a cell that is not done.
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

}  // namespace

std::vector<std::string> kinds_of(const SaveOptions& save) {
  std::vector<std::string> kinds;
  for (const Kind& kind : kKinds)
    if (save.*kind.wanted) kinds.emplace_back(kind.name);
  return kinds;
}

std::vector<std::string> all_kinds() { return kinds_of({true, true, true}); }

void save_arrays(const fs::path& file, const CellResult& result, const SaveOptions& save) {
  publish_h5(file, [&](H5Output& out) {
    for (const Kind& kind : kKinds)
      if (save.*kind.wanted) kind.write(out, result);
  });
}

bool holds_arrays(const fs::path& file, const std::vector<std::string>& kinds) {
  if (!fs::is_regular_file(file)) return false;
  try {
    const std::vector<std::string> held = group_members(file, "/");
    return std::all_of(kinds.begin(), kinds.end(), [&](const std::string& kind) {
      return std::find(held.begin(), held.end(), kind) != held.end();
    });
  } catch (const UserError&) {
    return false;  // unreadable: as if it did not exist
  }
}

void gather_arrays(const fs::path& to, const std::string& kind, const std::vector<CellArrays>& cells) {
  publish_h5(to, [&](H5Output& out) {
    for (const CellArrays& cell : cells) out.copy_group(cell.file, kind, cell.key);
  });
}

}  // namespace kvreplay
