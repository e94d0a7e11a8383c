#include "apps/offered/connection.hpp"

#include <fmt/core.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/replay_error.hpp"

extern char** environ;

namespace kvreplay::app {
namespace {

constexpr int kChildSocket = 3;  // its number over there
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr const char* kEnded = "the process of Python that hosts the method has ended";

struct Lengths {
  uint64_t json = 0, numbers = 0;
};

pid_t spawn(const std::string& python, int socket) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket, kChildSocket);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);  // stdout is this program's data
  std::string words[] = {python, "-m", "kvreplay.host"};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, arguments[0], &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw ReplayError(fmt::format("{} cannot be started ({}): name a Python that has kvreplay in KVREPLAY_HOST", python,
                                  std::strerror(error)));
  return process;
}

}  // namespace

Connection::Connection(const std::string& python) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw ReplayError(fmt::format("no connection to a process of Python: {}", std::strerror(errno)));
  socket_ = ends[0];
  try {
    process_ = spawn(python, ends[1]);
  } catch (...) {
    ::close(ends[0]), ::close(ends[1]);
    throw;
  }
  ::close(ends[1]);
}

Connection::~Connection() {
  ::close(socket_);
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Connection::send(const std::string& json, std::span<const std::byte> numbers) {
  const Lengths lengths{json.size(), numbers.size()};
  send_all(&lengths, sizeof lengths);
  send_all(json.data(), json.size());
  send_all(numbers.data(), numbers.size());
}

Message Connection::receive() {
  Lengths lengths;
  receive_all(&lengths, sizeof lengths);
  if (lengths.json > kMostBytes || lengths.numbers > kMostBytes)
    give_up("the process of Python that hosts the method sent something else than a message");
  Message message{std::string(lengths.json, ' '), std::vector<std::byte>(lengths.numbers)};
  receive_all(message.json.data(), lengths.json);
  receive_all(message.numbers.data(), lengths.numbers);
  return message;
}

void Connection::give_up(const char* why) {
  over_ = true;
  throw ReplayError(why);
}

void Connection::send_all(const void* from, size_t bytes) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket_, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) give_up(kEnded);
    next += sent, bytes -= size_t(sent);
  }
}

void Connection::receive_all(void* to, size_t bytes) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket_, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up(kEnded);
    next += got, bytes -= size_t(got);
  }
}

}  // namespace kvreplay::app
