#include "config/stub.hpp"

#include <unistd.h>

#include <fstream>

namespace config_stub {
namespace {

namespace fs = std::filesystem;

fs::path new_folder() {
  std::string name = (fs::temp_directory_path() / "kvreplay-config-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  return name;
}

}  // namespace

Folder::Folder() : path(new_folder()) { std::ofstream(path / "a.h5") << "not read by these tests"; }
Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

kvreplay::RunConfig parse(const std::string& rest, const std::vector<std::string>& overrides) {
  const Folder folder;
  return kvreplay::parse_config("schema: 1\ntraces: [a.h5]\n" + rest, folder.path, "c.yaml", overrides, methods(),
                                {"rel_err_out_mean", "index_recall"});
}

nlohmann::json params_of(const kvreplay::RunConfig& config, size_t i) {
  const kvreplay::MethodValues& values = config.methods.at(i).values;
  nlohmann::json all;
  for (const kvreplay::ParameterSpec& spec : values.method().parameters)
    all[spec.name] = nlohmann::json::parse(kvreplay::parameter_json(spec, values.policy()));
  return all;
}

std::string errors_of_text(const std::string& text, const std::vector<std::string>& overrides) {
  const Folder folder;
  try {
    kvreplay::parse_config(text, folder.path, "c.yaml", overrides, methods(), {"rel_err_out_mean", "index_recall"});
  } catch (const kvreplay::UserError& e) {
    return e.what();
  }
  return "no error";
}

std::string errors(const std::string& rest, const std::vector<std::string>& overrides) {
  return errors_of_text("schema: 1\ntraces: [a.h5]\n" + rest, overrides);
}

}  // namespace config_stub
