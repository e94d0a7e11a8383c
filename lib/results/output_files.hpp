#pragma once
#include <filesystem>
#include <string>

// What a run writes, such that other processes see whole files and whole lines, or none.

namespace kvreplay {

// `<host>.<process id>`: part of the name of whatever only this process writes.
std::string process_name();
// A name beside `file` that no other process and no earlier call uses.
std::filesystem::path temporary_name(const std::filesystem::path& file);
// The file name that a temporary name of any process stands for, or "".
std::string final_name(const std::string& temporary);
// Writes a text under a temporary name and publishes it.
void publish_text(const std::filesystem::path& file, const std::string& text);

// A file of lines that only this process appends to. A line is on disk when append() returns.
class LineFile {
 public:
  // Creates `<dir>/<process name>.jsonl`, or a numbered one if that name is taken.
  explicit LineFile(const std::filesystem::path& dir);
  ~LineFile();  // an empty file is removed
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void append(const std::string& line);  // without the line's end
  void sync();                           // what was appended is on disk

 private:
  std::filesystem::path path_;
  int file_ = -1;
  bool torn_ = false;  // a failed append may have left half a line
  bool empty_ = true;
};

// All of these throw OutputError.

}  // namespace kvreplay
