#include "apps/offered/connection.hpp"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/replay_error.hpp"

namespace kvreplay::app {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr const char* kEnded = "the process of Python that hosts the method has ended";

struct Lengths {
  uint64_t json = 0, numbers = 0;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw ReplayError(fmt::format("{}: is too long for a socket", path));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Connection::Connection(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = address_of(path);
  if (socket_ >= 0 && ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  const int error = errno;
  if (socket_ >= 0) ::close(socket_);
  throw ReplayError(
      fmt::format("the Python that hosts methods of installed packages does not answer ({}): run "
                  "Python's kvreplay again",
                  std::strerror(error)));
}

Connection::~Connection() { ::close(socket_); }

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
