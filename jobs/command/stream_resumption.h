// Decides what a command's client and its job node send on a connection: what each of them sends
// again on the next connection, and what the job node skips after it was rolled back. The code
// takes and returns frames; it does not wait, and does no input or output. Both ends are values: a
// copy is a snapshot, such as an epoch of the job node contains. Threads: one.
//
//   client                                        job node
//   kStart: how much of the output it has   --->  sends output from there again, or skips some
//   sends input from there again            <---  kAttached: how much of the input it has
//
// A job node that was rolled back is behind its client. The command then writes the same bytes
// again, and the job node skips as many bytes as the client has. If the command writes other bytes
// this time, the client gets only the bytes after that position. Then the client's output has as
// many bytes as the command has written, but two different runs may meet within a line. The client
// sends each signal since the epoch again, because the rolled-back command did not get it. The
// order between signals and input is kept only on one connection.
#pragma once

#include <optional>

#include "jobs/command/command.h"
#include "jobs/command/frame_socket.h"
#include "jobs/command/resumable_stream.h"

namespace ppmr {

// A client keeps at least this many of the last bytes that the command got. If the job node is
// rolled back to a moment before these bytes, the job ends.
inline constexpr size_t kInputKeptBytes = 16 << 20;
inline constexpr size_t kSignalsKeptBytes = 64 << 10;

// The state of a client that stops, for another client that goes on in its place. The client has
// passed on all output. `input` and `signals` are bytes that the job node may not have.
struct ClientState {
  OutputPositions got{};
  uint64_t input_confirmed = 0;
  std::string input{};
  bool input_ended = false;
  uint64_t signals_confirmed = 0;
  std::string signals{};
};
std::string to_text(const ClientState& state);
// Errors: EPROTO.
Result<ClientState> parse_client_state(const std::string& text);

// The client's end.
class ClientResumption {
 public:
  explicit ClientResumption(size_t input_kept_bytes = kInputKeptBytes) : input_(input_kept_bytes) {}
  explicit ClientResumption(const ClientState& state)
      : input_(kInputKeptBytes, state.input_confirmed, state.input),
        signals_(kSignalsKeptBytes, state.signals_confirmed, state.signals),
        output_(state.got.output),
        errors_(state.got.errors),
        input_ended_(state.input_ended) {}
  ClientState state() const;

  bool wants_input() const { return !input_ended_ && input_.has_room(); }
  void put_input(std::string_view bytes) { input_.put(bytes); }
  void end_input() { input_ended_ = true; }
  void put_signal(int number) { signals_.put(std::string(1, static_cast<char>(number))); }

  // Returns the positions for the next kStart.
  OutputPositions positions() const { return {output_.received(), errors_.received()}; }
  // Continues on a new connection after kAttached. Errors: ENOBUFS if the job node was rolled back
  // to a moment whose input the client no longer keeps; EPROTO.
  Status attached(const InputPositions& job_node);

  // Checks a frame other than kAttached and kRefusal. After success the caller writes the payload
  // of kOutput and kErrors. Errors: EPROTO, also if the frame does not continue its stream; this
  // connection is then useless.
  Status take(const Frame& frame);
  // Notes that the caller has written all output.
  void pass_on();
  // Returns the end of the command, or nullopt if it has not arrived. All output arrives before it.
  const std::optional<CommandEnd>& end() const { return end_; }

  // Returns the next frame to send on this connection, or nullopt.
  std::optional<Frame> take_next();

 private:
  SentStream input_;
  SentStream signals_{kSignalsKeptBytes};
  ReceivedStream output_, errors_;
  bool input_ended_ = false;
  bool input_end_sent_ = false;  // on this connection
  bool end_answered_ = false;
  std::optional<CommandEnd> end_;
};

// The job node's end.
class ServerResumption {
 public:
  // `stream`: kOutput or kErrors.
  bool has_room(FrameType stream) const { return stream_of(stream).has_room(); }
  void put(FrameType stream, std::string_view bytes) { stream_of(stream).put(bytes); }
  // Notes that the command has ended. The caller has put() all its output before.
  void end(const CommandEnd& end) { end_ = end; }
  bool has_ended() const { return end_.has_value(); }

  // Continues on a new connection. Returns the payload of kAttached. Errors: those of
  // SentStream::resume(). After an error the caller keeps the old connection.
  Result<InputPositions> attach(const OutputPositions& client);

  // Checks a frame other than kStart. After success the caller passes on the payload of kInput, and
  // sends the signals of kSignals. Errors: EPROTO; this connection is then useless.
  Status take(const Frame& frame);
  // Notes that the command has got all input so far.
  void pass_on_input() { input_.pass_on(); }
  bool input_ended() const { return input_ended_; }
  // Returns whether the client has the end of the command.
  bool is_done() const { return end_taken_; }

  // Returns the next frame to send on this connection, or nullopt.
  std::optional<Frame> take_next();

 private:
  SentStream& stream_of(FrameType stream) {
    return stream == FrameType::kErrors ? errors_ : output_;
  }
  const SentStream& stream_of(FrameType stream) const {
    return stream == FrameType::kErrors ? errors_ : output_;
  }

  SentStream output_{0}, errors_{0};
  ReceivedStream input_, signals_;
  bool input_ended_ = false;
  bool errors_first_ = false;  // alternates, so that neither output nor errors delay the other
  bool end_sent_ = false;      // on this connection
  bool end_taken_ = false;
  std::optional<CommandEnd> end_;
};

}  // namespace ppmr
