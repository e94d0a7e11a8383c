#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

// Files that a run writes so that other processes see whole files and whole lines, or none.

namespace kvreplay {

// `<host>.<process id>`: part of the names of files that only this process writes.
std::string process_name();
// A name beside `file` that no other process and no earlier call uses.
std::filesystem::path temporary_name(const std::filesystem::path& file);
// The file name that a temporary name of any process stands for, or "".
std::string final_name(const std::string& temporary);
// Writes a text under a temporary name and publishes it.
void publish_text(const std::filesystem::path& file, const std::string& text);

// Writes and publishes a text piece by piece. Without publish() no file is left.
class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& file);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  void append(const std::string& text);
  void publish();

 private:
  void flush();
  std::filesystem::path final_, temporary_;
  int file_ = -1;
  std::string waiting_;
};

// A file that only this process appends to.
class AppendFile {
 public:
  // Creates `<dir>/<name>.<process name><extension>`, or a numbered one if that name is taken.
  AppendFile(const std::filesystem::path& dir, const std::string& name, const std::string& extension);
  ~AppendFile();  // an empty file is removed
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Returns the offset of the bytes in the file. They survive the end of this process, and after sync() a crash of the
  // machine.
  uint64_t append(std::string_view bytes);
  void sync();
  const std::filesystem::path& path() const { return path_; }
  bool torn() const { return torn_; }  // a failed append may have left a part

 private:
  std::filesystem::path path_;
  int file_ = -1;
  bool torn_ = false, synced_ = true;
  uint64_t bytes_ = 0;
};

// Lines, in a file with the extension .jsonl.
class LineFile : public AppendFile {
 public:
  LineFile(const std::filesystem::path& dir, const std::string& name) : AppendFile(dir, name, ".jsonl") {}
  uint64_t append(const std::string& line);  // without its line end; returns its offset
};

// All of these throw OutputError.

}  // namespace kvreplay
