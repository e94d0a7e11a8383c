#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.hpp"
#include "config/sections.hpp"

// Reads the parts of a configuration that name files: traces and the output directory.

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

// " (did you mean x.h5?)": suggests a trace file from the same folder.
std::string neighbours(const fs::path& path) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path.parent_path().empty() ? "." : path.parent_path(), ignored))
    if (entry.path().extension() == ".h5" || entry.path().extension() == ".hdf5")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  const std::string guess = did_you_mean(path.filename().string(), names);
  if (!guess.empty() || names.empty()) return guess;
  if (names.size() > 5) names.resize(5), names.emplace_back("...");
  return fmt::format(": that folder holds {}", join(names));
}

// Why the path of a trace cannot be opened; "" if nothing is wrong. Does not open the file.
std::string path_problem(const fs::path& path) {
  std::error_code ignored;
  if (path.extension() == ".part")
    return fmt::format(
        "{} is an unfinished dump: run `kvreplay record` again with --resume, then use the file without "
        ".part",
        path.string());
  if (fs::is_regular_file(path, ignored)) return "";
  if (fs::is_directory(path, ignored)) return fmt::format("{} is a folder without an index.h5", path.string());
  if (fs::exists(path, ignored)) return fmt::format("{} is not a file", path.string());
  if (fs::exists(path.string() + ".part", ignored))
    return fmt::format(
        "{} does not exist, only {}.part: the dump is unfinished, run `kvreplay record` again with "
        "--resume",
        path.string(), path.filename().string());
  return fmt::format("no trace {}{}", path.string(), neighbours(path));
}

void read_trace(RunConfig& config, const Node& item, const Source& source, Problems& problems) {
  const auto text = read_text(problems, item, "traces");
  if (!text) return;
  fs::path path = source.at(*text);
  std::error_code ignored;
  if (fs::is_directory(path, ignored) && fs::is_regular_file(path / "index.h5", ignored)) path /= "index.h5";
  if (const std::string why = path_problem(path); !why.empty()) return problems.trace_error(item.mark, why);
  if (std::find(config.traces.begin(), config.traces.end(), path) != config.traces.end())
    return problems.error(item.mark, fmt::format("{} is listed twice in traces", *text));
  config.marks[fmt::format("traces[{}]", config.traces.size())] = item.mark;
  config.traces.push_back(path);
}

// Why results could not be written to `dir`; "" if they could. Creates nothing.
std::string output_problem(const fs::path& dir) {
  std::error_code ignored;
  fs::path there = fs::absolute(dir, ignored);
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, ignored)) return there.string() + " is not a directory";
  if (::access(there.c_str(), W_OK | X_OK) != 0) return there.string() + " is not writable";
  return "";
}

}  // namespace

fs::path Source::at(const std::string& given) const {
  return fs::path(given).is_absolute() ? fs::path(given) : (base / given).lexically_normal();
}

void read_traces(RunConfig& config, const Node* node, const Mark& missing, const Source& source, Problems& problems) {
  if (!source.names_traces) {
    if (node != nullptr) problems.error(node->mark, "traces are open already: remove the key traces");
    return;
  }
  if (node == nullptr || (node->kind == Node::Kind::list && node->items.empty()))
    return problems.error(missing,
                          "traces is missing: add traces: [FILE.h5], relative to " + problems.words().folder());
  for (const Node* item : one_or_many(*node)) read_trace(config, *item, source, problems);
}

void read_output(RunConfig& config, const Node* node, const Source& source, Problems& problems) {
  const Section section(node, "output", {"dir", "save"}, problems);
  if (const Node* dir = section.find("dir")) {
    config.marks["output.dir"] = dir->mark;
    config.output.dir = source.at(read_text(problems, *dir, "output.dir").value_or("."));
    if (const std::string why = output_problem(config.output.dir); !why.empty())
      problems.error(dir->mark, fmt::format("cannot write to {} {}: {}. Choose another with -o DIR",
                                            problems.words().key("output.dir"), config.output.dir.string(), why));
  }
  const Node* save = section.find("save");
  if (save != nullptr) config.marks["output.save"] = save->mark;
  if (save == nullptr || (save->kind == Node::Kind::scalar && save->text == "none")) return;
  for (const Node* item : one_or_many(*save)) {
    const auto word =
        read_word(problems, *item, "output.save", {"curves", "kept", "outputs", "projections", "consensus"});
    config.output.curves |= word == "curves";
    config.output.kept |= word == "kept";
    config.output.outputs |= word == "outputs";
    config.output.projections |= word == "projections";
    config.output.consensus |= word == "consensus";
  }
}

}  // namespace kvreplay
